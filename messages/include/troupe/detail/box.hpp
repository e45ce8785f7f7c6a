// A rare part of a value, kept outside of it.
#pragma once

#include <memory>
#include <utility>

namespace troupe {

/// Holds one T or nothing, as std::optional does, at the cost of a pointer inside and of memory
/// only when it holds something. A regular value: copies are deep, what is moved from holds
/// nothing.
template <class T>
class box {
public:
  box() = default;
  box(T held) : held_(std::make_unique<T>(std::move(held))) {}
  box(const box& other) : held_(other.held_ ? std::make_unique<T>(*other.held_) : nullptr) {}
  box(box&&) noexcept = default;
  box& operator=(const box& other) {
    if (this != &other) held_ = other.held_ ? std::make_unique<T>(*other.held_) : nullptr;
    return *this;
  }
  box& operator=(box&&) noexcept = default;

  bool has_value() const { return held_ != nullptr; }
  explicit operator bool() const { return has_value(); }
  T& operator*() { return *held_; }
  const T& operator*() const { return *held_; }
  T* operator->() { return held_.get(); }
  const T* operator->() const { return held_.get(); }
  T value_or(T otherwise) const { return held_ ? *held_ : std::move(otherwise); }
  T& emplace(T held = {}) { return *(held_ = std::make_unique<T>(std::move(held))); }
  void reset() { held_ = nullptr; }

  friend bool operator==(const box& a, const box& b) {
    return a.has_value() == b.has_value() && (!a.has_value() || *a == *b);
  }

private:
  std::unique_ptr<T> held_;
};

}  // namespace troupe
