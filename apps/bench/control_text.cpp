#include "apps/bench/control_text.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cmath>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

// Nanoseconds are noise.
double rounded(double x) { return std::round(x * 1000) / 1000; }

}  // namespace

std::string as_json(const control_question& what, const control_figures& f) {
  return ordered_json{
      {"schema", "troupe.bench_control/1"},
      {"ranks", what.ranks},
      {"steps", what.steps},
      {"rounds", what.rounds},
      {"step_us", rounded(f.step.median)},
      {"step_best_us", rounded(f.step.best)},
      {"spread", rounded(f.step.spread)},
      {"processor_us", rounded(f.processor.median)},
      {"machine_us", rounded(f.machine.median)},
      {"hooks_us", rounded(f.hooks.median)},
      {"messages_us", rounded(f.messages)},
      {"hooks", f.hook_count},
      {"allocations", f.allocations < 0 ? ordered_json{} : ordered_json(rounded(f.allocations))},
      {"throw_to_caller_ms", rounded(f.throw_to_caller.median / 1000)},
      {"throw_to_caller_worst_ms", rounded(f.throw_to_caller_worst / 1000)}}
      .dump();
}

std::string as_text(const control_question& what, const control_figures& f) {
  return fmt::format(
      "{} ranks whose hooks do nothing; medians of {} rounds of {} steps\n"
      "  a step           {:>8.1f} us, spread {:.0f}%\n"
      "  processor time   {:>8.1f} us per rank: machine {:.2f}, {} hooks {:.2f}, messages {:.2f}\n"
      "  throw to caller  {:>8.2f} ms, worst of {} {:.2f} ms",
      what.ranks, what.rounds, what.steps, f.step.median, 100 * f.step.spread, f.processor.median,
      f.machine.median, f.hook_count, f.hooks.median, f.messages, f.throw_to_caller.median / 1000,
      what.throws, f.throw_to_caller_worst / 1000);
}

namespace {

struct per_hook {
  double machine, lane;
};
per_hook nanoseconds(const control_figures& f) {
  const auto hooks = static_cast<double>(std::max<std::int64_t>(f.hook_count, 1));
  return {1000 * f.machine.median / hooks, 1000 * f.hooks.median / hooks};
}

}  // namespace

std::string hooks_json(const control_question& what, const control_figures& f) {
  const auto each = nanoseconds(f);
  return ordered_json{{"schema", "troupe.bench_hooks/1"},
                      {"steps", what.steps},
                      {"rounds", what.rounds},
                      {"hooks", f.hook_count},
                      {"machine_ns", rounded(each.machine)},
                      {"lane_ns", rounded(each.lane)}}
      .dump();
}

std::string hooks_text(const control_figures& f) {
  const auto each = nanoseconds(f);
  return fmt::format("{} hooks a step; a hook takes {:.1f} ns to decide and {:.1f} ns to reach",
                     f.hook_count, each.machine, each.lane);
}

}  // namespace troupe::program
