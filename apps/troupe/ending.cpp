#include "apps/troupe/ending.hpp"

#include "apps/troupe/exit_code.hpp"
#include "backends/checkpoint_io.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

namespace troupe::program {

void tell_troubles(console& screen, const job_outcome& outcome) {
  if (outcome.failed_with) {
    const auto& first = outcome.failed_with->record;
    for (const auto& other : first.others) screen.note("followed by: " + render(other));
    screen.error(render(first));
  }
  for (const auto& late : outcome.late) screen.error("behind the end: " + render(late));
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
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : "  ", name, number);
  return text;
}

std::string signal_note(int signal, int count) {
  const auto* name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
  if (count == 1)
    return fmt::format(
        "{}: stopping at the next step boundary, with a checkpoint; once more ends "
        "at once",
        name);
  return fmt::format("{} again: {}", name,
                     count == 2 ? "ending now" : "leaving without a teardown");
}

bool lost_its_end(const job_outcome& outcome) {
  const bool failed = std::any_of(outcome.late.begin(), outcome.late.end(), [](const failure& f) {
    return f.hook == hooks::save_checkpoint::name;
  });
  const auto last = std::filesystem::path{outcome.last_checkpoint}.filename().string();
  return failed && last != checkpoint_folder_name(outcome.loop.steps);
}

int ending_code(const job_outcome& outcome, int signal) {
  const auto& first = outcome.failed_with;
  const bool unsaved = first && first->record.code == errc::checkpoint &&
                       first->record.hook == hooks::save_checkpoint::name;
  if (unsaved || (outcome.ok() && lost_its_end(outcome))) return exits::checkpoint;
  const bool finished = outcome.status == job_outcome::ending::finished;
  if (signal != 0 && !finished) return exit_code_of_signal(signal);
  return exit_code(outcome);
}

}  // namespace troupe::program
