#include "backends/checkpoint/digest.hpp"

#include "troupe/failure.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

static_assert(std::endian::native == std::endian::little, "tensor bytes are hashed as they lie");

namespace troupe {

struct content_hash::state {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> held{XXH3_createState(),
                                                                       XXH3_freeState};
};

content_hash::content_hash() : state_(std::make_unique<state>()) {
  if (!state_->held || XXH3_128bits_reset(state_->held.get()) != XXH_OK) throw std::bad_alloc{};
}
content_hash::~content_hash() = default;
content_hash::content_hash(content_hash&&) noexcept = default;
content_hash& content_hash::operator=(content_hash&&) noexcept = default;

void content_hash::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->held.get(), bytes.data(), bytes.size());
}

std::string content_hash::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->held.get()));
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

namespace {

void add_number(content_hash& hash, std::uint64_t number) {
  hash.add(std::as_bytes(std::span{&number, 1}));
}

void add_text(content_hash& hash, const std::string& text) {
  add_number(hash, text.size());
  hash.add(std::as_bytes(std::span{text}));
}

}  // namespace

void check_bytes(const tensor_blob& tensor) {
  if (!tensor.bytes)
    throw user_error(errc::checkpoint,
                     "the tensor " + tensor.name + " has no bytes: tensor_blob::bytes is null");
}

std::string weights_digest(std::span<const tensor_blob> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // std::string compares as unsigned char: byte order.
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return tensors[a].name < tensors[b].name; });
  content_hash hash;
  for (const auto i : order) {
    const auto& tensor = tensors[i];
    check_bytes(tensor);
    add_text(hash, tensor.name);
    add_text(hash, tensor.dtype);
    add_number(hash, tensor.shape.size());
    for (const auto extent : tensor.shape) add_number(hash, static_cast<std::uint64_t>(extent));
    add_number(hash, tensor.bytes->size());
    hash.add(*tensor.bytes);
  }
  return hash.hex();
}

}  // namespace troupe
