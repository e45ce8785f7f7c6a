// Goal: `troupe simulate` with a violation returns 1, and prints a report and a case; --replay
// finds the violation of the case again, and returns 1. Method: the product has no violation to
// show. So tests/mutants/mutants.py links this program with the mutants of the fit machine, then
// runs it.
#include "tests/mutants/mutant.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// While it exists, the mutant is on: a run killed in a later epoch continues with the first epoch's
// order of samples.
class with_mutant {
public:
  with_mutant() { mutant_on = "resume_in_first_epoch"; }
  ~with_mutant() { mutant_on = {}; }
  with_mutant(const with_mutant&) = delete;
  with_mutant& operator=(const with_mutant&) = delete;
};

said campaign(std::vector<std::string> more = {}) {
  std::vector<std::string> all{"simulate", "--ranks",    "3",       "--steps", "12",
                               "--faults", "crash_rank", "--seeds", "0..40"};
  all.insert(all.end(), more.begin(), more.end());
  return troupe_says(all);
}

// The first case in the printed report, as a user would copy it.
std::string first_case_in(const std::string& text) {
  const auto begin = text.find("troupe-case/2");
  const auto end = text.find("\nend\n", begin);
  REQUIRE(end != std::string::npos);
  return text.substr(begin, end + 5 - begin);
}

std::string written(const temporary_folder& folder, const std::string& text) {
  const auto path = (folder.path() / "found.case").string();
  std::ofstream{path} << text;
  return path;
}

// The number in "(event N)".
std::string event_of(const std::string& report) {
  const auto at = report.find("(event ");
  REQUIRE(at != std::string::npos);
  return report.substr(at + 7, report.find(')', at) - at - 7);
}

}  // namespace

TEST_CASE("a campaign that finds a violation exits with 1 and prints its case",
          "[program][mutant]") {
  const with_mutant now;
  const temporary_folder folder;
  const auto chart = (folder.path() / "last.mmd").string();
  const auto said = campaign({"--chart", chart});
  INFO(said.out << said.err);
  CHECK(said.code == 1);
  CHECK_THAT(said.err, Catch::Contains("violated  ") &&
                           Catch::Contains("faults    crash_rank x1") &&
                           Catch::Contains("chart     the last moments before it") &&
                           Catch::Contains("replay    troupe simulate --replay CASE") &&
                           Catch::Contains("\nexpect "));
  CHECK_THAT(said.out, Catch::Contains("crash_rank ") && Catch::Contains("violations "));
  CHECK_THAT(said.out, !Catch::Contains("violations 0\n"));
  std::ifstream drawn{chart};
  std::string first;
  CHECK(std::getline(drawn, first));
  CHECK(first == "sequenceDiagram");

  // A replay of the copied case: the same violation, at the same event, without a note.
  const auto path = written(folder, first_case_in(said.err));
  const auto again = troupe_says({"simulate", "--replay", path});
  INFO(again.err);
  CHECK(again.code == 1);
  CHECK_THAT(again.err, !Catch::Contains("note: "));
  CHECK(event_of(again.err) == event_of(said.err));
  CHECK_THAT(again.out, Catch::Contains("violations 1\n"));

  // The replay can stop before the event of the violation, for a debugger.
  const auto stood = troupe_says({"simulate", "--replay", path, "--until", event_of(said.err)});
  CHECK(stood.code == 1);
  CHECK_THAT(stood.err, Catch::Contains("before event " + event_of(said.err) + ", at ") &&
                            Catch::Contains("gdb --args troupe simulate --replay " + path));
}

TEST_CASE("the flag --json: a campaign's and a replay's output contain the violating cases",
          "[program][mutant]") {
  const with_mutant now;
  const auto said = campaign({"--json"});
  CHECK(said.code == 1);
  const auto all = nlohmann::json::parse(said.out);
  CHECK(all["violations"].get<int>() >= 1);
  REQUIRE(all["violation_cases"].size() == all["violations"].get<std::size_t>());
  const auto text = all["violation_cases"][0].get<std::string>();
  CHECK(text == first_case_in(said.err));

  const temporary_folder folder;
  const auto again = troupe_says({"simulate", "--replay", written(folder, text), "--json"});
  CHECK(again.code == 1);
  const auto one = nlohmann::json::parse(again.out);
  CHECK(one["runs"] == 1);
  CHECK(one["violations"] == 1);
  CHECK(one["violation_cases"] == nlohmann::json::array({text}));
}

TEST_CASE("the flag --no-shrink: the case has only a seed, and its replay finds the violation",
          "[program][mutant]") {
  const with_mutant now;
  const auto said = campaign({"--no-shrink", "--json"});
  CHECK(said.code == 1);
  const auto text = nlohmann::json::parse(said.out)["violation_cases"][0].get<std::string>();
  CHECK_THAT(text, Catch::Contains("\nseed ") && !Catch::Contains("\nchoices"));
  const temporary_folder folder;
  CHECK(troupe_says({"simulate", "--replay", written(folder, text)}).code == 1);
}

TEST_CASE("the replay of a fixed bug's case exits with 0 and reports that the oracle holds",
          "[program][mutant]") {
  const temporary_folder folder;
  std::string path;
  {
    const with_mutant now;
    path = written(folder, first_case_in(campaign().err));
  }
  const auto fixed = troupe_says({"simulate", "--replay", path});
  INFO(fixed.err);
  CHECK(fixed.code == 0);
  CHECK_THAT(fixed.err, Catch::Contains("which the case expects to be violated, was not violated"));
  CHECK(campaign().code == 0);
}
