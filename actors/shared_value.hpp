#pragma once

#include <memory>
#include <utility>

namespace troupe {

/// One T that never changes, shared by all copies of its holder. A regular value like the T itself:
/// two are equal when what they hold is. Copying is thread-safe.
template <class T>
class shared_value {
public:
  shared_value() : held_(nothing()) {}
  shared_value(T held) : held_(std::make_shared<const T>(std::move(held))) {}
  // What is moved from keeps what it holds: it is never without.
  shared_value(const shared_value&) = default;
  shared_value& operator=(const shared_value&) = default;

  const T& operator*() const { return *held_; }
  const T* operator->() const { return held_.get(); }

  friend bool operator==(const shared_value& a, const shared_value& b) {
    return a.held_ == b.held_ || *a == *b;
  }

private:
  // One for all that were given nothing yet.
  static const std::shared_ptr<const T>& nothing() {
    static const auto one = std::make_shared<const T>();
    return one;
  }

  std::shared_ptr<const T> held_;
};

}  // namespace troupe
