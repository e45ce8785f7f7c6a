#include "apps/bench/recovery.hpp"
#include "apps/bench/timing.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/troupe/cmd_bench.hpp"
#include "apps/troupe/recipe_text.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string_view>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

constexpr std::int32_t ranks = 4;
constexpr std::int64_t batch_size = 16;
constexpr std::int64_t samples = 32 * ranks * batch_size;  // 32 steps in an epoch

// What takes the place of a lost process. Each case is one line of the result.
struct recovery_case {
  const char* on_loss;
  int spares;
  int kills;     // of one job, at most
  double pause;  // as recovery_question::pause: until a spare is ready
};
constexpr std::array variants{recovery_case{"replace", 0, 10'000, 0},
                              recovery_case{"replace", 1, 10'000, 2},
                              recovery_case{"shrink", 0, ranks / 2, 0}};

struct recovery_flags {
  recovery_question what;
  bool json = false;
};

job recovery_job(const context& around, const recovery_case& how, int rounds) {
  const learning trained{.model = recovery_model,
                         .hidden = {256, 128},
                         .data = "synthetic",
                         .samples = samples,
                         .evaluation_samples = batch_size,
                         .optimizer = "sgd",
                         .learning_rate = recovery_rate};
  job what;
  what.recipe = around.learning.recipe(trained);
  what.recipe_text = recipe_text(trained);
  auto& o = what.options;
  o.ranks = ranks;
  o.batch_size = batch_size;
  o.placement = placement_kind::processes;
  o.max_epochs = -1;
  o.limit_val_batches = std::int64_t{0};
  o.num_sanity_val_steps = 0;
  o.checkpoint.every_epoch = false;
  o.elastic.max_restarts = rounds + ranks;
  o.elastic.spares = how.spares;
  if (std::string_view{how.on_loss} == "shrink") o.elastic.on_loss = elastic_options::loss::shrink;
  return what;
}

double worst(const std::vector<double>& all) { return *std::ranges::max_element(all); }

ordered_json milliseconds(const std::vector<double>& all) {
  const auto rounded = [](double x) { return std::round(x * 10) / 10; };
  return {{"median", rounded(summary(all).median)}, {"worst", rounded(worst(all))}};
}

std::string figures_json(const recovery_case& how, int rounds, const recovery_figures& f) {
  return ordered_json{{"schema", "troupe.bench_recovery/1"},
                      {"placement", "processes"},
                      {"on_loss", how.on_loss},
                      {"spares", how.spares},
                      {"ranks", ranks},
                      {"rounds", rounds},
                      {"milliseconds",
                       {{"known", milliseconds(f.known)},
                        {"released", milliseconds(f.released)},
                        {"next_step", milliseconds(f.next_step)}}},
                      {"steps_redone", f.steps_redone},
                      {"samples_lost", f.samples_lost},
                      {"samples_doubled", f.samples_doubled}}
      .dump();
}

std::string as_text(const recovery_case& how, int rounds, const recovery_figures& f) {
  const auto line = [](const char* name, const std::vector<double>& all) {
    return fmt::format("  {:<10}{:>8.1f} ms, worst {:.1f} ms\n", name, summary(all).median,
                       worst(all));
  };
  return fmt::format("kill -9 of one of {} ranks, {} with {} spares; medians of {} rounds\n", ranks,
                     how.on_loss, how.spares, rounds) +
         line("known", f.known) + line("released", f.released) + line("next step", f.next_step) +
         fmt::format("  {} steps redone, {} samples lost, {} samples doubled", f.steps_redone,
                     f.samples_lost, f.samples_doubled);
}

// One job after the other, each with as many kills as it may have.
recovery_figures measure(const context& around, const recovery_case& how, int rounds) {
  recovery_figures all;
  for (int left = rounds; left > 0;) {
    const auto kills = std::min(left, how.kills);
    left -= kills;
    const auto some = bench_recovery({kills, samples, how.pause}, recovery_job(around, how, kills),
                                     around.world());
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.known, some.known);
    append(all.released, some.released);
    append(all.next_step, some.next_step);
    all.steps_redone += some.steps_redone;
    all.samples_lost += some.samples_lost;
    all.samples_doubled += some.samples_doubled;
  }
  return all;
}

program_end bench(const recovery_flags& flags, const context& around) {
  const auto rounds = flags.what.rounds;
  check_range("--rounds", rounds, 1, 10'000);
  for (const auto& how : variants) {
    const auto figures = measure(around, how, rounds);
    around.screen.result(flags.json ? figures_json(how, rounds, figures)
                                    : as_text(how, rounds, figures));
  }
  return {};
}

}  // namespace

void add_bench_recovery(const command& bench_app, const context& around, const choose& chosen) {
  const auto command = bench_app.add_command(
      "recovery",
      "kill -9 of one of four rank processes: milliseconds until the job knows it, until the other "
      "ranks are released, and until the next committed step");
  auto flags = std::make_shared<recovery_flags>();
  command.add("--rounds", flags->what.rounds, "kills (20)");
  command.add_flag("--json", flags->json, "one object per case");
  command.on_chosen([=, &around] { chosen([=, &around] { return bench(*flags, around); }); });
}

}  // namespace troupe::program
