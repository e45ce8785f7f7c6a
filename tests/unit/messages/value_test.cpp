// Goal: a value is a regular type and keeps its kind: a tuple stays a tuple, a list stays a list.
#include "troupe/value.hpp"

#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("nested values of every kind are regular values and print readable text", "[messages]") {
  const value v{value_map{{{"a", value_list{{1, 2.5, "x"}}}, {"b", value_tuple{{true, value{}}}}}}};
  const auto copy = v;
  CHECK(copy == v);
  std::ostringstream out;
  out << v;
  CHECK(out.str() == R"({"a": [1, 2.5, "x"], "b": (true, nothing)})");
}

TEST_CASE("a tuple and a list of the same items are not equal", "[messages]") {
  CHECK(!(value{value_tuple{{1}}} == value{value_list{{1}}}));
}
