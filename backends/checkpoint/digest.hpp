// The two hashes of a checkpoint: of a file's bytes and of a model's weights. Both are XXH3-128,
// seed 0, written as 32 lower-case hexadecimal digits, high half first (what `xxhsum -H2` prints).
//
// weights_digest hashes, for each tensor in byte order of names, without separators:
//   u64 length of the name, the name's bytes,
//   u64 length of the dtype, the dtype's bytes (safetensors' names: F32, I64, ...),
//   u64 number of dimensions, each dimension as u64,
//   u64 length of the data, the data: dense, row-major, little endian,
// all integers little endian. Lengths first make it unambiguous. In Python, over a state_dict:
//   h = xxhash.xxh3_128()
//   for k in sorted(d, key=str.encode):
//     t, raw = DTYPE[d[k].dtype].encode(), d[k].contiguous().numpy().tobytes()
//     for part in (k.encode(), t): h.update(struct.pack("<Q", len(part)) + part)
//     h.update(struct.pack(f"<{1 + d[k].dim()}Q", d[k].dim(), *d[k].shape))
//     h.update(struct.pack("<Q", len(raw)) + raw)
#pragma once

#include "troupe/value.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace troupe {

/// XXH3-128 of bytes that are added piece by piece; the size of pieces does not matter. One thread.
class content_hash {
public:
  content_hash();
  ~content_hash();
  content_hash(content_hash&&) noexcept;
  content_hash& operator=(content_hash&&) noexcept;

  void add(std::span<const std::byte> bytes);
  /// The hash of all bytes that were added so far. More bytes may be added afterwards.
  std::string hex() const;

private:
  struct state;
  std::unique_ptr<state> state_;
};

/// Throws user_error(errc::checkpoint) that names the tensor, if `tensor.bytes` is null. A
/// strategy, a callback or a format of the program's own may make such a tensor.
void check_bytes(const tensor_blob& tensor);

/// Thread-safe. Any order of `tensors` gives the same digest; names must be distinct. Throws as
/// check_bytes.
std::string weights_digest(std::span<const tensor_blob> tensors);

}  // namespace troupe
