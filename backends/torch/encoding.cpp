// The byte form of a value. One byte names the kind; counts and extents are 64-bit little endian;
// map keys ascend, so that equal values have equal bytes.
#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "backends/torch/scalar_types.hpp"
#include "backends/torch/tensor.hpp"

namespace troupe {

namespace {

enum class kind : std::uint8_t {
  nothing,
  no,
  yes,
  integer,
  number,
  text,
  tensor,
  tuple,
  list,
  map
};

constexpr int deepest = 64;
constexpr std::size_t most_dimensions = 64;

class encoder {
public:
  void put(const value& v, int depth) {
    if (depth > deepest)
      throw std::invalid_argument(fmt::format("the value is nested deeper than {}", deepest));
    std::visit([&](const auto& held) { write(held, depth); }, v.held());
  }
  std::vector<std::byte> take() { return std::move(out_); }

private:
  void write(std::monostate, int) { tag(kind::nothing); }
  void write(bool x, int) { tag(x ? kind::yes : kind::no); }
  void write(std::int64_t x, int) { tag(kind::integer), raw(&x, sizeof x); }
  void write(double x, int) { tag(kind::number), raw(&x, sizeof x); }
  void write(const std::string& x, int) { tag(kind::text), text(x); }
  void write(const tensor_ptr& x, int) {
    if (!x) throw std::invalid_argument("there is no tensor in the box");
    const auto blob = blob_of({}, x->tensor);
    tag(kind::tensor);
    raw(&find_scalar_type(blob.dtype)->code, 1);
    count(blob.shape.size());
    raw(blob.shape.data(), blob.shape.size() * sizeof(std::int64_t));
    raw(blob.bytes->data(), blob.bytes->size());
  }
  void write(const value_tuple& x, int depth) { tag(kind::tuple), items(x.items, depth); }
  void write(const value_list& x, int depth) { tag(kind::list), items(x.items, depth); }
  void write(const value_map& x, int depth) {
    tag(kind::map), count(x.items.size());
    for (const auto& [key, item] : x.items) text(key), put(item, depth + 1);
  }
  void write(const value_user& x, int) {
    throw std::invalid_argument(
        fmt::format("a user's type ({}) does not travel as bytes; send tensors, numbers and texts",
                    x.held ? x.held->type().name() : "nothing"));
  }

  void items(const std::vector<value>& xs, int depth) {
    count(xs.size());
    for (const auto& x : xs) put(x, depth + 1);
  }
  void text(const std::string& x) { count(x.size()), raw(x.data(), x.size()); }
  void count(std::uint64_t n) { raw(&n, sizeof n); }
  void tag(kind k) { raw(&k, 1); }
  void raw(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), bytes, bytes + size);
  }

  std::vector<std::byte> out_;
};

class decoder {
public:
  explicit decoder(std::span<const std::byte> in) : in_(in) {}

  value get(int depth) {
    if (depth > deepest) fail("nested too deeply");
    switch (number<kind>()) {
      case kind::nothing: return {};
      case kind::no: return false;
      case kind::yes: return true;
      case kind::integer: return number<std::int64_t>();
      case kind::number: return number<double>();
      case kind::text: return text();
      case kind::tensor: return boxed(tensor());
      case kind::tuple: return value_tuple{items(depth)};
      case kind::list: return value_list{items(depth)};
      case kind::map: return map(depth);
    }
    fail("unknown kind");
  }
  void expect_end() const {
    if (!in_.empty()) fail("bytes are left over");
  }

private:
  [[noreturn]] static void fail(const char* why) {
    throw std::invalid_argument(fmt::format("these bytes are no value: {}", why));
  }
  std::span<const std::byte> raw(std::size_t size) {
    if (size > in_.size()) fail("cut short");
    const auto part = in_.first(size);
    in_ = in_.subspan(size);
    return part;
  }
  template <class T>
  T number() {
    T x;
    std::memcpy(&x, raw(sizeof x).data(), sizeof x);
    return x;
  }
  /// Each counted thing takes at least one byte, so what is left bounds the count.
  std::size_t count() {
    const auto n = number<std::uint64_t>();
    if (n > in_.size()) fail("cut short");
    return static_cast<std::size_t>(n);
  }
  std::string text() {
    const auto part = raw(count());
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::vector<value> items(int depth) {
    std::vector<value> xs;
    for (auto n = count(); n > 0; --n) xs.push_back(get(depth + 1));
    return xs;
  }
  value_map map(int depth) {
    value_map m;
    for (auto n = count(); n > 0; --n) {
      auto key = text();
      if (!m.items.empty() && key <= m.items.rbegin()->first) fail("map keys do not ascend");
      m.items.emplace_hint(m.items.end(), std::move(key), get(depth + 1));
    }
    return m;
  }
  at::Tensor tensor() {
    const auto* type = find_scalar_type_by_code(number<std::uint8_t>());
    if (!type) fail("unknown dtype");
    std::vector<std::int64_t> shape(dimensions());
    for (auto& extent : shape) extent = number<std::int64_t>();
    const auto bytes = dense_bytes(*type, shape);
    if (!bytes) fail("impossible shape");
    return tensor_from(*type, shape, raw(*bytes));
  }
  std::size_t dimensions() {
    const auto n = count();
    if (n > most_dimensions) fail("too many dimensions");
    return n;
  }

  std::span<const std::byte> in_;
};

}  // namespace

std::vector<std::byte> encode(const value& v) {
  encoder out;
  out.put(v, 0);
  return out.take();
}

value decode(std::span<const std::byte> bytes) {
  decoder in{bytes};
  auto v = in.get(0);
  in.expect_end();
  return v;
}

}  // namespace troupe
