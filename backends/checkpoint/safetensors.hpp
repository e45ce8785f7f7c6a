// Tensors as safetensors files, which Python's `safetensors` opens: the format of checkpoints and
// of `--init-weights`. Files are untrusted: see safetensors_header.hpp.
#pragma once

#include "backends/checkpoint/regular_file.hpp"
#include "troupe/value.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// The content of a file. `tensors` are in the order of the header's text, which for a file of
/// Troupe is the order in which they were passed.
struct tensor_file {
  std::vector<tensor_blob> tensors;
  std::map<std::string, std::string> metadata;
  std::uint64_t bytes = 0;  ///< of the file
  std::string hash;         ///< XXH3-128 of the bytes that the tensors were read from
};

/// The pieces of a file, to be written one after the other. Tensor bytes are shared, not copied.
/// Their data lies in order of decreasing element size, so that every tensor is aligned for its
/// dtype (readers that map the file need that), whatever the order of the header. Throws
/// user_error(errc::checkpoint) that names the tensor: a repeated name, a name that is not UTF-8,
/// an unknown dtype, bytes that do not fit the shape. Thread-safe.
std::vector<std::shared_ptr<const std::vector<std::byte>>> encode_safetensors(
    std::span<const tensor_blob> tensors, const std::map<std::string, std::string>& metadata = {});

/// Reads a file. Allocates memory only for ranges that were checked against the file's size. Throws
/// user_error(errc::checkpoint) with the file's path and the reason. Thread-safe.
tensor_file read_safetensors(const regular_file& file);
/// The same from memory. Errors name `origin` instead of a path.
tensor_file decode_safetensors(std::span<const std::byte> file, const std::string& origin);

}  // namespace troupe
