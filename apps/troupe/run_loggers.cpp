#include "apps/troupe/run_loggers.hpp"

#include "apps/troupe/config_text.hpp"
#include "apps/troupe/run_folder.hpp"
#include "backends/telemetry/csv_logger.hpp"
#include "backends/telemetry/metrics_once.hpp"
#include "backends/telemetry/rank_figures.hpp"
#include "backends/telemetry/tensorboard_logger.hpp"

#include <utility>

namespace troupe::program {

namespace {

bool is_figure_of_run(std::string_view metric) {
  return metric.starts_with("run/learning_rate") || metric == "run/samples_per_second" ||
         metric == "run/process_memory_mib";
}

// Hands on the metrics that `wanted` takes.
class some_metrics : public observer {
public:
  some_metrics(std::unique_ptr<observer> inner, std::function<bool(std::string_view)> wanted)
      : inner_(std::move(inner)), wanted_(std::move(wanted)) {}
  void on(const observation& what) override {
    const auto* metrics = std::get_if<seen::metrics>(&what);
    if (!metrics) return inner_->on(what);
    auto rest = *metrics;
    std::erase_if(rest.logged, [this](const auto& one) { return !wanted_(one.first); });
    if (!rest.logged.empty()) inner_->on(rest);
  }
  void finish(std::uint64_t dropped) override { inner_->finish(dropped); }

private:
  std::unique_ptr<observer> inner_;
  std::function<bool(std::string_view)> wanted_;
};

using make_logger = std::function<std::unique_ptr<observer>()>;

// Nothing: the setting is not set.
std::optional<tensorboard_logger::setting> hparam_of(const setting_value& value) {
  if (std::holds_alternative<std::monostate>(value)) return std::nullopt;
  if (const auto* x = std::get_if<bool>(&value)) return *x;
  if (const auto* x = std::get_if<std::int64_t>(&value)) return static_cast<double>(*x);
  if (const auto* x = std::get_if<double>(&value)) return *x;
  if (const auto* x = std::get_if<std::string>(&value)) return *x;
  return toml_text(value);
}

make_logger tensorboard_of(const settings& s, const logged_job& about, const wall_clock& wall) {
  tensorboard_logger::facts facts;
  facts.resumed_at = about.resumed_at;
  if (!about.is_test) {
    facts.config = saved_configuration(s);
    for (const auto& one : s.all()) {
      if (!one.saved) continue;
      if (auto value = hparam_of(s.at(one.key).value)) facts.settings.emplace(one.key, *value);
    }
  }
  return [facts = std::move(facts), folder = about.folder, wall] {
    return std::make_unique<tensorboard_logger>(folder, facts, wall);
  };
}

// What is around a logger, whatever it writes.
observer_factory around(const make_logger& make, const logged_job& about,
                        const trouble_report& report, const std::string& file,
                        std::function<bool(std::string_view)> wanted) {
  return report.around(
      [make, restarts = about.restarts, wanted = std::move(wanted)] {
        std::unique_ptr<observer> logger = std::make_unique<some_metrics>(make(), wanted);
        if (restarts) logger = std::make_unique<metrics_once>(std::move(logger));
        return logger;
      },
      file);
}

}  // namespace

bool hidden_figures::hides(std::string_view metric) const {
  return (of_ranks && rank_figures::is_one(metric)) || (of_run && is_figure_of_run(metric));
}

std::vector<observer_factory> loggers_of(const settings& s, const logged_job& about,
                                         const trouble_report& report, const wall_clock& wall) {
  std::vector<observer_factory> all;
  const auto csv = [&](const char* name, std::function<bool(std::string_view)> wanted) {
    const auto path = (std::filesystem::path{about.folder} / name).string();
    all.push_back(around([path] { return std::make_unique<csv_logger>(path); }, about, report, path,
                         std::move(wanted)));
  };
  const auto shown = [hidden = about.hidden](std::string_view name) { return !hidden.hides(name); };
  for (const auto& name : s.get<std::vector<std::string>>("logger")) {
    if (name == "csv") csv(metrics_file, shown);
    if (name == "tensorboard")
      all.push_back(around(tensorboard_of(s, about, wall), about, report,
                           about.folder + ": the file for TensorBoard", shown));
  }
  if (about.hidden.of_run) csv(figures_file, is_figure_of_run);
  return all;
}

}  // namespace troupe::program
