#include "apps/troupe/cmd_fit.hpp"
#include "apps/troupe/exit_code.hpp"
#include "apps/troupe/exit_status.hpp"
#include "apps/troupe/job_parts.hpp"
#include "apps/troupe/job_runner.hpp"
#include "apps/troupe/launched.hpp"
#include "apps/troupe/result_file.hpp"
#include "apps/troupe/run_plan.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <string_view>
#include <vector>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

// Those of a part of the data, after a stop, would pass for those of all.
metrics whole_figures(const job_outcome& outcome) {
  return outcome.status == job_outcome::ending::finished ? figures_of(outcome) : metrics{};
}

std::string evaluation_json(stage purpose, const run_plan& plan, const job_outcome& outcome) {
  const auto failed = outcome.failed_with && !outcome.ok();
  const ordered_json object{
      {"schema", "troupe.evaluation/1"},
      {"command", to_string(purpose)},
      {"status", to_string(outcome.status)},
      {"checkpoint",
       plan.checkpoint.empty() ? ordered_json(nullptr) : ordered_json(plan.checkpoint)},
      {"ranks", plan.settings.integer("ranks")},
      {"metrics", whole_figures(outcome)},
      {"failure", failed ? as_json(outcome.failed_with->record) : ordered_json(nullptr)},
  };
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Figures that are left out would look like an error: an evaluation without batches says why.
void note_no_batches(stage purpose, const settings& s, console& screen) {
  const auto key =
      fmt::format("limit_{}_batches", purpose == stage::validate ? "val" : to_string(purpose));
  const auto& limit = s.at(key);
  if (limit.value != setting_value{std::int64_t{0}} && limit.value != setting_value{0.0}) return;
  screen.note(fmt::format("`{}` has used no data: {} is 0 ({}); {} 1.0 takes all",
                          to_string(purpose), key, limit.origin.text(),
                          find_setting(s.all(), key)->flag));
}

void print(stage purpose, const run_plan& plan, const job_outcome& outcome, const context& around) {
  auto& screen = around.screen;
  const bool json = plan.settings.flag("json");
  if (outcome.status == job_outcome::ending::finished)
    note_no_batches(purpose, plan.settings, screen);
  if (purpose == stage::predict && outcome.status == job_outcome::ending::finished) {
    std::string lines;
    for (const auto& line :
         around.learning.predictions(plan.settings.text("model.name"), outcome.result))
      lines += line + "\n";
    screen.results(lines);
    return;
  }
  if (outcome.status == job_outcome::ending::stopped)
    screen.note(
        fmt::format("stopped before `{}` had all of its data: results of a part are left out",
                    to_string(purpose)));
  if (json) return screen.result(evaluation_json(purpose, plan, outcome));
  for (const auto& [name, number] : whole_figures(outcome))
    screen.result(metrics_text({{name, number}}));
}

}  // namespace

program_end evaluate(stage purpose, const schema& all, given what, const context& around) {
  const checkpoint_reader checkpoints{around.learning.checkpoints()};
  auto plan = plan_evaluation(all, std::move(what), checkpoints, std::string{to_string(purpose)});
  if (plan.settings.flag("quiet")) around.screen.be_quiet();
  refuse_copies(around.cluster, around.place);
  take_place(plan.settings, around.place);
  if (around.place) around.screen.note(place_note(*around.place, plan.settings));
  for (const auto& note : plan.notes) around.screen.note(note);
  auto work = shared_job(plan.settings, around, [&](learning& of, trainer_options&) {
    if (!plan.checkpoint.empty()) around.learning.take_sizes(plan.checkpoint, of);
  });
  take_place(work, around.place);
  work.purpose = purpose;
  if (plan.checkpoint.empty())
    add_init_weights(plan.settings, work);
  else
    work.resume = plan.checkpoint;
  std::vector<std::string_view> unused{"metrics_port", "logger"};
  if (plan.settings.text("profiler") == "torch") unused.emplace_back("profiler");
  note_unused(around.screen, plan.settings, to_string(purpose), unused);
  const auto traces = add_traces(plan.settings, work);
  for (auto& make : progress_of(plan.settings, around)) work.observers.push_back(std::move(make));
  job_runner runner{around.world(), [&](int signal, int count) {
                      around.screen.note(signal_note(signal, count, left_by_stop::nothing));
                    }};
  const auto outcome = runner.run(std::move(work));
  report_troubles(around.screen, outcome);
  report_traces(around.screen, traces);
  report_profile(around.screen, outcome);
  job_runner::ignore_later_signals();
  if (runner.signal() == 0) std::signal(SIGPIPE, SIG_DFL);  // `troupe predict ... | head` ends so
  print(purpose, plan, outcome, around);
  return {exit_status_of(outcome, runner.signal()), !outcome.survivors.empty()};
}

}  // namespace troupe::program
