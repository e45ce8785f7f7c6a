#include "backends/torch/callback_catalog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "backends/torch/report_monitor.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/tuner.hpp"

namespace troupe {

namespace {

/// In place of the options' names: each is the number of an epoch.
constexpr std::string_view epoch_option = "EPOCH";

/// The options of one text.
class given_options {
public:
  given_options(std::string_view text, std::string_view rest, const callback_entry& of)
      : text_(text) {
    while (!rest.empty()) {
      const auto one = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      const auto equals = one.find('=');
      const auto key = one.substr(0, equals);
      if (equals == one.npos || !is_option(key, of))
        refuse(fmt::format("\"{}\" is no option of {}: {}", one, of.name,
                           of.options.empty() ? std::string{"it has none"}
                                              : fmt::format("give KEY=VALUE with one of {}",
                                                            fmt::join(of.options, ", "))));
      if (!values_.emplace(key, one.substr(equals + 1)).second)
        refuse(fmt::format("{} stands there twice: give it once", key));
    }
  }

  template <class Number>
  void read(std::string_view key, Number& into) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return;
    const auto word = found->second;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), into);
    bool is_one = error == std::errc{} && end == word.data() + word.size();
    // The norm of infinity is the largest gradient; a comparison with "not a number" is never true.
    if constexpr (std::is_floating_point_v<Number>) is_one = is_one && !std::isnan(into);
    if (!is_one)
      refuse(fmt::format("{} = \"{}\" is no number{}", key, word,
                         std::is_integral_v<Number> ? " without a point" : ""));
  }
  void read(std::string_view key, bool& into) const {
    if (const auto word = one_of(key, {"false", "true"}); !word.empty()) into = word == "true";
  }
  void read(std::string_view key, std::string& into) const {
    if (const auto found = values_.find(key); found != values_.end()) into = found->second;
  }
  /// Empty: not given.
  std::string_view one_of(std::string_view key, std::vector<std::string_view> words) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return {};
    if (std::ranges::find(words, found->second) == words.end())
      refuse(fmt::format("{} = \"{}\": use one of {}", key, found->second, fmt::join(words, ", ")));
    return found->second;
  }
  bool has(std::string_view key) const { return values_.contains(key); }
  void refuse_both(std::string_view one, std::string_view other) const {
    if (has(one) && has(other))
      refuse(fmt::format("{} and {} say the same: leave one of them out", one, other));
  }
  /// All options, whose keys are numbers.
  std::map<std::int64_t, std::int64_t> numbered() const {
    std::map<std::int64_t, std::int64_t> all;
    for (const auto& [key, word] : values_) {
      std::int64_t number = 0;
      std::from_chars(key.data(), key.data() + key.size(), number);
      read(key, all[number]);
    }
    return all;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw user_error(errc::bad_configuration, fmt::format("callback \"{}\": {}", text_, why));
  }

private:
  static bool is_option(std::string_view key, const callback_entry& of) {
    const auto known = [&](std::string_view one) {
      return std::ranges::find(of.options, one) != of.options.end();
    };
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    return known(key) ||
           (known(epoch_option) && error == std::errc{} && end == key.data() + key.size());
  }
  std::string_view text_;
  std::map<std::string_view, std::string_view> values_;
};

callback_factory make_rates(const given_options& given) {
  learning_rate_monitor_options how;
  if (given.one_of("every", {"step", "epoch"}) == "epoch")
    how.every = learning_rate_monitor_options::interval::epoch;
  given.read("log_momentum", how.log_momentum);
  given.read("log_weight_decay", how.log_weight_decay);
  return learning_rate_monitor{how};
}

callback_factory make_norms(const given_options& given) {
  gradient_norms_options how;
  given.read("norm", how.norm);
  given.read("each", how.each);
  return gradient_norms{how};
}

callback_factory make_throughput(const given_options& given) {
  throughput_monitor_options how;
  given.read("window", how.window);
  return throughput_monitor{how};
}

callback_factory make_timer(const given_options& given) {
  double seconds = 0;
  given.read("max_seconds", seconds);
  if (!(seconds > 0))
    given.refuse(fmt::format(
        "max_seconds is {}: give the longest time of a fit in seconds, above 0", seconds));
  timer_options how;
  how.max_time = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>{std::min(seconds, 1e9)});
  if (given.one_of("every", {"step", "epoch"}) == "epoch")
    how.every = timer_options::interval::epoch;
  return timer{how};
}

callback_factory make_exponential(const given_options& given) {
  exponential_moving_average_options how;
  given.read("decay", how.decay);
  given.read("every_n_steps", how.every_n_steps);
  given.read("starting_at_step", how.starting_at_step);
  return exponential_moving_average{how};
}

callback_factory make_stochastic(const given_options& given) {
  stochastic_weight_averaging_options how;
  double share = std::get<double>(how.start);
  std::int64_t epoch = 0;
  given.refuse_both("start", "start_epoch");
  given.read("start", share);
  if (given.has("start_epoch")) {
    given.read("start_epoch", epoch);
    how.start = epoch;
  } else {
    how.start = share;
  }
  if (given.has("learning_rate")) given.read("learning_rate", how.learning_rate.emplace());
  given.read("annealing_epochs", how.annealing_epochs);
  if (given.one_of("annealing", {"cosine", "linear"}) == "linear")
    how.how = stochastic_weight_averaging_options::annealing::linear;
  return stochastic_weight_averaging{how};
}

callback_factory make_stopping(const given_options& given) {
  early_stopping_options how;
  given.read("monitor", how.monitor);
  given.read("min_delta", how.min_delta);
  given.read("patience", how.patience);
  how.maximize = given.one_of("mode", {"min", "max"}) == "max";
  return early_stopping{how};
}

callback_factory make_checkpoints(const given_options& given) {
  checkpoint_policy how;
  given.read("every_epoch", how.every_epoch);
  if (given.has("every_n_steps")) given.read("every_n_steps", how.every_n_steps.emplace());
  if (given.has("every_n_minutes")) {
    double minutes = 0;
    given.read("every_n_minutes", minutes);
    if (!(minutes > 0))
      given.refuse(fmt::format("every_n_minutes is {}: give a number above 0", minutes));
    how.every = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double, std::ratio<60>>{std::min(minutes, 1e6)});
  }
  given.read("on_exception", how.on_exception);
  given.read("keep_last", how.keep_last);
  given.read("keep_best", how.keep_best);
  given.read("monitor", how.monitor);
  how.maximize = given.one_of("mode", {"min", "max"}) == "max";
  return model_checkpoint{how};
}

callback_factory make_accumulation(const given_options& given) {
  return gradient_accumulation_scheduler{given.numbered()};
}

callback_factory make_range(const given_options& given) {
  learning_rate_range_options how;
  given.read("min", how.min);
  given.read("max", how.max);
  given.read("steps", how.steps);
  if (given.one_of("growth", {"exponential", "linear"}) == "linear")
    how.mode = learning_rate_range_options::growth::linear;
  double stop_at = how.stop_at.value_or(0);
  given.read("stop_at", stop_at);
  how.stop_at = stop_at > 0 ? std::optional{stop_at} : std::nullopt;
  return learning_rate_range{how};
}

callback_factory make_profiler(const given_options& given) {
  torch_profiler_options how{.path = "torch_trace.json"};
  given.read("path", how.path);
  given.read("wait", how.wait);
  given.read("active", how.active);
  return torch_profiler{how};
}

callback_factory make_lazy_report(const given_options& given) {
  lazy_report_options how{.path = "lazy_report.txt"};
  given.read("path", how.path);
  return lazy_report{how};
}

callback_factory make_tensorboard(const given_options& given) {
  tensorboard_model_options how{.folder = "tensorboard"};
  given.read("folder", how.folder);
  given.read("every_n_epochs", how.every_n_epochs);
  return tensorboard_model{how};
}

struct maker {
  callback_entry about;
  callback_factory (*make)(const given_options& given);
};

const std::vector<maker>& makers() {
  static const std::vector<maker> all{
      {{"lr_monitor", "logs learning rates", {"every", "log_momentum", "log_weight_decay"}},
       make_rates},
      {{"gradient_norms", "logs the norms of gradients", {"norm", "each"}}, make_norms},
      {{"throughput", "logs samples and steps per second", {"window"}}, make_throughput},
      {{"device_stats", "logs memory and processor time of the process", {}},
       [](const given_options&) -> callback_factory { return device_stats_monitor{}; }},
      {{"timer", "ends the run after max_seconds of training", {"max_seconds", "every"}},
       make_timer},
      {{"ema",
        "validates and saves an exponential average of the weights",
        {"decay", "every_n_steps", "starting_at_step"}},
       make_exponential},
      {{"swa",
        "validates and saves the mean of the last epochs' weights",
        {"start", "start_epoch", "learning_rate", "annealing_epochs", "annealing"}},
       make_stochastic},
      {{"early_stopping",
        "ends the run when a metric no longer improves",
        {"monitor", "min_delta", "patience", "mode"}},
       make_stopping},
      {{"model_checkpoint",
        "decides when checkpoints are written, and which are kept",
        {"every_epoch", "every_n_steps", "every_n_minutes", "on_exception", "keep_last",
         "keep_best", "monitor", "mode"}},
       make_checkpoints},
      {{"gradient_accumulation_scheduler",
        "accumulates another number of batches from an epoch on",
        {epoch_option}},
       make_accumulation},
      {{"lr_range",
        "raises the learning rate step by step, as troupe tune does",
        {"min", "max", "steps", "growth", "stop_at"}},
       make_range},
      {{"ranks", "logs the throughput and the waiting of each rank", {}},
       [](const given_options&) -> callback_factory { return rank_monitor{}; }},
      {{"figures", "logs what reports show: learning rate, samples per second, memory", {}},
       [](const given_options&) -> callback_factory { return report_monitor{}; }},
      {{"tensorboard",
        "writes histograms of parameters and the graph of the loss for TensorBoard",
        {"folder", "every_n_epochs"}},
       make_tensorboard},
      {{"lazy_report",
        "logs graphs and compilations of the accelerator lazy, and writes a report",
        {"path"}},
       make_lazy_report},
      {{"torch_profiler", "records operators of a few batches", {"path", "wait", "active"}},
       make_profiler}};
  return all;
}

}  // namespace

const std::vector<callback_entry>& callback_catalog() {
  static const auto all = [] {
    std::vector<callback_entry> entries;
    for (const auto& one : makers()) entries.push_back(one.about);
    return entries;
  }();
  return all;
}

callback_factory named_callback(std::string_view text) {
  const auto name = text.substr(0, text.find(','));
  const auto& all = makers();
  const auto found = std::ranges::find_if(all, [&](const auto& x) { return x.about.name == name; });
  if (found == all.end()) {
    std::vector<std::string_view> names;
    for (const auto& one : all) names.push_back(one.about.name);
    throw user_error(errc::bad_configuration, fmt::format("unknown callback \"{}\": use one of {}",
                                                          name, fmt::join(names, ", ")));
  }
  const auto rest = text.substr(std::min(text.size(), name.size() + 1));
  return found->make(given_options{text, rest, found->about});
}

}  // namespace troupe
