#include "apps/bench/fit.hpp"
#include "apps/troupe/cmd_bench.hpp"
#include "apps/troupe/exit_status.hpp"
#include "apps/troupe/job_parts.hpp"
#include "apps/troupe/job_runner.hpp"
#include "apps/troupe/setting_flags.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

// Fit's settings, with defaults that leave nothing but training: no evaluation, no files.
schema bench_schema(const schema& all) {
  const std::array<std::pair<const char*, setting_value>, 6> other{{
      {"max_epochs", std::int64_t{1000}},
      {"max_steps", std::int64_t{150}},
      {"num_sanity_val_steps", std::int64_t{0}},
      {"limit_val_batches", std::int64_t{0}},
      {"limit_test_batches", std::int64_t{0}},
      {"progress", std::string{"never"}},
  }};
  const std::array hidden{"run_dir", "resume", "trace_hooks", "progress", "fault", "init_weights"};
  auto changed = all;
  for (auto& one : changed) {
    for (const auto& [key, fallback] : other)
      if (one.key == key) one.fallback = fallback;
    if (std::find(hidden.begin(), hidden.end(), one.key) != hidden.end()) one.flag.clear();
  }
  return changed;
}

// For `auto`: the first usable communicator of the placement. The job refuses a communicator that
// it cannot use.
std::string communicator_of(const ports& world, const trainer_options& options) {
  if (options.communicator != communicator_kind::automatic) return options.communicator.name;
  const auto first = [](const auto& kinds) {
    for (const auto& one : kinds)
      if (one->unusable().empty()) return std::string{one->name()};
    return std::string{"auto"};
  };
  return options.placement == placement_kind::processes ? first(world.rendezvous_kinds)
                                                        : first(world.communicators);
}

class fit_bench {
public:
  fit_bench(const settings& s, const context& around) : settings_(s), around_(around) {}

  // Empty when the job did not finish; `end` has its outcome.
  std::optional<fit_figures> run(std::int32_t ranks, bool exchange = true) {
    auto work = shared_job(settings_, around_);
    work.options.ranks = ranks;
    if (!exchange) {
      work.options.gradients.comm_hook = comm_hook_kind::noop;
      work.options.gradients.fused_step = false;
    }
    work.options.checkpoint.enabled = false;
    auto world = around_.world();
    auto communicator = communicator_of(world, work.options);
    job_runner runner{std::move(world), [&](int signal, int count) {
                        around_.screen.note(signal_note(signal, count, left_by_stop::nothing));
                      }};
    const auto outcome = runner.run(std::move(work));
    if (outcome.status != job_outcome::ending::finished) {
      report_troubles(around_.screen, outcome);
      end = {exit_status_of(outcome, runner.signal()), !outcome.survivors.empty()};
      return std::nullopt;
    }
    const auto& seen = outcome.figures;
    if (seen.seconds_training <= 0)
      throw user_error(errc::bad_configuration,
                       "the job ended before there was something to measure: train for more than "
                       "three steps (--max-steps)");
    const auto& waiting = outcome.waiting_shares;
    return fit_figures{static_cast<double>(seen.samples_training) / seen.seconds_training,
                       waiting.empty() ? 0 : *std::max_element(waiting.begin(), waiting.end()),
                       std::move(communicator)};
  }

  program_end end;

private:
  const settings& settings_;
  const context& around_;
};

std::string row_json(const settings& s, const fit_row& row, int rounds) {
  return ordered_json{{"schema", "troupe.bench_fit/1"},
                      {"model", s.text("model.name")},
                      {"ranks", s.integer("ranks")},
                      {"communicator", row.communicator},
                      {"samples_per_second", row.all_ranks.median},
                      {"spread", row.all_ranks.spread},
                      {"one_rank_samples_per_second", row.one_rank.median},
                      {"one_rank_spread", row.one_rank.spread},
                      {"speed_up", row.speed_up},
                      {"speed_up_spread", row.speed_up_spread},
                      {"waiting_share", row.waiting.median},
                      {"apart_samples_per_second", row.apart.median},
                      {"apart_speed_up", row.apart_speed_up},
                      {"apart_waiting_share", row.apart_waiting.median},
                      {"rounds", rounds}}
      .dump();
}

std::string as_text(const settings& s, const fit_row& row, int rounds) {
  return fmt::format(
      "{}, {} ranks ({}), batch {} each; medians of {} rounds\n"
      "  1 rank   {:>9.0f} samples/s, spread {:.0f}%\n"
      "  {} ranks  {:>9.0f} samples/s, spread {:.0f}%\n"
      "  speed-up {:.2f}, waiting share {:.1f}%\n"
      "  without sums of gradients: {:.0f} samples/s, speed-up {:.2f}, waiting share {:.1f}%",
      s.text("model.name"), s.integer("ranks"), row.communicator, s.integer("batch_size"), rounds,
      row.one_rank.median, 100 * row.one_rank.spread, s.integer("ranks"), row.all_ranks.median,
      100 * row.all_ranks.spread, row.speed_up, 100 * row.waiting.median, row.apart.median,
      row.apart_speed_up, 100 * row.apart_waiting.median);
}

program_end bench(const settings& s, int rounds, const context& around) {
  check_range("--rounds", rounds, 1, 1000);
  if (s.flag("quiet")) around.screen.be_quiet();
  const auto ranks = static_cast<std::int32_t>(s.integer("ranks"));
  fit_bench jobs{s, around};
  std::vector<fit_figures> one_rank;
  std::vector<fit_figures> all_ranks;
  std::vector<fit_figures> apart;
  for (int round = 0; round < rounds; ++round) {
    const auto one = jobs.run(1);
    if (!one) return jobs.end;
    const auto all = ranks == 1 ? one : jobs.run(ranks);
    if (!all) return jobs.end;
    const auto alone = ranks == 1 ? one : jobs.run(ranks, false);
    if (!alone) return jobs.end;
    around.screen.note(fmt::format("round {}: {:.0f} and {:.0f} samples/s", round + 1,
                                   one->samples_per_second, all->samples_per_second));
    one_rank.push_back(*one);
    all_ranks.push_back(*all);
    apart.push_back(*alone);
  }
  const auto row = fit_summary(one_rank, all_ranks, apart);
  around.screen.result(s.flag("json") ? row_json(s, row, rounds) : as_text(s, row, rounds));
  return {};
}

}  // namespace

void add_bench_fit(const command& bench_app, const schema& all, const context& around,
                   const choose& chosen) {
  const auto command =
      bench_app.add_command("fit",
                            "training on one rank and on several, in turn: samples per second, "
                            "speed-up, waiting; and without sums of gradients, for their cost");
  auto changed = std::make_shared<const schema>(bench_schema(all));
  auto flags = std::make_shared<setting_flags>();
  auto rounds = std::make_shared<int>(3);
  flags->add(command, *changed);
  command.add("--rounds", *rounds, "fits of one rank, and as many of all ranks (3)");
  command.on_chosen([=, &around] {
    chosen([=, &around] {
      auto result = join(*changed, flags->taken(around.variables));
      for (const auto& note : result.notes) around.screen.note(note);
      return bench(settled(std::move(result)), *rounds, around);
    });
  });
}

}  // namespace troupe::program
