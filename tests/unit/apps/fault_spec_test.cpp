// Goal: injected faults are read as a user writes them for `--fault`.
#include "apps/troupe/fault_spec.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;

namespace {

std::string refusal(const std::string& spec) {
  try {
    parse_fault(spec);
  } catch (const user_error& error) {
    CHECK(error.code() == errc::bad_configuration);
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("the parts of a fault may come in any order", "[fault]") {
  const auto drill = parse_fault("throw@hook=training_step,step=12,rank=1,what=disk full");
  CHECK(drill.what == fault_drill::kind::raise);
  CHECK(drill.rank == 1);
  CHECK(drill.hook == "training_step");
  CHECK(drill.step == 12);
  CHECK(drill.text == "disk full");
}

TEST_CASE("a fault without step and text gets the default step and text", "[fault]") {
  const auto drill = parse_fault("kill@rank=0,hook=setup");
  CHECK(drill.what == fault_drill::kind::kill);
  CHECK(drill.step == undefined);
  CHECK(drill.text == "injected fault");
}

TEST_CASE("a stall needs a duration, and other faults refuse one", "[fault]") {
  CHECK(parse_fault("stall@rank=0,hook=backward,ms=250").lasts == std::chrono::milliseconds{250});
  CHECK(refusal("stall@rank=0,hook=backward").find("needs ms") != std::string::npos);
  CHECK(refusal("throw@rank=0,hook=backward,ms=1").find("stall only") != std::string::npos);
}

TEST_CASE("the text of a fault may contain commas and equals signs", "[fault]") {
  CHECK(parse_fault("throw@rank=0,hook=setup,what=a, b=c, d").text == "a, b=c, d");
  const auto drill = parse_fault("throw@rank=0,what=a, b,hook=setup,step=3");
  CHECK(drill.text == "a, b");
  CHECK(drill.hook == "setup");
  CHECK(drill.step == 3);
  CHECK(parse_fault("throw@rank=0,hook=setup,what=").text.empty());
}

TEST_CASE("the error for a wrong part of a fault names it and suggests a correct one", "[fault]") {
  const std::vector<std::pair<std::string, std::string>> stories{
      {"trow@rank=0,hook=setup", "unknown kind \"trow\"; did you mean \"throw\"?"},
      {"throw@rank=0,hook=trainin_step", "did you mean \"training_step\"?"},
      {"throw@rank=0,hook=setup,stp=1", "unknown part \"stp\"; did you mean \"step\"?"},
      {"throw@rank=-1,hook=setup", "rank=-1 is no number from 0"},
      {"throw@rank=0,hook=setup,step=x", "step=x is no number from 0"},
      {"throw@rank=0,hook=setup,step=", "step= is no number from 0"},
      {"throw@hook=setup", "rank is missing"},
      {"throw@rank=0", "hook is missing"},
      {"throw", "there is no @"},
      {"throw@", "rank is missing"},
      {"", "unknown kind \"\""},
      {"throw@rank=0,rank=1,hook=setup", "rank is given twice"},
      {"throw@rank,hook=setup", "rank has no value"},
      {"throw@rank=99999999999999999999,hook=setup", "is no number from 0"},
  };
  for (const auto& [spec, part] : stories) {
    const auto text = refusal(spec);
    CAPTURE(spec, text);
    CHECK(text.find(part) != std::string::npos);
    CHECK(text.find("KIND@rank=R,hook=NAME") != std::string::npos);
  }
}
