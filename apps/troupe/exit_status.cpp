#include "apps/troupe/exit_status.hpp"

#include "apps/troupe/exit_code.hpp"
#include "backends/telemetry/unsigned_nan.hpp"

#include <fmt/format.h>

#include <csignal>

namespace troupe::program {

void report_troubles(console& screen, const job_outcome& outcome,
                     const std::function<bool(const failure&)>& reported) {
  // The last one ended as the job did.
  for (const auto& one : outcome.generations)
    if (one.ended_by && &one != &outcome.generations.back())
      screen.note(fmt::format("generation {}: {}", one.generation, render(*one.ended_by)));
  if (outcome.failed_with) {
    const auto& first = outcome.failed_with->record;
    for (const auto& other : first.others) screen.note("followed by: " + render(other));
    screen.error(render(first));
  }
  for (const auto& late : outcome.late)
    if (!reported || !reported(late)) screen.error("after the end: " + render(late));
  for (const auto& survivor : outcome.survivors)
    screen.error(fmt::format("{} did not end in time and is left behind", survivor));
}

metrics figures_of(const job_outcome& outcome) {
  const auto* map = outcome.result.get_if<value_map>();
  if (!map) return outcome.last;
  metrics figures;
  for (const auto& [name, what] : map->items)
    if (const auto* number = what.get_if<double>()) figures[name] = *number;
  return figures;
}

std::string metrics_text(const metrics& values) {
  std::string text;
  for (const auto& [name, number] : values)
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : "  ", name, unsigned_nan(number));
  return text;
}

std::string signal_note(int signal, int count, left_by_stop what) {
  const std::string name = fmt::format("SIG{}", ::sigabbrev_np(signal));
  if (what == left_by_stop::nothing && count == 1)
    return name + ": stopping at the next step boundary; once more ends at once";
  if (what == left_by_stop::nothing)
    return name + (count == 2 ? " again: ending now" : " again: leaving without a teardown");
  if (count == 1)
    return fmt::format(
        "{}: stopping at the next step boundary, with a checkpoint; once more ends "
        "at once, without one",
        name);
  return fmt::format("{} again: {}", name,
                     count == 2 ? "ending now, without a checkpoint"
                                : "leaving without a teardown, without a result.json");
}

std::string saved_note(std::int64_t steps, std::optional<std::int64_t> saved,
                       const std::string& folder, const std::string& program) {
  if (!saved)
    return fmt::format("nothing is saved of {} steps: {} has no checkpoint", steps, folder);
  const auto lost = steps - *saved;
  return fmt::format(
      "saved up to step {}{}; go on from there with: {} fit --run-dir {} --resume latest", *saved,
      lost > 0 ? fmt::format(" of {}", steps) : "", program, folder);
}

int exit_status_of(const job_outcome& outcome, int signal) {
  const auto& first = outcome.failed_with;
  if (first && first->record.code == errc::checkpoint &&
      first->record.hook == hooks::save_checkpoint::name)
    return exits::checkpoint;
  const bool finished = outcome.status == job_outcome::ending::finished;
  if (signal != 0 && !finished) return exit_code_of_signal(signal);
  // `troupe stop --now`.
  if (first && first->record.kind == failure_kind::aborted) return exits::stopped_early;
  return exit_code(outcome);
}

}  // namespace troupe::program
