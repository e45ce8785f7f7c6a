// Goal: a value is regular and keeps its kind: a tuple stays a tuple, a list a list.
#include "troupe/value.hpp"

#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("values of every kind compare and print", "[messages]") {
  const value v{value_map{{{"a", value_list{{1, 2.5, "x"}}}, {"b", value_tuple{{true, value{}}}}}}};
  const auto copy = v;
  CHECK(copy == v);
  std::ostringstream out;
  out << v;
  CHECK(out.str() == R"({"a": [1, 2.5, "x"], "b": (true, nothing)})");
}

TEST_CASE("a tuple is not a list of the same items", "[messages]") {
  CHECK(!(value{value_tuple{{1}}} == value{value_list{{1}}}));
}
