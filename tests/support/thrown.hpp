// What an exception says.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace troupe::testing {

/// The text of an exception of type E. In parentheses, so that no comparison takes it for one: that
/// nothing was thrown, or another exception.
template <class E>
std::string thrown_by(const std::function<void()>& what) {
  try {
    what();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string{"(another exception: "} + e.what() + ")";
  }
  return "(nothing was thrown)";
}
template <class E>
std::string text_of(const std::exception_ptr& error) {
  return thrown_by<E>([&] {
    if (error) std::rethrow_exception(error);
  });
}

}  // namespace troupe::testing
