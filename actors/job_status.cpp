#include "troupe/trainer.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

namespace troupe {

using nlohmann::ordered_json;

std::string_view to_string(job_state state) {
  switch (state) {
    case job_state::starting: return "starting";
    case job_state::forming: return "forming";
    case job_state::active: return "active";
    case job_state::stopping: return "stopping";
    case job_state::closing: return "closing";
    case job_state::ending: return "ending";
    case job_state::ended: return "ended";
  }
  return "unknown";
}

namespace {

ordered_json defined(std::int64_t x) {
  return x == undefined ? ordered_json(nullptr) : ordered_json(x);
}

ordered_json finite(const std::optional<double>& x) {
  return x && std::isfinite(*x) ? ordered_json(*x) : ordered_json(nullptr);
}

ordered_json ending_of(const std::optional<job_outcome::ending>& how) {
  if (!how) return nullptr;
  return to_string(*how);
}

ordered_json failures_of(const std::vector<failure>& all) {
  auto list = ordered_json::array();
  for (const auto& one : all)
    list.push_back({{"generation", one.generation},
                    {"rank", defined(one.rank)},
                    {"step", defined(one.step)},
                    {"kind", to_string(one.kind)},
                    {"what", render(one)}});
  return list;
}

}  // namespace

std::string to_json(const job_status& s) {
  const ordered_json all{{"id", s.id},
                         {"stage", to_string(s.purpose)},
                         {"state", to_string(s.state)},
                         {"ended", ending_of(s.ended)},
                         {"generation", s.generation},
                         {"ranks", s.ranks},
                         {"shards", s.shards},
                         {"step", s.step},
                         {"epoch", defined(s.epoch)},
                         {"epochs", defined(s.epochs)},
                         {"batch", defined(s.batch)},
                         {"batches", defined(s.batches)},
                         {"samples", defined(s.samples)},
                         {"samples_per_second", finite(s.samples_per_second)},
                         {"seconds_left", finite(s.seconds_left)},
                         {"restarts", s.restarts},
                         {"restarts_left", s.restarts_left},
                         {"failures", s.failures},
                         {"newest_failures", failures_of(s.newest_failures)},
                         {"checkpoints", s.checkpoints},
                         {"checkpoint_step", defined(s.checkpoint_step)},
                         {"metrics", s.last}};
  // The text of a user's exception may not be UTF-8.
  return all.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace troupe
