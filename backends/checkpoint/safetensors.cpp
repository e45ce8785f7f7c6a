#include "backends/checkpoint/safetensors.hpp"

#include "backends/checkpoint/digest.hpp"
#include "backends/checkpoint/safetensors_header.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>

static_assert(std::endian::native == std::endian::little, "tensor bytes are written as they lie");

namespace troupe {

namespace {

using chunk = std::shared_ptr<const std::vector<std::byte>>;
using read_function = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

// Indices in the order of the data in the file.
template <class T, class Before>
std::vector<std::size_t> ordered(const std::vector<T>& items, Before before) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return before(items[a], items[b]); });
  return order;
}

// Reads the file once, in order, so that the hash is of the bytes that are used.
tensor_file read_from(std::uint64_t size, const read_function& read) {
  content_hash hash;
  const auto take = [&](std::uint64_t offset, std::span<std::byte> out) {
    read(offset, out);
    hash.add(out);
  };
  if (size < 8) throw std::runtime_error(fmt::format("has {} bytes, too few for a header", size));
  std::array<std::byte, 8> first{};
  take(0, first);
  const auto length = safetensors_header_length(first, size);
  std::string text(length, '\0');
  take(8, std::as_writable_bytes(std::span{text}));
  auto header = parse_safetensors_header(text, size - 8 - length);
  text = {};

  tensor_file result;
  result.tensors.resize(header.tensors.size());
  const auto by_place = ordered(header.tensors, [](const auto& a, const auto& b) {
    return std::pair{a.begin, a.end} < std::pair{b.begin, b.end};
  });
  for (const auto i : by_place) {
    auto& entry = header.tensors[i];
    auto bytes = std::make_shared<std::vector<std::byte>>(entry.end - entry.begin);
    take(8 + length + entry.begin, *bytes);
    result.tensors[i] = {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                         std::move(bytes)};
  }
  result.metadata = std::move(header.metadata);
  result.bytes = size;
  result.hash = hash.hex();
  return result;
}

tensor_file read_named(const std::string& origin, std::uint64_t size, const read_function& read) {
  try {
    return read_from(size, read);
  } catch (const std::bad_alloc&) {
    throw user_error(errc::checkpoint,
                     fmt::format("{}: not enough memory for its {} bytes", origin, size));
  } catch (const std::runtime_error& e) {
    throw user_error(errc::checkpoint, fmt::format("{}: {}", origin, e.what()));
  }
}

}  // namespace

std::vector<chunk> encode_safetensors(std::span<const tensor_blob> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  safetensors_header header;
  header.metadata = metadata;
  for (const auto& tensor : tensors) {
    check_bytes(tensor);
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  }
  const auto order = ordered(header.tensors, [](const auto& a, const auto& b) {
    return safetensors_element_size(a.dtype) > safetensors_element_size(b.dtype);
  });
  std::vector<chunk> chunks(1);
  std::uint64_t at = 0;
  for (const auto i : order) {
    header.tensors[i].begin = at;
    at += tensors[i].bytes->size();
    header.tensors[i].end = at;
    if (!tensors[i].bytes->empty()) chunks.push_back(tensors[i].bytes);
  }
  try {
    const auto text = render_safetensors_header(header, at);
    const auto bytes = std::as_bytes(std::span{text});
    chunks[0] = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  } catch (const std::runtime_error& e) {
    throw user_error(errc::checkpoint, fmt::format("cannot write safetensors: {}", e.what()));
  }
  return chunks;
}

tensor_file read_safetensors(const regular_file& file) {
  return read_named(
      file.path().string(), file.size(),
      [&](std::uint64_t offset, std::span<std::byte> out) { file.read_at(offset, out); });
}

tensor_file decode_safetensors(std::span<const std::byte> file, const std::string& origin) {
  return read_named(origin, file.size(), [&](std::uint64_t offset, std::span<std::byte> out) {
    if (!out.empty()) std::memcpy(out.data(), file.data() + offset, out.size());
  });
}

}  // namespace troupe
