#include "apps/http/prometheus_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <string_view>

namespace troupe::program {

std::string prometheus_label(std::string_view text) {
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

std::string prometheus_head(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

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

std::string number_text(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", x);
}

std::string text_at(const ordered_json& status, const char* name) {
  const auto found = status.find(name);
  return found != status.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

// `a="b"`, or both with a comma.
std::string joined(const std::string& first, const std::string& second) {
  return first.empty() || second.empty() ? first + second : first + "," + second;
}

std::string sample(const char* name, const std::string& labels, const std::string& value) {
  return labels.empty() ? fmt::format("{} {}\n", name, value)
                        : fmt::format("{}{{{}}} {}\n", name, labels, value);
}

using all_statuses = std::vector<labelled_status>;

std::string family_text(const family& one, const all_statuses& all) {
  std::string text;
  for (const auto& [labels, status] : all) {
    const auto found = status.find(one.field);
    if (found == status.end() || !found->is_number()) continue;
    text += sample(one.name, labels, number_text(found->get<double>()));
  }
  return text.empty() ? text : prometheus_head(one.name, one.type, one.help) + text;
}

std::string metrics_text_of(const all_statuses& all) {
  std::string text;
  for (const auto& [labels, status] : all) {
    const auto metrics = status.find("metrics");
    if (metrics == status.end() || !metrics->is_object()) continue;
    for (const auto& [name, value] : metrics->items())
      if (value.is_number() || value.is_null())  // JSON has null for what is not finite
        text += sample("troupe_metric", joined(labels, "name=" + prometheus_label(name)),
                       number_text(value.is_null() ? NAN : value.get<double>()));
  }
  if (text.empty()) return text;
  return prometheus_head("troupe_metric", "gauge", "The last value of a metric that the run logs") +
         text;
}

}  // namespace

std::string prometheus_text(const all_statuses& all) {
  std::string states;
  for (const auto& [labels, status] : all)
    states += sample(
        "troupe_state",
        joined(labels, fmt::format("stage={},state={}", prometheus_label(text_at(status, "stage")),
                                   prometheus_label(text_at(status, "state")))),
        "1");
  if (states.empty()) return states;
  auto text = prometheus_head("troupe_state", "gauge", "What the job does now") + states;
  for (const auto& one : families) text += family_text(one, all);
  return text + metrics_text_of(all);
}

}  // namespace troupe::program
