#include "apps/troupe/run_files.hpp"

#include "apps/troupe/run_folder.hpp"
#include "backends/telemetry/csv_logger.hpp"
#include "backends/telemetry/line_file.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace troupe::program {

using nlohmann::ordered_json;

namespace {

std::string path_in(const std::string& folder, const char* name) {
  return (std::filesystem::path{folder} / name).string();
}

// Nothing if there is no such file, with a note.
std::optional<std::string> text_of(const std::string& folder, const char* name,
                                   const note_taker& note) {
  const auto path = path_in(folder, name);
  if (std::filesystem::is_regular_file(path)) return read_text_file(path);
  note(fmt::format("{} is not there", name));
  return std::nullopt;
}

// Calls `take` with each whole line of the journal that is of this kind.
void read_journal(const std::string& folder, std::string_view kind, const note_taker& note,
                  const std::function<void(std::string_view, const ordered_json&)>& take) {
  const auto text = read_text_file(path_in(folder, journal_file));
  std::size_t damaged = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto line = std::string_view{text}.substr(begin, end - begin);
    const auto read = ordered_json::parse(line, nullptr, false);
    const bool good = read.is_object() && read.contains("kind") && read["kind"].is_string();
    if (good && read["kind"] == kind)
      take(line, read);
    else if (!good && !line.empty())
      ++damaged;
    begin = end + 1;
  }
  if (damaged > 0)
    note(fmt::format("{}: lines that are damaged were left out: {}", journal_file, damaged));
}

// A step that is done again after a failure replaces what it reported before.
void add_value(metric_series& to, std::int64_t step, std::int64_t epoch, double value) {
  while (!to.step.empty() && to.step.back() >= step) {
    to.step.pop_back();
    to.epoch.pop_back();
    to.value.pop_back();
  }
  to.step.push_back(step);
  to.epoch.push_back(epoch);
  to.value.push_back(value);
}

std::vector<metric_series> journal_series(const std::string& folder, const note_taker& note) {
  std::vector<metric_series> all;
  std::map<std::string, std::size_t> at;
  read_journal(folder, "metrics", note, [&](std::string_view, const ordered_json& line) {
    if (!line.contains("step") || !line["step"].is_number_integer() || !line.contains("values") ||
        !line["values"].is_object())
      return;
    const bool known = line.contains("epoch") && line["epoch"].is_number_integer();
    const std::int64_t epoch = known ? line["epoch"].get<std::int64_t>() : 0;
    for (const auto& [name, value] : line["values"].items()) {
      const auto [found, fresh] = at.emplace(name, all.size());
      if (fresh) all.push_back({.name = name});
      add_value(all[found->second], line["step"].get<std::int64_t>(), epoch,
                value.is_number() ? value.get<double>() : std::nan(""));
    }
  });
  return all;
}

ordered_json number_or_null(const ordered_json& of, const char* name) {
  const auto found = of.find(name);
  return found != of.end() && found->is_number_integer() ? *found : ordered_json(nullptr);
}

// Nothing if the line is no event.
std::optional<ordered_json> event_of(std::string_view line) {
  const auto read = ordered_json::parse(line, nullptr, false);
  const auto is_text = [&](const char* name) {
    return read.contains(name) && read[name].is_string();
  };
  if (!read.is_object() || !is_text("time") || !is_text("event")) return std::nullopt;
  auto details = ordered_json::object();
  if (read.contains("details") && read["details"].is_object())
    for (const auto& [name, value] : read["details"].items())
      details[name] = value.is_string() ? value : ordered_json(value.dump());
  return ordered_json{{"time", read["time"]},
                      {"event", read["event"]},
                      {"rank", number_or_null(read, "rank")},
                      {"generation", number_or_null(read, "generation")},
                      {"step", number_or_null(read, "step")},
                      {"details", details}};
}

bool is_checkpoint(const ordered_json& event) { return event["event"] == "checkpoint_written"; }

run_events thinned(std::vector<ordered_json> all, std::size_t most) {
  const auto before = all.size();
  if (before > most) {
    const auto written =
        static_cast<std::size_t>(std::count_if(all.begin(), all.end(), is_checkpoint));
    const auto others = before - written, room = most > others ? most - others : 0;
    const auto each = room > 0 ? (written + room - 1) / room : written + 1;
    std::size_t seen = 0;
    std::erase_if(all, [&](const ordered_json& e) { return is_checkpoint(e) && ++seen % each; });
  }
  if (all.size() > most) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(most / 2);
    all.erase(first, first + static_cast<std::ptrdiff_t>(all.size() - most));
  }
  const auto left = all.size();
  return {std::move(all), before - left};
}

// The first and the last point stay, and of each part the smallest and the largest value.
std::vector<std::size_t> kept_points(const std::vector<double>& values, std::size_t most) {
  std::vector<std::size_t> kept;
  const auto count = values.size(), parts = std::max<std::size_t>(most / 2, 1) - 1;
  if (count <= most || parts == 0) {
    for (std::size_t i = 0; i < std::min(count, most); ++i) kept.push_back(i);
    return kept;
  }
  kept.push_back(0);
  for (std::size_t part = 0; part < parts; ++part) {
    const auto begin = 1 + part * (count - 2) / parts, end = 1 + (part + 1) * (count - 2) / parts;
    auto low = begin, high = begin;
    for (auto i = begin; i < end; ++i) {
      if (std::isnan(values[low]) || values[i] < values[low]) low = i;
      if (std::isnan(values[high]) || values[i] > values[high]) high = i;
    }
    kept.push_back(std::min(low, high));
    if (low != high) kept.push_back(std::max(low, high));
  }
  kept.push_back(count - 1);
  return kept;
}

metric_points thinned(const metric_series& all, std::size_t most) {
  metric_points points{.name = all.name, .points = all.value.size()};
  for (const auto i : kept_points(all.value, most)) {
    points.step.push_back(all.step[i]);
    points.epoch.push_back(all.epoch[i]);
    points.value.push_back(all.value[i]);
  }
  return points;
}

}  // namespace

void check_holds_run(const std::string& folder) {
  if (!holds_run(folder))
    throw user_error(errc::bad_configuration,
                     fmt::format("{} holds no run; name the folder that fit printed last", folder));
}

ordered_json read_result(const std::string& folder, const note_taker& note) {
  const auto path = path_in(folder, result_file);
  if (!std::filesystem::is_regular_file(path)) return nullptr;
  auto result = ordered_json::parse(read_text_file(path), nullptr, false);
  if (result.is_object()) return result;
  note(fmt::format("{} is damaged: it holds no JSON object", path));
  return nullptr;
}

ordered_json last_event(const std::string& folder) {
  const auto path = path_in(folder, events_file);
  if (!std::filesystem::is_regular_file(path)) return nullptr;
  auto text = read_text_file(path);
  while (!text.empty()) {
    const auto end = text.find_last_not_of('\n');
    if (end == std::string::npos) break;
    text.resize(end + 1);
    const auto begin = text.rfind('\n');
    auto event = ordered_json::parse(text.substr(begin == std::string::npos ? 0 : begin + 1),
                                     nullptr, false);
    if (!event.is_discarded()) return event;
    text.resize(begin == std::string::npos ? 0 : begin);
  }
  return nullptr;
}

run_events read_events(const std::string& folder, std::size_t most, const note_taker& note) {
  std::vector<ordered_json> all;
  if (is_job_of_service(folder)) {
    const note_taker noted_by_curves = [](const std::string&) {};
    read_journal(folder, "lifecycle", noted_by_curves,
                 [&](std::string_view line, const ordered_json&) {
                   if (auto event = event_of(line)) all.push_back(*std::move(event));
                 });
    return thinned(std::move(all), most);
  }
  const auto text = text_of(folder, events_file, note);
  if (!text) return {};
  std::size_t damaged = 0;
  bool cut = false;
  for (std::size_t begin = 0; begin < text->size();) {
    const auto found = text->find('\n', begin);
    const auto end = std::min(found, text->size());
    auto event = event_of(std::string_view{*text}.substr(begin, end - begin));
    cut = !event && found == std::string::npos;
    if (event)
      all.push_back(*std::move(event));
    else if (!cut)
      ++damaged;
    begin = end + 1;
  }
  if (damaged > 0)
    note(fmt::format("{}: lines that are no event were left out: {}", events_file, damaged));
  if (cut) note(fmt::format("{}: its last line is incomplete and was left out", events_file));
  return thinned(std::move(all), most);
}

std::vector<metric_points> read_curves(const std::string& folder, std::size_t most,
                                       const note_taker& note) {
  std::vector<metric_points> all;
  if (is_job_of_service(folder)) {
    for (const auto& one : journal_series(folder, note)) all.push_back(thinned(one, most));
    return all;
  }
  for (const auto* name : {metrics_file, figures_file}) {
    // Runs of a program of one's own, and older ones, have no figures.
    const bool optional = name == figures_file && !std::filesystem::exists(path_in(folder, name));
    const auto text = optional ? std::nullopt : text_of(folder, name, note);
    if (!text) continue;
    const auto table = parse_metrics(*text);
    if (table.damaged > 0)
      note(fmt::format("{}: rows that are damaged were left out: {}", name, table.damaged));
    if (table.cut) note(fmt::format("{}: its last line is incomplete and was left out", name));
    for (const auto& one : table.series) all.push_back(thinned(one, most));
  }
  return all;
}

std::string state_of_run(const std::string& folder, bool running, const ordered_json& result) {
  if (running) return "running";
  // Neither running nor with a result: it was killed, and can be resumed.
  if (!result.is_object())
    return std::filesystem::exists(path_in(folder, result_file)) ? "unknown" : "interrupted";
  const auto found = result.find("status");
  return found != result.end() && found->is_string() ? found->get<std::string>() : "unknown";
}

}  // namespace troupe::program
