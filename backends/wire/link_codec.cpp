#include "backends/wire/link_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "backends/wire/link_fields.hpp"

namespace troupe {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they are in memory");

constexpr int deepest_cause = 64;  // failures that hold failures

// A longer text is an attachment, because the receiver bounds the head of a message. This stands in
// place of its size.
constexpr std::size_t text_max = 1 << 20;
constexpr auto text_attached = std::numeric_limits<std::uint64_t>::max();

template <class T>
concept plain_number = (std::is_integral_v<T> ||
                        std::is_floating_point_v<T>)&&!std::is_same_v<T, bool>;

class packer {
public:
  using result_type = void;

  explicit packer(const tensor_bytes* tensors) : tensors_(tensors) {}

  template <class... T>
  void operator()(const T&... xs) {
    (put(xs), ...);
  }
  packed_message take() { return std::move(out_); }

private:
  template <class T>
  void put(const T& x) {
    if constexpr (plain_number<T>) {
      raw(&x, sizeof x);
    } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
      put(static_cast<std::uint8_t>(x));
    } else {
      inspect(*this, const_cast<T&>(x));  // the same list of fields encodes and decodes
    }
  }
  template <class Rep, class Period>
  void put(const std::chrono::duration<Rep, Period>& x) {
    put(static_cast<std::int64_t>(x.count()));
  }
  void put(const std::string& x) {
    if (x.size() > text_max) {
      const auto bytes = std::as_bytes(std::span{x});
      put(text_attached);
      return put(std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()));
    }
    put(std::uint64_t{x.size()});
    raw(x.data(), x.size());
  }
  template <class T>
  void put(const std::vector<T>& xs) {
    put(std::uint64_t{xs.size()});
    for (const auto& x : xs) put(x);
  }
  // As one attachment, because their number is bounded.
  void put(const std::vector<value>& xs) { put(value{value_list{xs}}); }
  template <class Key, class T>
  void put(const std::map<Key, T>& xs) {
    put(std::uint64_t{xs.size()});
    for (const auto& [key, x] : xs) put(key), put(x);
  }
  template <class T>
  void put(const std::set<T>& xs) {
    put(std::vector<T>(xs.begin(), xs.end()));
  }
  template <class T>
  void put(const std::optional<T>& x) {
    put(x.has_value());
    if (x) put(*x);
  }
  void put(const hook& x) { put(static_cast<const hook_types&>(x)); }
  template <class... T>
  void put(const std::variant<T...>& x) {
    put(static_cast<std::uint8_t>(x.index()));
    std::visit([this](const auto& held) { put(held); }, x);
  }
  void put(const shared_bytes& x) {
    out_.attachments.push_back(x ? x : std::make_shared<const std::vector<std::byte>>());
  }
  void put(const snapshot_ptr& x) {
    put(x != nullptr);
    if (x) put(*x);
  }
  void put(const std::shared_ptr<const caught>& x) {
    if (!x) throw internal_error("a failure without its record");
    put(x->record);  // the receiver makes an exception of it (ports::exceptions)
  }
  void put(const value& x) {
    put(x.empty());
    if (x.empty()) return;
    try {
      put(std::make_shared<const std::vector<std::byte>>(bytes_of_value(x, tensors_)));
    } catch (const std::invalid_argument& error) {
      throw user_error(
          errc::job_failed,
          fmt::format("a value cannot be sent from its rank's process: {}", error.what()));
    }
  }

  void raw(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out_.head.insert(out_.head.end(), bytes, bytes + size);
  }

  const tensor_bytes* tensors_;
  packed_message out_;
};

class unpacker {
public:
  using result_type = void;

  unpacker(std::span<const std::byte> head, std::span<const shared_bytes> attachments,
           const tensor_bytes* tensors)
      : in_(head), attachments_(attachments), tensors_(tensors) {}

  template <class... T>
  void operator()(T&... xs) {
    (get(xs), ...);
  }
  void expect_end() const {
    if (!in_.empty()) fail("bytes are left over");
    if (!attachments_.empty()) fail("attachments are left over");
  }

private:
  [[noreturn]] static void fail(const char* why) {
    throw damaged_message(fmt::format("no control message: {}", why));
  }

  template <class T>
  void get(T& x) {
    if constexpr (plain_number<T>) {
      std::memcpy(&x, raw(sizeof x).data(), sizeof x);
    } else if constexpr (std::is_same_v<T, bool>) {
      x = number(1) != 0;
    } else if constexpr (std::is_same_v<T, errc>) {
      x = known(number(0xff));
    } else if constexpr (std::is_enum_v<T>) {
      x = static_cast<T>(number(static_cast<std::uint8_t>(last_of<T>::value)));
    } else {
      inspect(*this, x);
    }
  }
  template <class Rep, class Period>
  void get(std::chrono::duration<Rep, Period>& x) {
    std::int64_t count = 0;
    get(count);
    x = std::chrono::duration<Rep, Period>{count};
  }
  void get(std::string& x) {
    std::uint64_t size = 0;
    get(size);
    shared_bytes attached;
    if (size == text_attached) get(attached);
    if (attached && attached->size() <= text_max) fail("a short text is attached");
    if (!attached && size > text_max) fail("a long text is not attached");
    const auto part = attached ? std::span{*attached} : raw(size);
    x.assign(reinterpret_cast<const char*>(part.data()), part.size());
  }
  template <class T>
  void get(std::vector<T>& xs) {
    if (++depth_ > deepest_cause) fail("nested too deeply");
    for (auto n = count(); n > 0; --n) {
      T x{};
      get(x);
      xs.push_back(std::move(x));
    }
    --depth_;
  }
  void get(std::vector<value>& xs) {
    value all;
    get(all);
    const auto* list = all.get_if<value_list>();
    if (!list) fail("values are no list");
    xs = list->items;
  }
  template <class T>
  void get(std::set<T>& xs) {
    std::vector<T> all;
    get(all);
    if (std::ranges::adjacent_find(all, std::greater_equal{}) != all.end())
      fail("members of a set do not ascend");
    xs = {all.begin(), all.end()};
  }
  template <class Key, class T>
  void get(std::map<Key, T>& xs) {
    for (auto n = count(); n > 0; --n) {
      Key key{};
      T x{};
      get(key);
      get(x);
      if (!xs.empty() && key <= xs.rbegin()->first) fail("keys do not ascend");
      xs.emplace_hint(xs.end(), std::move(key), std::move(x));
    }
  }
  template <class T>
  void get(std::optional<T>& x) {
    if (number(1) != 0) get(x.emplace());
  }
  void get(hook& x) { get(static_cast<hook_types&>(x)); }
  template <class... T>
  void get(std::variant<T...>& x) {
    choose<0>(x, number(sizeof...(T) - 1));
  }
  template <std::size_t I, class... T>
  void choose(std::variant<T...>& x, std::uint8_t index) {
    if constexpr (I < sizeof...(T)) {
      if (index == I) return get(x.template emplace<I>());
      choose<I + 1>(x, index);
    }
  }
  void get(shared_bytes& x) {
    if (attachments_.empty() || !attachments_.front()) fail("an attachment is missing");
    x = attachments_.front();
    attachments_ = attachments_.subspan(1);
  }
  void get(snapshot_ptr& x) {
    if (number(1) == 0) return;
    auto read = std::make_shared<snapshot>();
    get(*read);
    x = std::move(read);
  }
  void get(std::shared_ptr<const caught>& x) {
    auto read = std::make_shared<caught>();
    get(read->record);
    x = std::move(read);
  }
  void get(value& x) {
    if (number(1) != 0) return;
    shared_bytes bytes;
    get(bytes);
    x = value_of_bytes(*bytes, tensors_);
  }

  static errc known(std::uint8_t code) {
    for (const auto one : {errc::job_failed, errc::bad_usage, errc::bad_configuration,
                           errc::membership, errc::checkpoint, errc::device, errc::internal})
      if (static_cast<std::uint8_t>(one) == code) return one;
    fail("an unknown error code");
  }
  std::uint8_t number(std::uint8_t last) {
    const auto x = std::to_integer<std::uint8_t>(raw(1).front());
    if (x > last) fail("an unknown number");
    return x;
  }
  // Each item takes at least one byte or attachment, so the rest of the input bounds the count.
  std::size_t count() {
    std::uint64_t n = 0;
    get(n);
    if (n > in_.size()) fail("cut short");
    return static_cast<std::size_t>(n);
  }
  std::span<const std::byte> raw(std::size_t size) { return take_bytes(in_, size); }

  std::span<const std::byte> in_;
  std::span<const shared_bytes> attachments_;
  const tensor_bytes* tensors_;
  int depth_ = 0;
};

}  // namespace

packed_message pack(const link_message& what, const tensor_bytes* tensors) {
  packer out{tensors};
  out(what);
  return out.take();
}

link_message unpack(std::span<const std::byte> head, std::span<const shared_bytes> attachments,
                    const tensor_bytes* tensors) {
  try {
    unpacker in{head, attachments, tensors};
    link_message what;
    in(what);
    in.expect_end();
    return what;
  } catch (const std::invalid_argument& error) {
    throw damaged_message(error.what());
  }
}

}  // namespace troupe
