// One hook of any type: what runs are made of (troupe/detail/hook_types.hpp has the types).
#pragma once

#include "troupe/detail/box.hpp"
#include "troupe/detail/hook_types.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <ostream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

/// One hook, of any type: 64 bytes, because runs of them are made, handed on and dropped at every
/// step. What is larger than `room` (a barrier with its label, a checkpoint with its loop) lies
/// outside, with this hook as its owner. A regular value; what is moved from may only be assigned
/// or destroyed.
class hook {
public:
  static constexpr std::size_t room = 56;

  hook() : hook(hooks::connect{}) {}
  template <class H>
  requires(hook_types::has<H>) hook(H h) : kind_(kind_of<H>) {
    ::new (static_cast<void*>(held_)) kept<H>(std::move(h));
  }
  hook(const hook& other) : kind_(other.kind_) {
    if (plain_bytes[kind_])
      std::memcpy(held_, other.held_, room);
    else
      copy_in(other);
  }
  hook(hook&& other) noexcept : kind_(other.kind_) {
    if (plain_bytes[kind_])
      std::memcpy(held_, other.held_, room);
    else
      move_in(other);
  }
  hook& operator=(const hook& other) { return *this = hook{other}; }
  hook& operator=(hook&& other) noexcept {
    if (this == &other) return *this;
    this->~hook();
    return *::new (static_cast<void*>(this)) hook(std::move(other));
  }
  ~hook() {
    if (!plain_bytes[kind_]) end();
  }

  template <class H>
  requires(hook_types::has<H>) bool is() const { return kind_ == kind_of<H>; }
  /// The hook as what it is, or null.
  template <class H>
  const H* get_if() const {
    return is<H>() ? &as<H>() : nullptr;
  }
  /// Calls `what` with the hook as what it is.
  template <class F>
  decltype(auto) visit(F&& what) const {
    using result = std::invoke_result_t<F&, const hooks::connect&>;
    using call = result (*)(F&, const hook&);
    static constexpr auto calls = hook_types::each([]<class H>() -> call {
      return [](F& f, const hook& h) -> result { return f(h.as<H>()); };
    });
    return calls[kind_](what, *this);
  }
  /// Which of `hook_types` it is.
  std::size_t index() const { return kind_; }

  friend bool operator==(const hook& a, const hook& b);

private:
  struct ways;
  struct table;
  template <class H>
  static constexpr bool inside = sizeof(H) <= room&& std::is_nothrow_move_constructible_v<H>;
  template <class H>
  using kept = std::conditional_t<inside<H>, H, box<H>>;
  template <class H>
  static constexpr auto kind_of = static_cast<std::uint8_t>(hook_types::index_of<H>());
  // Those that are copied as bytes and need no end.
  static constexpr auto plain_bytes =
      hook_types::each([]<class H>() { return inside<H> && std::is_trivially_copyable_v<H>; });

  template <class H>
  kept<H>& lies() {
    return *std::launder(reinterpret_cast<kept<H>*>(held_));
  }
  template <class H>
  const kept<H>& lies() const {
    return *std::launder(reinterpret_cast<const kept<H>*>(held_));
  }
  template <class H>
  const H& as() const {
    if constexpr (inside<H>)
      return lies<H>();
    else
      return *lies<H>();
  }
  void copy_in(const hook& from);
  void move_in(hook& from) noexcept;
  void end() noexcept;

  alignas(std::int64_t) std::byte held_[room];
  std::uint8_t kind_;
};
static_assert(sizeof(hook) == 64 && hook_types::size < 256);

/// The hook's name as users write it.
std::string_view name(const hook& h);
/// Where it happens.
const position& where(const hook& h);
/// `on_train_batch_start(train epoch 0 step 3 batch 3)`, with what else the hook carries.
std::ostream& operator<<(std::ostream& out, const hook& h);
/// All names, in the order of the variant. For `--fault` and its error messages.
const std::vector<std::string_view>& hook_names();

}  // namespace troupe
