// Goal: SIGHUP stops a fit, unless it is ignored.
#include "apps/troupe/run_folder.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

#include <csignal>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

nlohmann::json result_in(const std::string& run) {
  return nlohmann::json::parse(read_text(std::filesystem::path{run} / program::result_file));
}

// Sends SIGHUP to this process when rank 0 reaches step 2.
integer_options with_hang_up() {
  integer_options options;
  options.at_hook = [](const learner_context& context, const hook& what) {
    if (context.rank == 0 && what.is<hooks::backward>() && where(what).step == 2)
      ::kill(::getpid(), SIGHUP);
  };
  return options;
}

std::vector<std::string> fit_of(const std::string& run, const char* epochs) {
  return {"fit", "--batch-size", "3", "--max-epochs", epochs, "--run-dir", run};
}

}  // namespace

TEST_CASE("SIGHUP in a step: the fit stops after the step with exit code 129", "[signal]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  const auto said = troupe_says(fit_of(run, "100000"), {}, with_hang_up());
  CAPTURE(said.err);
  CHECK(said.code == 129);
  CHECK_THAT(said.err, Catch::Contains("SIGHUP: stopping") && Catch::Contains("--resume latest"));
  CHECK(result_in(run)["status"] == "stopped");
}

TEST_CASE("SIGHUP is ignored at the start: a later SIGHUP changes nothing", "[signal]") {
  const temporary_folder place;
  const auto run = (place.path() / "run").string();
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const auto said = troupe_says(fit_of(run, "2"), {}, with_hang_up());
  std::signal(SIGHUP, before);
  CHECK(said.code == 0);
  CHECK(result_in(run)["status"] == "finished");
}
