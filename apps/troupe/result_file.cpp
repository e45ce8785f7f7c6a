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

ordered_json times_json(const generation_record::times& t) {
  return {{"detect", t.detect},
          {"abort", t.abort},
          {"form", t.form},
          {"heal", t.heal},
          {"first_step", t.first_step}};
}

ordered_json ended_by_json(const generation_record& one, job_outcome::ending status) {
  if (one.ended_by) return as_json(*one.ended_by);
  if (one.changed != membership_change::none) return to_string(one.changed);
  return to_string(status);
}

ordered_json generations_json(const restart_history& history) {
  auto all = ordered_json::array();
  for (const auto& one : history.generations)
    all.push_back({{"generation", one.generation},
                   {"ranks", one.ranks},
                   {"base_step", one.base_step},
                   {"ended_by", ended_by_json(one, history.status)},
                   {"steps_redone", one.steps_redone},
                   {"milliseconds", times_json(one.milliseconds)}});
  return all;
}

// A failed job's last generation was ended by the job's failure.
restart_history history_of(const job_outcome& outcome) {
  restart_history history{outcome.restarts, outcome.generations, outcome.status};
  if (outcome.status != job_outcome::ending::failed || !outcome.failed_with) return history;
  if (history.generations.empty() || history.generations.back().ended_by) return history;
  history.generations.back().ended_by = std::make_shared<failure>(outcome.failed_with->record);
  return history;
}

}  // namespace

run_result result_of(const job_outcome& outcome, const trainer_options& options) {
  run_result result;
  result.status = outcome.status;
  result.loop = outcome.loop;
  result.ranks = options.ranks;
  result.shards = outcome.shards > 0 ? outcome.shards : options.ranks;
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
  if (options.elastic.enabled()) result.history = history_of(outcome);
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
  ordered_json object{
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
  if (what.history) {
    object["restarts"] = what.history->restarts;
    object["shards"] = what.shards;
    object["generations"] = generations_json(*what.history);
  }
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace troupe::program
