#include "apps/troupe/prometheus_text.hpp"

#include "apps/troupe/build_facts.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <string_view>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

struct family {
  const char* field;
  const char* name;
  const char* type;
  const char* help;
};

constexpr std::array families{
    family{"step", "troupe_step", "gauge", "Optimizer steps done"},
    family{"epoch", "troupe_epoch", "gauge", "The epoch that is trained, from 0"},
    family{"samples", "troupe_samples_total", "counter", "Training samples consumed by all ranks"},
    family{"samples_per_second", "troupe_samples_per_second", "gauge",
           "Samples per second over the last seconds"},
    family{"ranks", "troupe_ranks", "gauge", "Processes or threads that compute shards"},
    family{"shards", "troupe_shards", "gauge", "Shards of the job"},
    family{"generation", "troupe_generation", "gauge", "The newest generation"},
    family{"restarts", "troupe_restarts_total", "counter", "New generations after a failure"},
    family{"restarts_left", "troupe_restarts_left", "gauge", "Restarts that are still allowed"},
    family{"failures", "troupe_failures_total", "counter", "Failures that were reported"},
    family{"checkpoints", "troupe_checkpoints_total", "counter", "Checkpoints that were written"},
    family{"checkpoint_step", "troupe_checkpoint_step", "gauge", "Step of the newest checkpoint"}};

std::string label(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n')
      escaped += "\\n";
    else
      escaped += c;
  }
  return '"' + escaped + '"';
}

std::string number_text(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", x);
}

std::string head(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

std::string text_at(const ordered_json& status, const char* name) {
  const auto found = status.find(name);
  return found != status.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

}  // namespace

std::string prometheus_text(const ordered_json& status, const std::string& run) {
  auto text =
      head("troupe_info", "gauge", "The program and its run") +
      fmt::format("troupe_info{{version={},run={}}} 1\n", label(build_facts::version), label(run)) +
      head("troupe_state", "gauge", "What the job does now") +
      fmt::format("troupe_state{{stage={},state={}}} 1\n", label(text_at(status, "stage")),
                  label(text_at(status, "state")));
  for (const auto& one : families) {
    const auto found = status.find(one.field);
    if (found == status.end() || !found->is_number()) continue;
    text += head(one.name, one.type, one.help) +
            fmt::format("{} {}\n", one.name, number_text(found->get<double>()));
  }
  const auto metrics = status.find("metrics");
  if (metrics == status.end() || metrics->empty()) return text;
  text += head("troupe_metric", "gauge", "The last value of a metric that the run logs");
  for (const auto& [name, value] : metrics->items())
    if (value.is_number())
      text += fmt::format("troupe_metric{{name={}}} {}\n", label(name),
                          number_text(value.get<double>()));
  return text;
}

}  // namespace troupe::program
