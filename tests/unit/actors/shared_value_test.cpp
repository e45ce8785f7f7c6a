// Goal: a shared value compares as what it holds, and is never without.
#include "actors/shared_value.hpp"

#include <string>
#include <utility>

#include "tests/support/catch.hpp"

using troupe::shared_value;

TEST_CASE("copies of a shared value hold the same object", "[messages]") {
  const shared_value<std::string> first{"text"};
  const auto second = first;
  CHECK(&*first == &*second);
  CHECK(first == second);
  CHECK(second->size() == 4);
}

TEST_CASE("shared values are equal when what they hold is", "[messages]") {
  CHECK(shared_value<std::string>{"text"} == shared_value<std::string>{"text"});
  CHECK_FALSE(shared_value<std::string>{"text"} == shared_value<std::string>{"other"});
  CHECK(shared_value<std::string>{} == shared_value<std::string>{""});
}

TEST_CASE("a shared value that was moved from still holds it", "[messages]") {
  shared_value<std::string> first{"text"};
  const auto second = std::move(first);
  CHECK(first == second);  // NOLINT(bugprone-use-after-move): that is the promise
  first = std::string{"other"};
  CHECK(*first == "other");
  CHECK(*second == "text");
}
