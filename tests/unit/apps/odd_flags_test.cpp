// Goal: flags that contradict each other and values that overflow are bad usage or bad
// configuration, and the error names the flag. The program never does nothing and exits with 0.
#include "tests/unit/apps/integer_program.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

constexpr int bad_usage = 2;
constexpr int bad_configuration = 3;

struct odd {
  std::vector<std::string> arguments;
  std::string named;
};

void check_refused(const std::vector<odd>& all, int code) {
  for (const auto& [arguments, named] : all) {
    const auto said = troupe_says(arguments);
    INFO(arguments.back() << ": " << said.err);
    CHECK(said.code == code);
    CHECK(said.out.empty());
    CHECK_THAT(said.err, Catch::Contains(named));
  }
}

}  // namespace

TEST_CASE("simulate refuses malformed values of --seeds", "[program]") {
  std::vector<odd> all;
  for (const std::string range : {"1..3abc", "0x1..0x3", "1..", "..3", "5", "9..1", "-1..3",
                                  "0..18446744073709551615", "0..99999999999999999999"})
    all.push_back({{"simulate", "--seeds", range}, "--seeds " + range + ": write A..B"});
  check_refused(all, bad_usage);
}

TEST_CASE("flags that exclude each other or overflow are refused", "[program]") {
  check_refused({{{"simulate", "--seed", "3", "--seeds", "0..2"}, "--seed"},
                 {{"simulate", "--swarm", "--faults", "pause"}, "--swarm"},
                 {{"simulate", "--until", "5"}, "--replay"},
                 {{"simulate", "--replay", "x.case", "--ranks", "3"}, "--ranks"},
                 {{"simulate", "--replay", "x.case", "--swarm"}, "--swarm"},
                 {{"simulate", "--replay", ""}, "--replay: give the path of a file"},
                 {{"simulate", "--chart", ""}, "--chart: give the path of a file"},
                 {{"simulate", "--ranks", "2147483647"}, "--ranks 2147483647: from 1 to 100000"},
                 {{"simulate", "--steps", "9223372036854775807"}, "from 1 to 1000000"},
                 {{"simulate", "--seed", "-1"}, "--seed: -1 is not a whole number"},
                 {{"simulate", "--seed", "18446744073709551616"}, "is not a whole number"},
                 {{"data", "order", "--size", "4", "--seed", "-1"}, "--seed: -1 is not"},
                 {{"simulate", "--seconds", "-1"}, "--seconds -1: must be at least 0"},
                 {{"simulate", "--seconds", "nan"}, "--seconds nan: must be at least 0"}},
                bad_usage);
}

TEST_CASE("without a violation simulate reports that it wrote no chart", "[program]") {
  const auto said = troupe_says({"simulate", "--ranks", "2", "--steps", "2", "--chart", "x.mmd"});
  CHECK(said.code == 0);
  CHECK_THAT(said.err, Catch::Contains("--chart x.mmd: not written"));
}

TEST_CASE("data order refuses numbers that overflow", "[program]") {
  const auto order = [](const std::string& flag, const std::string& value) {
    return odd{{"data", "order", "--size", "10", flag, value},
               flag + " = " + value + ": must be at least"};
  };
  check_refused(
      {{{"data", "order", "--size", "1099511627776"}, "--size = 1099511627776: must be at least"},
       order("--ranks", "99999999999"),
       order("--batch-size", "9223372036854775807"),
       order("--epoch", "9223372036854775807"),
       order("--accumulate-grad-batches", "9223372036854775807")},
      bad_configuration);
}

TEST_CASE("the error for an unknown flag names the full command's --help", "[program]") {
  const auto said = troupe_says({"data", "order", "--samples", "10"});
  CHECK(said.code == bad_usage);
  CHECK_THAT(said.err, Catch::Contains("`troupe data order --help`"));
}
