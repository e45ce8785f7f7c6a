#include "apps/troupe/result_file.hpp"

#include "apps/troupe/trouble_report.hpp"

#include <nlohmann/json.hpp>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

ordered_json defined(std::int64_t number) {
  return number == undefined ? ordered_json(nullptr) : ordered_json(number);
}
ordered_json defined(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}
ordered_json positive(double number) {
  return number > 0 ? ordered_json(number) : ordered_json(nullptr);
}

}  // namespace

run_result result_of(const job_outcome& outcome, std::int32_t ranks) {
  run_result result;
  result.status = outcome.status;
  result.loop = outcome.loop;
  result.ranks = ranks;
  result.generation = outcome.generation;
  result.metrics = outcome.last;
  if (const auto counted = result.metrics.extract(non_finite_steps); !counted.empty())
    result.non_finite_steps = static_cast<std::int64_t>(counted.mapped());
  if (outcome.weights) result.weights_digest = outcome.weights->weights_digest;
  if (outcome.figures.seconds_training > 0)
    result.samples_per_second =
        static_cast<double>(outcome.figures.samples_training) / outcome.figures.seconds_training;
  if (result.samples_per_second > 0) result.waiting_shares = outcome.waiting_shares;
  if (outcome.status == job_outcome::ending::failed && outcome.failed_with)
    result.failed_with = outcome.failed_with->record;
  return result;
}

ordered_json as_json(const failure& what) {
  ordered_json causes = ordered_json::array();
  for (const auto& cause : what.causes)
    causes.push_back({{"type", cause.type}, {"what", cause.what}});
  ordered_json others = ordered_json::array();
  for (const auto& other : what.others) others.push_back(as_json(other));
  return {{"type", what.type},
          {"what", what.what},
          {"rank", defined(what.rank)},
          {"hook", defined(what.hook)},
          {"epoch", defined(what.epoch)},
          {"step", defined(what.step)},
          {"generation", what.generation},
          {"signal", defined(what.signal)},
          {"causes", causes},
          {"others", others}};
}

std::string result_text(const run_result& what) {
  const ordered_json object{
      {"schema", "troupe.result/1"},
      {"status", to_string(what.status)},
      {"epochs", what.loop.epoch},
      {"steps", what.loop.steps},
      {"samples", what.loop.samples},
      {"ranks", what.ranks},
      {"generation", what.generation},
      {"metrics", what.metrics},
      {"weights_digest", defined(what.weights_digest)},
      {"seconds",
       {{"to_first_step", positive(what.seconds_to_first_step)}, {"total", what.seconds_total}}},
      {"samples_per_second", positive(what.samples_per_second)},
      {"waiting_share",
       what.waiting_shares.empty() ? ordered_json(nullptr) : ordered_json(what.waiting_shares)},
      {"non_finite_steps", what.non_finite_steps},
      {"failure", what.failed_with ? as_json(*what.failed_with) : ordered_json(nullptr)},
  };
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string_view to_string(job_outcome::ending status) {
  switch (status) {
    case job_outcome::ending::finished: return "finished";
    case job_outcome::ending::stopped: return "stopped";
    case job_outcome::ending::failed: return "failed";
  }
  return "unknown";
}

}  // namespace troupe::program
