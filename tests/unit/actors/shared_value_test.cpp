// Goal: a shared_value compares equal when its contents are equal, and it is never empty.
#include "actors/shared_value.hpp"

#include <string>
#include <utility>

#include "tests/support/catch.hpp"

using troupe::shared_value;

TEST_CASE("copies of a shared_value refer to the same object", "[messages]") {
  const shared_value<std::string> first{"text"};
  const auto second = first;
  CHECK(&*first == &*second);
  CHECK(first == second);
  CHECK(second->size() == 4);
}

TEST_CASE("shared values with equal contents compare equal", "[messages]") {
  CHECK(shared_value<std::string>{"text"} == shared_value<std::string>{"text"});
  CHECK_FALSE(shared_value<std::string>{"text"} == shared_value<std::string>{"other"});
  CHECK(shared_value<std::string>{} == shared_value<std::string>{""});
}

TEST_CASE("a moved-from shared_value still holds its value", "[messages]") {
  shared_value<std::string> first{"text"};
  const auto second = std::move(first);
  CHECK(first == second);  // NOLINT(bugprone-use-after-move): shared_value promises this
  first = std::string{"other"};
  CHECK(*first == "other");
  CHECK(*second == "text");
}
