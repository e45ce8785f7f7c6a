#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/exit_status.hpp"
#include "apps/troupe/job_parts.hpp"
#include "apps/troupe/job_runner.hpp"
#include "apps/troupe/launched.hpp"
#include "apps/troupe/setting_flags.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

// The callbacks that a search keeps: others end it, average weights, or write files.
bool accumulates(std::string_view callback) {
  return callback.substr(0, callback.find(',')) == "gradient_accumulation_scheduler";
}

// Short fits with the settings of a call. They leave no files.
class tuning {
public:
  tuning(const schema& all, const given& what, const context& around)
      : around_(around), settings_(settled_on(around.screen, join(all, what))) {
    for (const auto* key : {"run_dir", "resume"}) refuse(key);
    note_unused(around.screen, settings_, "tune",
                {"trace", "trace_hooks", "metrics_port", "profiler", "logger"});
    refuse_copies(around.cluster, around.place);
    take_place(settings_, around.place);
    if (around.place) around.screen.note(place_note(*around.place, settings_));
  }

  const program::settings& settings() const { return settings_; }
  console& screen() const { return around_.screen; }
  const catalog& models() const { return around_.learning; }

  // A fit whose parts `change` changes before it runs.
  job_outcome run(const std::function<void(learning&, trainer_options&)>& change) {
    auto fit = shared_job(settings_, around_, [&](learning& of, trainer_options& options) {
      std::erase_if(of.callbacks, [](const std::string& one) { return !accumulates(one); });
      of.searches = true;
      change(of, options);
    });
    add_init_weights(settings_, fit);
    take_place(fit, around_.place);
    fit.purpose = stage::train;
    for (auto& make : progress_of(settings_, around_)) fit.observers.push_back(std::move(make));
    return runner_.run(std::move(fit));
  }

  // The search goes on unless a signal ended the fit.
  bool interrupted() { return runner_.stopped(); }
  program_end ended(const job_outcome& by) {
    report_troubles(around_.screen, by);
    return {exit_status_of(by, runner_.signal()), !by.survivors.empty()};
  }

  // Prints what was found: as JSON, or as a line that says how to use it. `key`: the setting, which
  // a user's model need not have.
  void print(ordered_json found, const std::string& name, std::string_view key,
             const std::string& number) const {
    job_runner::ignore_later_signals();
    if (settings_.flag("json"))
      return screen().result(found.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    const auto* one = find_setting(settings_.all(), key);
    screen().result(fmt::format("{} {}", name, number) +
                    (one ? fmt::format("; use it with {} {}", one->flag, number) : ""));
  }

private:
  // Variables last for many calls, so one that this call has no use for is no error.
  void refuse(const char* key) const {
    if (!settings_.is_set(key)) return;
    const auto& from = settings_.at(key).origin;
    const std::string why{"tune begins with fresh weights and leaves no folder"};
    if (from.from == source::variable)
      return screen().note(fmt::format("note: the {} has no effect: {}", from.text(), why));
    throw user_error(errc::bad_usage, fmt::format("{}: leave out {} ({}); the settings of a run "
                                                  "are given by --config RUN_DIR/config.toml",
                                                  why, key, from.text()));
  }

  const context& around_;
  program::settings settings_;
  job_runner runner_{around_.world(), [this](int, int count) {
                       around_.screen.note(count == 1 ? "stopping the search" : "ending now");
                     }};
};

void refuse_without_steps(const job_outcome& outcome) {
  if (outcome.loop.steps > 0) return;
  throw user_error(errc::bad_configuration,
                   "a fit of the search made no step, because it had no training batches: raise "
                   "--limit-train-batches, or leave it out");
}

constexpr std::int64_t most_tune_steps = 1'000'000;  // losses and rates of all steps are kept

void refuse_infinite(std::string_view flag, double number) {
  if (!std::isfinite(number))
    throw user_error(errc::bad_usage, fmt::format("{} {}: must be finite", flag, number));
}

program_end tune_rate(const schema& all, const given& what, const context& around,
                      const rate_search& how) {
  check_range("--steps", how.steps, 1, most_tune_steps);
  refuse_infinite("--min-rate", how.min);
  refuse_infinite("--max-rate", how.max);
  refuse_infinite("--stop-at", how.stop_at);
  tuning tune{all, what, around};
  const auto outcome = tune.run(
      [&](learning& of, trainer_options& options) { tune.models().search_rate(how, of, options); });
  if (!outcome.ok() || tune.interrupted()) return tune.ended(outcome);
  refuse_without_steps(outcome);
  const auto curve = tune.models().rates_found(outcome);
  if (!curve.suggestion)
    throw user_error(errc::job_failed,
                     fmt::format("{} losses are finite, too few to find a learning rate, as the "
                                 "first 10 steps and the last one do not count: raise --steps, or "
                                 "lower --max-rate",
                                 std::ranges::count_if(curve.losses,
                                                       [](double x) { return std::isfinite(x); })));
  tune.print({{"schema", "troupe.tune/1"},
              {"command", "learning-rate"},
              {"learning_rate", *curve.suggestion},
              {"rates", curve.rates},
              {"losses", curve.losses}},
             "learning rate", "optimizer.learning_rate", fmt::format("{:.6g}", *curve.suggestion));
  return {};
}

// Ends a search from within.
struct search_ended {
  std::int64_t found = 0;  // 0: nothing
};

// Each epoch had one step, and that was not full: larger sizes would not differ.
bool holds_all_samples(const job_outcome& of, std::int64_t full_step) {
  return of.loop.epoch >= of.loop.steps && of.loop.samples < of.loop.steps * full_step;
}

// All batches of an epoch but its last one are full.
void refuse_own_batch_size(const job_outcome& of, std::int64_t full_batch) {
  const auto& loop = of.loop;
  const auto batches = loop.earlier_batches + loop.batch;
  const auto least = (batches - loop.epoch) * full_batch + loop.epoch;
  if (loop.samples >= least && loop.samples <= batches * full_batch) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("the data have a batch size of their own, on which batch_size has "
                               "no effect: {} batches of at most {} samples have {}; leave "
                               "data_loading::batch_size out of the data for the search",
                               batches, full_batch, loop.samples));
}

program_end tune_size(const schema& all, const given& what, const context& around,
                      const size_search& how, std::int64_t steps) {
  check_range("--steps", steps, 1, most_tune_steps);
  tuning tune{all, what, around};
  job_outcome last;
  std::int64_t fits = 0;
  std::int64_t shares = 1;  // of a batch: each has `size` samples
  const auto run = [&](std::int64_t size) {
    last = tune.run([&](learning&, trainer_options& options) {
      options.batch_size = size;
      shares = options.elastic.shards.value_or(options.ranks);
      options.max_epochs = -1;
      options.max_steps = steps;
      options.limit_val_batches = std::int64_t{0};
      options.checkpoint.enabled = false;
      options.stop_early.clear();
      options.elastic.max_restarts = 0;
      options.elastic.spares = 0;
    });
    if (tune.interrupted()) throw search_ended{};
    if (!last.ok() && last.failed_with->record.code == errc::bad_configuration && fits > 0) {
      tune.screen().note(
          fmt::format("batch size {}: refused ({})", size, last.failed_with->record.what));
      throw search_ended{fits};
    }
    if (last.ok()) refuse_without_steps(last);
    if (last.ok()) refuse_own_batch_size(last, size * shares);
    if (last.ok() && holds_all_samples(last, size * shares)) {
      tune.screen().note(fmt::format("batch size {}: holds all training samples", size));
      throw search_ended{fits > 0 ? fits : size};
    }
    if (last.ok()) fits = size;
    tune.screen().note(fmt::format("batch size {}: {}", size, last.ok() ? "fits" : "failed"));
    return last;
  };
  std::int64_t found = 0;
  try {
    found = tune.models().search_batch_size(how, run);
  } catch (const search_ended& by) {
    found = by.found;
    if (found == 0) return tune.ended(last);
  } catch (const user_error&) {
    throw;
  } catch (...) {
    if (last.ok()) throw;
    return tune.ended(last);
  }
  tune.print({{"schema", "troupe.tune/1"}, {"command", "batch-size"}, {"batch_size", found}},
             "batch size", "batch_size", fmt::format("{}", found));
  return {};
}

std::string wrong_with_share(const std::string& text) {
  char* end = nullptr;
  const auto number = std::strtod(text.c_str(), &end);
  return *end == '\0' && number >= 0 && number < 1 ? "" : "must be a number from 0 and below 1";
}

// A search with all flags of a fit.
void add_search(const command& to, const schema& all, const context& around, const choose& chosen,
                const std::function<program_end(given what)>& search) {
  const auto flags = std::make_shared<setting_flags>();
  flags->add(to, all);
  to.on_chosen([=, &around] {
    chosen([=, &around] {
      if (const auto end = around.take_rank()) return *end;
      return search(flags->taken(around.variables));
    });
  });
}

}  // namespace

void add_tune(const command& app, const schema& all, const context& around, const choose& chosen) {
  const auto tune = app.add_command("tune", "finds a learning rate or a batch size by short fits")
                        .require_command();
  const auto one_of = [](std::string first, std::string second) {
    return [=](const std::string& text) {
      return text == first || text == second ? "" : fmt::format("must be {} or {}", first, second);
    };
  };

  const auto rates = std::make_shared<rate_search>();
  const auto growth = std::make_shared<std::string>("exponential");
  const auto rate = tune.add_command(
      "learning-rate", "raises the rate step by step; suggests where the loss falls most steeply");
  rate.add("--min-rate", rates->min, "the first rate (1e-8)").type_name("X");
  rate.add("--max-rate", rates->max, "the last rate (1)").type_name("X");
  rate.add("--steps", rates->steps, "optimizer steps (100)").type_name("N");
  rate.add("--growth", *growth, "from one rate to the next: times or plus a constant")
      .type_name("exponential|linear")
      .check(one_of("exponential", "linear"));
  rate.add("--stop-at", rates->stop_at, "ends at so many times the least loss (4); 0: never")
      .type_name("X");
  add_search(rate, all, around, chosen, [=, &all, &around](const given& what) {
    rates->linear = *growth == "linear";
    return tune_rate(all, what, around, *rates);
  });

  const auto sizes = std::make_shared<size_search>();
  const auto search = std::make_shared<std::string>("power");
  const auto steps = std::make_shared<std::int64_t>(3);
  const auto size = tune.add_command(
      "batch-size", "doubles the size until a fit runs out of memory, or until --max-size");
  size.add("--first-size", sizes->first, "the first one that is tried (2)").type_name("N");
  size.add("--max-size", sizes->max, "the largest one that is tried (8192)").type_name("N");
  size.add("--trials", sizes->trials, "fits at most (25)").type_name("N");
  size.add("--steps", *steps, "optimizer steps of each fit (3)").type_name("N");
  size.add("--search", *search, "bisect: then between the last two")
      .type_name("power|bisect")
      .check(one_of("power", "bisect"));
  size.add("--margin", sizes->margin, "bisect: the share that is taken off in the end (0.05)")
      .type_name("X")
      .check(&wrong_with_share);
  add_search(size, all, around, chosen, [=, &all, &around](const given& what) {
    sizes->bisects = *search == "bisect";
    return tune_size(all, what, around, *sizes, *steps);
  });
}

}  // namespace troupe::program
