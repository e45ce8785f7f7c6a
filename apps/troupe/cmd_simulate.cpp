#include "apps/command_line/command_line.hpp"
#include "apps/testing/case.hpp"
#include "apps/testing/chart.hpp"
#include "apps/testing/delivery.hpp"
#include "apps/testing/null_payload.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/exit_code.hpp"
#include "apps/troupe/output_file.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace troupe::program {

namespace {

using namespace troupe::testing;

struct simulate_flags {
  std::int32_t ranks = 8;
  std::int64_t steps = 20;
  std::uint64_t seed = 0;
  std::string seeds;
  std::string payload = "integers";
  std::string scheduler;  // empty: as the payload wants it
  std::string faults = "none";
  bool swarm = false;
  std::int32_t max_restarts = 0;
  std::string replay;
  std::string chart;
  std::uint64_t until = 0;
  double seconds = 0;
  bool shrink = true;
  bool determinism_checks = false;
  bool json = false;
};

[[noreturn]] void refuse(const std::string& text) { throw user_error(errc::bad_usage, text); }

struct seed_range {
  std::uint64_t first = 0;
  std::uint64_t count = 1;
};

seed_range seeds_of(const simulate_flags& flags) {
  if (flags.seeds.empty()) return {flags.seed, 1};
  const std::string_view text{flags.seeds};
  const auto dots = text.find("..");
  const auto first = whole_number(text.substr(0, dots));
  const auto last = dots == text.npos ? std::nullopt : whole_number(text.substr(dots + 2));
  constexpr auto all = std::numeric_limits<std::uint64_t>::max();
  if (!first || !last || *last < *first || *last - *first == all)
    refuse(fmt::format("--seeds {}: write A..B, for example 0..999", flags.seeds));
  return {*first, *last - *first + 1};
}

// The job and the payload of a run. The integer payload is the default.
variant of_payload(const simulate_flags& flags, const context& around) {
  variant v;
  v.job.ranks = flags.ranks;
  v.job.steps = flags.steps;
  // About six steps an epoch, the last of them short.
  v.job.samples = std::max<std::int64_t>(1, flags.ranks * v.job.batch_size * 6 - flags.ranks);
  if (flags.payload == "none") {
    v.job = null_payload_job(flags.ranks, flags.steps);
    v.plan = null_payload_plan(v.job);
  } else if (flags.payload == "tensors") {
    v.plan.payload = around.learning.tensors();
    if (!v.plan.payload) refuse("--payload tensors: this program was built without LibTorch");
  } else if (flags.payload != "integers") {
    refuse(fmt::format("--payload {}: there are: integers, tensors, none", flags.payload));
  }
  return v;
}

variant asked_for(const simulate_flags& flags, const context& around, budget& of) {
  // The same limits as in the text of a case, so that a simulation fits into memory.
  check_range("--ranks", flags.ranks, 1, 100'000);
  check_range("--steps", flags.steps, 1, 1'000'000);
  check_range("--max-restarts", flags.max_restarts, 0, 1000);
  if (!(flags.seconds >= 0)) refuse(fmt::format("--seconds {}: must be at least 0", flags.seconds));
  auto v = of_payload(flags, around);
  v.job.max_restarts = flags.max_restarts;
  v.plan.faults.may = flags.swarm ? fault_set::all() : fault_set::parse(flags.faults);
  v.plan.faults.swarm = flags.swarm;
  auto scheduler = flags.scheduler;
  if (scheduler.empty()) scheduler = flags.payload == "none" ? "fifo" : "portfolio";
  of.portfolio = scheduler == "portfolio";
  if (scheduler == "fifo")
    v.plan.simulation.schedule = scheduling::fifo;
  else if (scheduler == "random")
    v.plan.simulation.schedule = scheduling::random;
  else if (scheduler == "pct")
    v.plan.simulation.schedule = scheduling::pct;
  else if (!of.portfolio)
    refuse(fmt::format("--scheduler {}: there are: fifo, random, pct, portfolio", scheduler));
  return v;
}

nlohmann::json summary_of(const exploration& all, const std::vector<std::string>& cases,
                          const std::string& weights) {
  nlohmann::json faults = nlohmann::json::object();
  for (std::size_t f = 0; f < fault_kinds; ++f)
    if (all.faults[f] > 0) faults[std::string{to_string(static_cast<fault>(f))}] = all.faults[f];
  const auto rate = [&](std::uint64_t n) {
    return all.seconds > 0 ? static_cast<double>(n) / all.seconds : 0.0;
  };
  return {{"schema", "troupe.simulate/1"},
          {"runs", all.runs},
          {"violations", all.violating.size()},
          {"violation_cases", cases},
          {"runs_per_second", rate(all.runs)},
          {"deliveries_per_second", rate(all.deliveries)},
          {"events", all.events},
          {"attempts", all.attempts},
          {"generations", all.generations},
          {"oracle_checks", all.checks},
          {"twins", all.determinism_checks},
          {"trace_digest", fmt::format("{:016x}", all.trace_digest)},
          {"weights_digest", weights.empty() ? nlohmann::json{} : nlohmann::json(weights)},
          {"faults", faults},
          {"marks", all.marks}};
}

void say(const nlohmann::json& s, console& screen) {
  screen.result(fmt::format("{} runs ({} attempts), {} events, {:.0f} runs/s, {:.0f} deliveries/s",
                            s["runs"].get<std::uint64_t>(), s["attempts"].get<std::uint64_t>(),
                            s["events"].get<std::uint64_t>(), s["runs_per_second"].get<double>(),
                            s["deliveries_per_second"].get<double>()));
  std::string line = "generations:";
  std::uint64_t formed = 0;
  for (const auto& runs : s["generations"]) {
    ++formed;
    if (const auto n = runs.get<std::uint64_t>()) line += fmt::format(" {} in {} runs", formed, n);
  }
  screen.result(line);
  line = "faults:";
  for (const auto& [name, count] : s["faults"].items())
    line += fmt::format(" {} {}", name, count.get<std::uint64_t>());
  screen.result(line);
  screen.result(fmt::format("oracles: {} of them looked {} times", known_oracles().size(),
                            s["oracle_checks"].get<std::uint64_t>()));
  std::string never;
  for (const auto& [name, count] : s["marks"].items()) {
    if (const auto n = count.get<std::uint64_t>())
      screen.result(fmt::format("{:>8} x {}", n, name));
    else
      never += fmt::format("{}{}", never.empty() ? "never: " : "; ", name);
  }
  if (!never.empty()) screen.result(never);
  if (const auto n = s["twins"].get<std::uint64_t>())
    screen.result(
        fmt::format("determinism check: {} runs were repeated with other memory and addresses", n));
  screen.result(fmt::format("trace {}  violations {}", s["trace_digest"].get<std::string>(),
                            s["violations"].get<std::uint64_t>()));
}

// Before the runs: a chart may be replaced, and no other file.
void check_chart(const simulate_flags& flags) {
  if (!flags.chart.empty()) check_is_like("--chart", flags.chart, mermaid_head);
}

// Writes the report's chart as a Mermaid diagram.
void write_chart(const std::string& path, const run_report& report) {
  chart_options shown;
  if (!report.violations.empty()) shown.until = report.violations.front().event;
  std::ofstream file{path};
  file << mermaid_chart(report.notes, report.nodes, shown);
  if (!file.flush()) refuse(fmt::format("--chart {}: cannot be written", path));
}

program_end campaign(const simulate_flags& flags, const context& around) {
  auto& screen = around.screen;
  budget of;
  const auto v = asked_for(flags, around, of);
  const auto range = seeds_of(flags);
  of.first_seed = range.first;
  of.runs = range.count;
  of.seconds = flags.seconds;
  of.vary_job = flags.swarm;
  of.violations = 4;
  of.determinism_checks = flags.determinism_checks;
  std::string weights;
  const auto all = explore(v.job, v.plan, of, [&](const run_report& r) {
    weights = range.count == 1 ? r.weights_digest : std::string{};
  });
  std::vector<std::string> cases;
  for (const auto& r : all.violating) {
    auto found = case_of(r, variant_of(v.job, v.plan, of, r.seed));
    auto reference = reference_of(found.what.job);
    if (flags.shrink) found = shrink(found, reference);
    auto again = found;
    again.what.plan.simulation.record = true;
    const auto report = replay(again, reference);
    cases.push_back(to_text(found));
    if (const auto text = render_unrepeated(r, report); !text.empty()) screen.note(text);
    screen.note(testing::render(report, "troupe simulate --replay CASE, a file that holds:"));
    screen.note(cases.back());
    if (cases.size() == 1 && !flags.chart.empty()) write_chart(flags.chart, report);
  }
  if (all.clean() && !flags.chart.empty())
    screen.note(fmt::format("note: --chart {}: not written, because no run violated an oracle",
                            flags.chart));
  const auto s = summary_of(all, cases, weights);
  flags.json ? screen.result(s.dump()) : say(s, screen);
  return {all.clean() ? exits::done : exits::job_failed};
}

bool traced() {
  std::ifstream status{"/proc/self/status"};
  for (std::string word; status >> word;)
    if (word == "TracerPid:") return status >> word && word != "0";
  return false;
}

// Stops under a debugger; without one, prints the position of the run.
void stand_at(const simulate_flags& flags, console& screen, const simulation& in,
              simulation::node_id where) {
  const not_delivering ours;
  if (traced()) {
    std::raise(SIGTRAP);
    return;
  }
  screen.note(fmt::format(
      "before event {}, at {:.3f} ms of virtual time, which is to happen in {} (place {}):\n{}",
      in.events(), static_cast<double>(in.time().count()) / 1e6, in.name_of(where), where,
      text_chart(in.notes(), in.names())));
  screen.note(
      fmt::format("to stop there: gdb --args troupe simulate --replay {} --until {}, "
                  "then `run`; `up` leads to simulation::step\n",
                  flags.replay, flags.until));
}

std::string text_of_case(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    refuse(fmt::format("--replay {}: no such file", path));
  std::ifstream file{path};
  if (!file || std::filesystem::is_directory(path, ignored))
    refuse(fmt::format("--replay {}: it cannot be read", path));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

run_case case_in(const simulate_flags& flags, const std::string& text, const context& around) {
  testing::run_plan brought;
  brought.payload = around.learning.tensors();
  try {
    return parse_case(text, brought);
  } catch (const user_error& e) {
    refuse(fmt::format("--replay {}: {}", flags.replay, e.what()));
  }
}

program_end again(const simulate_flags& flags, const context& around) {
  auto& screen = around.screen;
  const auto text = text_of_case(flags.replay);
  auto what = case_in(flags, text, around);
  what.what.plan.simulation.record = true;
  what.what.plan.simulation.until = flags.until;
  what.what.plan.simulation.at_until = [&](const simulation& in, simulation::node_id where) {
    stand_at(flags, screen, in, where);
  };
  auto reference = reference_of(what.what.job);
  const auto report = replay(what, reference);
  exploration all;
  for (const auto& m : known_marks()) all.marks[m] = 0;
  all.add(report);
  screen.note(testing::render(report, "troupe simulate --replay " + flags.replay));
  for (const auto& remark : remarks(what, report)) screen.note("note: " + remark);
  if (flags.until > report.events)
    screen.note(
        fmt::format("note: --until {}: the run has only {} events", flags.until, report.events));
  if (!flags.chart.empty()) write_chart(flags.chart, report);
  std::vector<std::string> cases;
  if (!report.violations.empty()) {
    all.violating.push_back(report);
    cases.push_back(text);
  }
  const auto s = summary_of(all, cases, report.weights_digest);
  flags.json ? screen.result(s.dump()) : say(s, screen);
  return {all.clean() ? exits::done : exits::job_failed};
}

}  // namespace

void add_simulate(const command& app, const context& around, const choose& chosen) {
  const auto command =
      app.add_command("simulate", "runs jobs in the simulator, with schedules and faults");
  auto f = std::make_shared<simulate_flags>();
  const auto ranks = command.add("--ranks", f->ranks, "of each job (8)");
  const auto steps = command.add("--steps", f->steps, "optimizer steps of each job (20)");
  const auto seed = command.add("--seed", f->seed, "of the simulation (0)").check(wrong_with_seed);
  const auto seeds =
      command.add("--seeds", f->seeds, "a run for each of A..B").type_name("A..B").excludes(seed);
  const auto payload =
      command.add("--payload", f->payload, "what ranks sum (integers)")
          .type_name(around.learning.tensors() ? "integers|tensors|none" : "integers|none");
  const auto scheduler =
      command.add("--scheduler", f->scheduler, "order of deliveries (portfolio; none: fifo)")
          .type_name("fifo|random|pct|portfolio");
  const auto faults =
      command.add("--faults", f->faults, "which may occur: names with commas, or all (none)")
          .type_name("SPEC");
  const auto swarm = command.add_flag("--swarm", f->swarm, "each run draws its job and its faults")
                         .excludes(faults);
  const auto restarts = command.add("--max-restarts", f->max_restarts,
                                    "how often each job may form a new generation (0)");
  const auto repeat =
      command.add_flag("--twins", f->determinism_checks,
                       "repeat each run with other memory and addresses, and compare");
  const auto seconds =
      command.add("--seconds", f->seconds, "end after this many seconds of this machine");
  const auto file = [](const std::string& path) {
    return path.empty() ? std::string{"give the path of a file, not an empty text"} : std::string{};
  };
  const auto replay =
      command.add("--replay", f->replay, "run a case again").type_name("CASE").check(file);
  command.add("--until", f->until, "stop before this event of it, under a debugger")
      .type_name("EVENT")
      .needs(replay);
  command.add("--chart", f->chart, "write the last moments as a Mermaid diagram")
      .type_name("FILE")
      .check(file);
  const auto shrink = command.add_flag("!--no-shrink", f->shrink, "leave violations as they are");
  // A case contains all of these.
  for (const auto& said : {ranks, steps, seed, seeds, payload, scheduler, faults, swarm, restarts,
                           repeat, seconds, shrink})
    replay.excludes(said);
  command.add_flag("--json", f->json, "one object");
  command.on_chosen([=, &around] {
    chosen([=, &around] {
      check_chart(*f);
      return f->replay.empty() ? campaign(*f, around) : again(*f, around);
    });
  });
}

}  // namespace troupe::program
