// Texts of exceptions.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace troupe::testing {

/// The text of an exception of type E. If nothing or another exception was thrown, a text in
/// parentheses, which no expected text equals.
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
