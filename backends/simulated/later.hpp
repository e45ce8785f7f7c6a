// How simulated adapters make something happen in virtual time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace troupe {

/// Something to do once: a callable that is moved, never copied. What it holds lies in it when that
/// is no more than `room` bytes, as in every event of a world, so that no memory is asked for.
class later_call {
public:
  static constexpr std::size_t room = 48;

  later_call() = default;
  later_call(std::nullptr_t) {}
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, later_call> && std::is_invocable_v<std::decay_t<F>&>)
      later_call(F&& f) {
    make(std::forward<F>(f));
  }
  later_call(later_call&& from) noexcept : does_(std::exchange(from.does_, nullptr)) {
    if (does_) does_(act::move, held_, from.held_);
  }
  later_call& operator=(later_call&& from) noexcept {
    if (this == &from) return *this;
    if (does_) does_(act::end, held_, nullptr);
    does_ = std::exchange(from.does_, nullptr);
    if (does_) does_(act::move, held_, from.held_);
    return *this;
  }
  ~later_call() {
    if (does_) does_(act::end, held_, nullptr);
  }

  /// Holds `f` from now on, made in place; it held nothing.
  template <class F>
  void put(F&& f) {
    if constexpr (std::is_same_v<std::decay_t<F>, later_call>)
      *this = std::forward<F>(f);
    else
      make(std::forward<F>(f));
  }

  explicit operator bool() const { return does_ != nullptr; }
  void operator()() { does_(act::call, held_, nullptr); }
  /// Calls the callable and destroys it. This object is empty afterwards.
  void call_last() { std::exchange(does_, nullptr)(act::call_and_end, held_, nullptr); }

  /// Called shortly before the call: prefetches the memory at the address that the callable's first
  /// bytes hold, in case they are a pointer.
  void bring_near() const {
    const void* first = nullptr;
    std::memcpy(&first, held_, sizeof first);
    constexpr std::size_t line = 64;
    for (std::size_t i = 0; i < 4; ++i)
      __builtin_prefetch(static_cast<const std::byte*>(first) + i * line);
  }

private:
  enum class act : unsigned char { call, call_and_end, move, end };
  using does_fn = void (*)(act, std::byte* mine, std::byte* other);

  template <class F>
  static constexpr bool fits =
      sizeof(F) <= room && alignof(F) <= alignof(void*) && std::is_nothrow_move_constructible_v<F>;

  template <class F>
  void make(F&& f) {
    using held = std::decay_t<F>;
    if constexpr (fits<held>) {
      ::new (static_cast<void*>(held_)) held(std::forward<F>(f));
      does_ = &inside<held>;
    } else {
      ::new (static_cast<void*>(held_)) held*(new held(std::forward<F>(f)));
      does_ = &outside<held>;
    }
  }

  template <class F>
  static F& as(std::byte* memory) {
    return *std::launder(reinterpret_cast<F*>(memory));
  }
  template <class F>
  struct ended_behind {
    F& held;
    ~ended_behind() { held.~F(); }
  };
  template <class F>
  static void inside(act what, std::byte* mine, std::byte* other) {
    switch (what) {
      case act::call: as<F>(mine)(); break;
      case act::call_and_end: {
        const ended_behind<F> ends{as<F>(mine)};
        as<F>(mine)();
        break;
      }
      case act::move:
        ::new (static_cast<void*>(mine)) F(std::move(as<F>(other)));
        as<F>(other).~F();
        break;
      case act::end: as<F>(mine).~F(); break;
    }
  }
  template <class F>
  static void outside(act what, std::byte* mine, std::byte* other) {
    switch (what) {
      case act::call: (*as<F*>(mine))(); break;
      case act::call_and_end: {
        const std::unique_ptr<F> ends{as<F*>(mine)};
        (*ends)();
        break;
      }
      case act::move: ::new (static_cast<void*>(mine)) F*(as<F*>(other)); break;
      case act::end: delete as<F*>(mine); break;
    }
  }

  alignas(void*) std::byte held_[room];
  does_fn does_ = nullptr;
};

/// Lets a world decide when something happens: `later(delay, what)` calls `what` once, `delay` of
/// virtual time from now, never before it returns; or never, when the world has lost who asks.
class later_fn {
public:
  /// Where what is to happen then is put at once; null: it never happens.
  using place_fn = std::function<later_call*(std::chrono::nanoseconds delay)>;

  later_fn() = default;
  explicit later_fn(place_fn place) : place_(std::move(place)) {}
  template <class F>
  void operator()(std::chrono::nanoseconds delay, F&& what) const {
    if (auto* const there = place_(delay)) there->put(std::forward<F>(what));
  }

private:
  place_fn place_;
};

}  // namespace troupe
