// Goal: result.json has the documented fields in one line, and undefined fields are null.
#include "apps/troupe/result_file.hpp"

#include "apps/troupe/exit_code.hpp"
#include "apps/troupe/exit_status.hpp"

#include <nlohmann/json.hpp>

#include <csignal>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using nlohmann::json;

namespace {

job_outcome failed_with(std::exception_ptr error) {
  job_outcome outcome;
  outcome.failed_with = std::make_shared<const caught>(caught{describe(error), error});
  return outcome;
}

template <class Error>
std::exception_ptr thrown(Error error) {
  return std::make_exception_ptr(std::move(error));
}

std::vector<std::string> names_of(const nlohmann::ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("the result of a finished run has the documented fields in order", "[result]") {
  job_outcome outcome;
  outcome.status = job_outcome::ending::finished;
  outcome.loop = {.epoch = 3, .batch = 0, .steps = 1407, .samples = 180000};
  outcome.last = {{"train/loss", 0.25}, {"val/accuracy", 0.875}};
  outcome.generation = 1;
  outcome.figures = {
      .seconds_to_first_step = 0.5, .seconds_training = 10, .samples_training = 1000};
  outcome.waiting_shares = {0.25, 0.125};
  auto weights = std::make_shared<snapshot>();
  weights->weights_digest = "00ff";
  outcome.weights = weights;
  auto result = result_of(outcome, {.ranks = 2});
  result.seconds_to_first_step = 0.75;
  result.seconds_total = 12;
  const auto text = result_text(result);
  CHECK(text.find('\n') == std::string::npos);
  const auto object = nlohmann::ordered_json::parse(text);
  CHECK(names_of(object) == std::vector<std::string>{"schema", "status", "epochs", "steps",
                                                     "samples", "ranks", "generation", "metrics",
                                                     "weights_digest", "seconds",
                                                     "samples_per_second", "waiting_share",
                                                     "non_finite_steps", "failure"});
  CHECK(json::parse(text) == json::parse(R"({"schema":"troupe.result/1","status":"finished",
    "epochs":3,"steps":1407,"samples":180000,"ranks":2,"generation":1,
    "metrics":{"train/loss":0.25,"val/accuracy":0.875},"weights_digest":"00ff",
    "seconds":{"to_first_step":0.75,"total":12.0},"samples_per_second":100.0,
    "waiting_share":[0.25,0.125],"non_finite_steps":0,"failure":null})"));
}

TEST_CASE("a job that may restart: its result lists the generations", "[result]") {
  failure killed;
  killed.type = "signal";
  killed.signal = "SIGKILL";
  killed.rank = 2;
  job_outcome outcome;
  outcome.status = job_outcome::ending::finished;
  outcome.generation = 2;
  outcome.restarts = 1;
  outcome.generations = {
      {.generation = 1, .ranks = 3, .ended_by = std::make_shared<const failure>(killed)},
      {.generation = 2,
       .ranks = 3,
       .base_step = 20,
       .steps_redone = 1,
       .milliseconds = {0.5, 12, 800, 3, 830}}};
  const auto object = [&] {
    return json::parse(
        result_text(result_of(outcome, {.ranks = 3, .elastic = {.max_restarts = 5}})));
  };
  const auto finished = object();
  CHECK(finished["failure"].is_null());
  CHECK(finished["generation"] == 2);
  CHECK(finished["restarts"] == 1);
  CHECK(finished["shards"] == 3);
  CHECK(finished["generations"].size() == 2);
  CHECK(finished["generations"][0]["ended_by"] == json(as_json(killed)));
  CHECK(finished["generations"][1] == json::parse(R"({"generation":2,"ranks":3,"base_step":20,
    "ended_by":"finished","steps_redone":1,
    "milliseconds":{"detect":0.5,"abort":12.0,"form":800.0,"heal":3.0,"first_step":830.0}})"));
  outcome.generations[0].ended_by.reset();
  outcome.generations[0].changed = membership_change::left;
  CHECK(object()["generations"][0]["ended_by"] == "left");
  outcome.generations[0].changed = membership_change::scaled;
  CHECK(object()["generations"][0]["ended_by"] == "scaled");
  outcome.status = job_outcome::ending::stopped;
  CHECK(object()["generations"][1]["ended_by"] == "stopped");
  outcome.status = job_outcome::ending::failed;
  failure last;
  last.type = "deadline";
  outcome.failed_with = without_exception(last);
  CHECK(object()["failure"]["type"] == "deadline");
  CHECK(object()["generations"][1]["ended_by"] == object()["failure"]);
  CHECK_FALSE(json::parse(result_text(result_of(outcome, {.ranks = 3}))).contains("restarts"));
}

TEST_CASE("a job that outlived a failure: the terminal shows it as a note", "[result]") {
  failure killed;
  killed.type = "signal";
  killed.what = "killed by SIGKILL";
  killed.rank = 2;
  job_outcome outcome;
  outcome.status = job_outcome::ending::finished;
  outcome.generations = {
      {.generation = 1, .ranks = 3, .ended_by = std::make_shared<const failure>(killed)},
      {.generation = 2, .ranks = 3}};
  std::string shown;
  console screen{[](std::string_view) {}, [&](std::string_view text) { shown += text; }, {}};
  report_troubles(screen, outcome);
  CHECK(shown == "generation 1: rank 2 failed: signal: killed by SIGKILL\n");
  // The failure that ended the job is an error, and not shown twice.
  outcome.status = job_outcome::ending::failed;
  outcome.generations[1].ended_by = outcome.generations[0].ended_by;
  outcome.failed_with = without_exception(killed);
  shown.clear();
  report_troubles(screen, outcome);
  CHECK(shown ==
        "generation 1: rank 2 failed: signal: killed by SIGKILL\n"
        "error: rank 2 failed: signal: killed by SIGKILL\n");
}

TEST_CASE("unknown fields of a result are null", "[result]") {
  const auto object = json::parse(result_text({}));
  CHECK(object["weights_digest"].is_null());
  CHECK(object["seconds"]["to_first_step"].is_null());
  CHECK(object["samples_per_second"].is_null());
  CHECK(object["waiting_share"].is_null());
  CHECK(object["metrics"] == json::object());
}

TEST_CASE("a failure in a result has its nested causes and the later failures", "[result]") {
  failure first;
  first.type = "std::runtime_error";
  first.what = "disk full";
  first.rank = 1;
  first.hook = "training_step";
  first.epoch = 0;
  first.step = 12;
  first.generation = 1;
  first.causes = {{"std::logic_error", "inner"}};
  failure other;
  other.type = "deadline";
  first.others = {other};
  const auto object = as_json(first);
  CHECK(names_of(object) == std::vector<std::string>{"type", "what", "rank", "hook", "epoch",
                                                     "step", "generation", "signal", "causes",
                                                     "others"});
  CHECK(object["rank"] == 1);
  CHECK(object["signal"].is_null());
  CHECK(object["causes"][0]["what"] == "inner");
  CHECK(names_of(object["others"][0]) == names_of(object));
  CHECK(object["others"][0]["rank"].is_null());
  CHECK(object["others"][0]["hook"].is_null());
}

TEST_CASE("a result with non-finite numbers and invalid UTF-8 is valid JSON", "[result]") {
  run_result result;
  result.metrics = {{"train/loss", std::nan("")}, {"val/loss", INFINITY}};
  failure odd;
  odd.what = "caf\xe9";
  result.failed_with = odd;
  const auto object = json::parse(result_text(result));
  CHECK(object["metrics"]["train/loss"].is_null());
  CHECK(object["metrics"]["val/loss"].is_null());
  CHECK(object["failure"]["what"].is_string());
}

TEST_CASE("the exit code follows from the type of the first cause", "[result]") {
  CHECK(exit_code(failed_with(thrown(std::runtime_error{"x"}))) == 1);
  CHECK(exit_code(failed_with(thrown(injected_fault{"x"}))) == 1);
  CHECK(exit_code(failed_with(thrown(internal_error{"x"}))) == 70);
  CHECK(exit_code(failed_with(nullptr)) == 1);
  CHECK(exit_code(job_outcome{}) == 1);
  for (const auto code :
       {errc::bad_configuration, errc::membership, errc::checkpoint, errc::device})
    CHECK(exit_code(failed_with(thrown(user_error{code, "x"}))) == static_cast<int>(code));
}

TEST_CASE("a generation that did not form is exit 4, a hook past its deadline exit 1", "[result]") {
  auto outcome = failed_with(nullptr);
  caught late;
  late.record.type = "deadline";
  outcome.failed_with = std::make_shared<const caught>(late);
  CHECK(exit_code(outcome) == 1);
  late.record.code = errc::membership;  // as the supervisor sets it
  outcome.failed_with = std::make_shared<const caught>(late);
  CHECK(exit_code(outcome) == 4);
}

TEST_CASE("the note on what is saved names the program as the user calls it", "[result]") {
  CHECK(saved_note(20, 16, "runs/a", "mine") ==
        "saved up to step 16 of 20; go on from there with: mine fit --run-dir runs/a --resume "
        "latest");
  CHECK(saved_note(3, {}, "runs/a", "mine") ==
        "nothing is saved of 3 steps: runs/a has no checkpoint");
}

TEST_CASE("a signal decides the exit code of a stopped job, not of a finished one", "[result]") {
  job_outcome outcome;
  outcome.status = job_outcome::ending::stopped;
  CHECK(exit_status_of(outcome, SIGINT) == 130);
  CHECK(exit_status_of(outcome, SIGTERM) == 143);
  CHECK(exit_status_of(outcome, 0) == 75);
  outcome.status = job_outcome::ending::failed;
  CHECK(exit_status_of(outcome, SIGINT) == 130);
  CHECK(exit_status_of(outcome, 0) == 1);
  outcome.status = job_outcome::ending::finished;
  CHECK(exit_status_of(outcome, SIGINT) == 0);
}

TEST_CASE("a stopped fit whose last checkpoint failed is exit 5, not the signal's code",
          "[result]") {
  job_outcome outcome;
  outcome.status = job_outcome::ending::stopped;
  CHECK(exit_status_of(outcome, SIGTERM) == 143);
  caught full;
  full.record.hook = "save_checkpoint";
  full.record.code = errc::checkpoint;
  outcome.status = job_outcome::ending::failed;
  outcome.failed_with = std::make_shared<const caught>(full);
  CHECK(exit_status_of(outcome, SIGTERM) == 5);
  CHECK(exit_status_of(outcome, SIGHUP) == 5);
  full.record.hook = "load_checkpoint";  // that is no work lost
  outcome.failed_with = std::make_shared<const caught>(full);
  CHECK(exit_status_of(outcome, SIGTERM) == 143);
}
