#include "backends/checkpoint/safetensors_header.hpp"

#include "backends/checkpoint/bounded_json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace troupe {

namespace {

using nlohmann::json;

constexpr std::string_view metadata_key = "__metadata__";

// Shortens a name from the file, so that an error stays one line.
std::string shown(std::string_view name) { return fmt::format("\"{:.120}\"", name); }

// Parses a header event by event and stops at the first unexpected element, so that neither deep
// nesting nor unexpected content is stored.
class header_events : public nlohmann::json_sax<json> {
public:
  safetensors_header header;
  std::string why;

  bool null() override { return fail("null"); }
  bool boolean(bool) override { return fail("true or false"); }
  bool number_integer(number_integer_t) override { return fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return fail("a number with a fraction, an exponent or too many digits");
  }
  bool binary(binary_t&) override { return fail("binary data"); }

  bool number_unsigned(number_unsigned_t n) override {
    if (n > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      return fail("a number beyond 2^63");
    if (at_ == place::shape) {
      if (tensor().shape.size() == safetensors_limits::dimensions)
        return fail("more than 64 dimensions");
      tensor().shape.push_back(static_cast<std::int64_t>(n));
      return true;
    }
    if (at_ != place::offsets) return fail("a number");
    if (offsets_ == 2) return fail("a third offset");
    (offsets_++ == 0 ? tensor().begin : tensor().end) = n;
    return true;
  }

  bool string(string_t& text) override {
    if (at_ == place::metadata) return add_metadata(text);
    if (at_ != place::entry || field_ != field::dtype) return fail("a text");
    if (safetensors_element_size(text) == 0) return fail("the unknown dtype " + shown(text));
    tensor().dtype = text;
    field_ = field::none;
    return true;
  }

  bool start_object(std::size_t) override {
    if (at_ == place::start) {
      at_ = place::root;
      return true;
    }
    if (at_ != place::root) return fail("an object");
    if (key_ == metadata_key) {
      if (has_metadata_) return fail("__metadata__ twice");
      has_metadata_ = true;
      at_ = place::metadata;
      return true;
    }
    if (header.tensors.size() == safetensors_limits::entries) return fail("too many tensors");
    header.tensors.emplace_back().name = std::move(key_);
    at_ = place::entry;
    seen_.fill(false);
    return true;
  }

  bool key(string_t& text) override {
    if (at_ != place::entry) {
      key_ = std::move(text);
      return true;
    }
    constexpr std::array<std::string_view, 3> names{"dtype", "shape", "data_offsets"};
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) return fail("the unknown member " + shown(text));
    const auto index = static_cast<std::size_t>(found - names.begin());
    if (seen_[index]) return fail(fmt::format("{} twice", text));
    seen_[index] = true;
    field_ = std::array{field::dtype, field::shape, field::offsets}[index];
    return true;
  }

  bool end_object() override {
    if (at_ == place::root) {
      at_ = place::end;
      return true;
    }
    if (at_ == place::entry && !(seen_[0] && seen_[1] && seen_[2]))
      return fail("no dtype, shape or data_offsets");
    at_ = place::root;
    return true;
  }

  bool start_array(std::size_t) override {
    if (at_ != place::entry || (field_ != field::shape && field_ != field::offsets))
      return fail("an array");
    at_ = field_ == field::shape ? place::shape : place::offsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (at_ == place::offsets && offsets_ != 2) return fail("fewer than two offsets");
    at_ = place::entry;
    field_ = field::none;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    // The library's own text may quote the file at any length.
    if (why.empty()) why = fmt::format("the header is not JSON at its byte {}", position);
    return false;
  }

private:
  enum class place { start, root, entry, metadata, shape, offsets, end };
  enum class field { none, dtype, shape, offsets };

  safetensors_entry& tensor() { return header.tensors.back(); }

  bool fail(const std::string& what) {
    const bool inside = at_ == place::entry || at_ == place::shape || at_ == place::offsets;
    why = fmt::format("the header has {} where it does not belong{}", what,
                      inside ? ", in tensor " + shown(tensor().name) : std::string{});
    return false;
  }

  bool add_metadata(const std::string& text) {
    if (header.metadata.size() == safetensors_limits::entries)
      return fail("too many metadata members");
    if (!header.metadata.emplace(key_, text).second) return fail(shown(key_) + " twice");
    return true;
  }

  place at_ = place::start;
  field field_ = field::none;
  std::string key_;
  std::array<bool, 3> seen_{};
  int offsets_ = 0;
  bool has_metadata_ = false;
};

std::uint64_t bytes_of(const safetensors_entry& tensor) {
  std::uint64_t bytes = safetensors_element_size(tensor.dtype);
  if (bytes == 0)
    refuse(
        fmt::format("tensor {}: unknown dtype {}; the format has no type for it: use another one "
                    "in the module, or train without checkpoints",
                    shown(tensor.name), shown(tensor.dtype)));
  if (tensor.shape.size() > safetensors_limits::dimensions)
    refuse(fmt::format("tensor {}: more than {} dimensions", shown(tensor.name),
                       safetensors_limits::dimensions));
  for (const auto extent : tensor.shape) {
    if (extent < 0) refuse(fmt::format("tensor {}: negative dimension", shown(tensor.name)));
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
      refuse(fmt::format("tensor {}: its shape overflows", shown(tensor.name)));
  }
  return bytes;
}

void check_names(const std::vector<safetensors_entry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const auto& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    refuse(fmt::format("tensor {} is there twice", shown(*twice)));
}

void check_ranges(const safetensors_header& header, std::uint64_t data_bytes) {
  std::vector<const safetensors_entry*> order;
  order.reserve(header.tensors.size());
  for (const auto& tensor : header.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair{a->begin, a->end} < std::pair{b->begin, b->end};
  });
  std::uint64_t filled = 0;
  for (const auto* tensor : order) {
    const auto name = shown(tensor->name);
    if (tensor->begin < filled) refuse(fmt::format("tensor {} overlaps the one before it", name));
    if (tensor->begin > filled) refuse(fmt::format("there is a hole before tensor {}", name));
    if (tensor->end < tensor->begin) refuse(fmt::format("tensor {} ends before it begins", name));
    if (tensor->end > data_bytes)
      refuse(fmt::format("tensor {} ends at byte {} of {}", name, tensor->end, data_bytes));
    if (const auto bytes = bytes_of(*tensor); tensor->end - tensor->begin != bytes)
      refuse(fmt::format("tensor {} has {} bytes, its dtype and shape need {}", name,
                         tensor->end - tensor->begin, bytes));
    filled = tensor->end;
  }
  if (filled != data_bytes)
    refuse(fmt::format("{} bytes behind the last tensor", data_bytes - filled));
}

// JSON for one text. Throws if it is not UTF-8.
std::string json_text(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    refuse("a name or metadata text is not UTF-8");
  }
}

}  // namespace

std::size_t safetensors_element_size(std::string_view dtype) {
  struct known {
    std::string_view name;
    std::size_t size;
  };
  static constexpr std::array<known, 17> all{{{"F32", 4},
                                              {"F64", 8},
                                              {"F16", 2},
                                              {"BF16", 2},
                                              {"I64", 8},
                                              {"I32", 4},
                                              {"I16", 2},
                                              {"I8", 1},
                                              {"U8", 1},
                                              {"BOOL", 1},
                                              {"U16", 2},
                                              {"U32", 4},
                                              {"U64", 8},
                                              {"F8_E4M3", 1},
                                              {"F8_E5M2", 1},
                                              {"F8_E8M0", 1},
                                              {"C64", 8}}};
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const known& k) { return k.name == dtype; });
  return found == all.end() ? 0 : found->size;
}

std::uint64_t safetensors_header_length(std::span<const std::byte, 8> first,
                                        std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(first[i]) << (8 * i);
  if (length > safetensors_limits::header_bytes)
    refuse(fmt::format("the header claims {} bytes, more than the {} allowed", length,
                       safetensors_limits::header_bytes));
  if (file_bytes < 8 || length > file_bytes - 8)
    refuse(fmt::format("the header claims {} bytes, the file has {}", length, file_bytes));
  return length;
}

safetensors_header parse_safetensors_header(std::string_view text, std::uint64_t data_bytes) {
  if (!text.starts_with('{')) refuse("the header does not begin with {");
  header_events events;
  if (!json::sax_parse(text.begin(), text.end(), &events)) refuse(events.why);
  check_names(events.header.tensors);
  check_ranges(events.header, data_bytes);
  return std::move(events.header);
}

std::string render_safetensors_header(const safetensors_header& header, std::uint64_t data_bytes) {
  if (header.tensors.size() > safetensors_limits::entries) refuse("too many tensors");
  check_names(header.tensors);
  check_ranges(header, data_bytes);
  std::string text(8, '\0');
  text += '{';
  const auto comma = [&] { return text.back() == '{' ? "" : ","; };
  if (!header.metadata.empty()) {
    text += fmt::format("\"{}\":{{", metadata_key);
    for (const auto& [key, what] : header.metadata)
      text += comma() + json_text(key) + ":" + json_text(what);
    text += '}';
  }
  for (const auto& tensor : header.tensors) {
    if (tensor.name == metadata_key) refuse("a tensor cannot be called __metadata__");
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", comma(),
                        json_text(tensor.name), tensor.dtype, fmt::join(tensor.shape, ","),
                        tensor.begin, tensor.end);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size() - 8;
  if (length > safetensors_limits::header_bytes) refuse("the header is longer than 100 MiB");
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return text;
}

}  // namespace troupe
