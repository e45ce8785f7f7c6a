// Goal: a box is an optional that lies elsewhere: its copies are its own, what is moved from is
// empty.
#include "troupe/detail/box.hpp"

#include <string>

#include "tests/support/catch.hpp"

using troupe::box;

TEST_CASE("a box holds something or nothing", "[messages]") {
  box<std::string> empty;
  CHECK_FALSE(empty);
  CHECK(empty.value_or("none") == "none");
  CHECK(empty == box<std::string>{});

  box<std::string> full{"text"};
  CHECK(full.has_value());
  CHECK(*full == "text");
  CHECK(full->size() == 4);
  CHECK(full.value_or("none") == "text");
  CHECK_FALSE(full == empty);
  CHECK_FALSE(full == box<std::string>{"other"});

  full.reset();
  CHECK(full == empty);
  full.emplace() += "x";
  CHECK(full == box<std::string>{"x"});
}

TEST_CASE("copies of a box are their own", "[messages]") {
  const box<std::string> first{"text"};
  auto second = first;
  *second += "s";
  CHECK(*first == "text");
  CHECK(*second == "texts");
  second = first;
  CHECK(second == first);
  const auto& same = second;
  second = same;
  CHECK(second == first);
  const auto third = std::move(second);
  CHECK(third == first);
  CHECK_FALSE(second);
}
