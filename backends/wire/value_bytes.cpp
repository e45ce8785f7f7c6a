#include "troupe/detail/value_bytes.hpp"

#include <fmt/format.h>

#include <cstring>

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

class encoder {
public:
  explicit encoder(const tensor_bytes* tensors) : tensors_(tensors) {}

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
    if (!tensors_)
      throw std::invalid_argument("this program has no way to send tensors to other processes");
    tag(kind::tensor);
    tensors_->append(x, out_);
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

  const tensor_bytes* tensors_;
  std::vector<std::byte> out_;
};

class decoder {
public:
  decoder(std::span<const std::byte> in, const tensor_bytes* tensors)
      : in_(in), tensors_(tensors) {}

  value get(int depth) {
    if (depth > deepest) fail("nested too deeply");
    switch (number<kind>()) {
      case kind::nothing: return {};
      case kind::no: return false;
      case kind::yes: return true;
      case kind::integer: return number<std::int64_t>();
      case kind::number: return number<double>();
      case kind::text: return text();
      case kind::tensor: return tensor();
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
  std::span<const std::byte> raw(std::size_t size) { return take_bytes(in_, size); }
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
  value tensor() {
    if (!tensors_) fail("there is no way to read tensors");
    return tensors_->take(in_);
  }

  std::span<const std::byte> in_;
  const tensor_bytes* tensors_;
};

}  // namespace

std::span<const std::byte> take_bytes(std::span<const std::byte>& from, std::size_t size) {
  if (size > from.size()) throw std::invalid_argument("these bytes are no value: cut short");
  const auto part = from.first(size);
  from = from.subspan(size);
  return part;
}

std::vector<std::byte> bytes_of_value(const value& v, const tensor_bytes* tensors) {
  encoder out{tensors};
  out.put(v, 0);
  return out.take();
}

value value_of_bytes(std::span<const std::byte> bytes, const tensor_bytes* tensors) {
  decoder in{bytes, tensors};
  auto v = in.get(0);
  in.expect_end();
  return v;
}

}  // namespace troupe
