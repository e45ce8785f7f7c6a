#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/output_file.hpp"
#include "apps/troupe/report_page.hpp"
#include "apps/troupe/run_files.hpp"
#include "apps/troupe/run_folder.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

// Bounds of the page: what is left out is said on it.
constexpr std::size_t report_points_max = 1000;  // of one metric of a run
constexpr std::size_t report_events_max = 3000;  // of a run

struct report_question {
  std::vector<std::string> runs;
  std::string output;
  bool force = false, json = false;
};

ordered_json curve_json(const metric_points& one) {
  auto values = ordered_json::array();
  for (const auto value : one.value)
    values.push_back(std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr));
  return {{"name", one.name},
          {"points", one.points},
          {"step", one.step},
          {"epoch", one.epoch},
          {"value", values}};
}

// The fields of a service's job as settings: `options.ranks`.
void add_request(const ordered_json& from, const std::string& before, ordered_json& into) {
  for (const auto& [name, value] : from.items()) {
    if (value.is_object())
      add_request(value, before + name + ".", into);
    else
      into[before + name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
}

ordered_json settings_json(const std::string& run, const note_taker& note) {
  auto object = ordered_json::object();
  if (const auto job = std::filesystem::path{run} / job_file; std::filesystem::exists(job)) {
    const auto read = ordered_json::parse(read_text_file(job.string()), nullptr, false);
    if (read.is_object() && read.contains("request") && read["request"].is_object())
      add_request(read["request"], "", object);
    else
      note(fmt::format("{} is damaged", job_file));
    return object;
  }
  const auto path = std::filesystem::path{run} / config_file;
  if (!std::filesystem::exists(path)) {
    note(fmt::format("{} is not there", config_file));
    return object;
  }
  try {
    for (const auto& [key, value] : settings_texts(path.string())) object[key] = value;
  } catch (const user_error& error) {
    note(error.what());
  }
  return object;
}

// The folder's own name, also of `runs/mlp/` and of `.`.
std::string name_of_run(const std::string& run) {
  std::error_code ignored;
  const auto whole = std::filesystem::weakly_canonical(run, ignored).lexically_normal();
  const auto name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  return name.empty() ? run : name;
}

ordered_json run_json(const std::string& run, std::string name) {
  auto notes = ordered_json::array();
  const note_taker note = [&](const std::string& text) { notes.push_back(text); };
  const bool running = is_running(run);
  const auto result = read_result(run, note);
  auto curves = ordered_json::array();
  std::size_t thin = 0;
  for (const auto& one : read_curves(run, report_points_max, note)) {
    curves.push_back(curve_json(one));
    if (one.points > one.value.size()) ++thin;
  }
  if (thin > 0)
    note(fmt::format("{} of the curves show their lowest and highest points only, at most {} each",
                     thin, report_points_max));
  const auto events = read_events(run, report_events_max, note);
  const auto settings = settings_json(run, note);
  return {{"name", std::move(name)},
          {"folder", run},
          {"state", state_of_run(run, running, result)},
          {"notes", notes},
          {"settings", settings},
          {"metrics", {{"series", curves}}},
          {"events", {{"left_out", events.left_out}, {"list", events.list}}},
          {"result", result}};
}

// Runs of the same name are shown by their folders.
ordered_json report_json(const report_question& what, const context& around) {
  std::vector<std::string> names;
  for (const auto& run : what.runs) names.push_back(name_of_run(run));
  auto runs = ordered_json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool alone = std::count(names.begin(), names.end(), names[i]) == 1;
    runs.push_back(run_json(what.runs[i], alone ? names[i] : what.runs[i]));
  }
  return {{"schema", "troupe.report/1"}, {"made", utc(around.wall())}, {"runs", runs}};
}

// JSON as it may stand in a script of HTML: `<` begins nothing there.
std::string inside_html(const std::string& json) {
  std::string text;
  for (const char c : json) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

program_end make_report(const report_question& what, const context& around) {
  if (what.output.empty() && !what.json)
    throw user_error(errc::bad_usage,
                     "report writes a page: name it with --output FILE.html, or use --json for "
                     "what the page shows");
  for (const auto& run : what.runs) check_holds_run(run);
  if (!what.output.empty()) check_output(what.output, what.force);
  const auto text =
      report_json(what, around).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  if (!what.output.empty()) {
    const auto at = report_page.find(report_data_mark);
    const auto safe = inside_html(text);
    write_output(
        what.output,
        {report_page.substr(0, at), safe, report_page.substr(at + report_data_mark.size())},
        what.force);
  }
  around.screen.result(what.json ? text : what.output);
  return {};
}

}  // namespace

void add_report(const command& app, const context& around, const choose& chosen) {
  auto what = std::make_shared<report_question>();
  const auto command = app.add_command("report", "draws one or several runs as a page of HTML");
  command.add("RUN_DIR", what->runs, "folders of runs").required();
  command.add("--output", what->output, "the page to write; it must not be there yet")
      .type_name("FILE.html");
  command.add_flag("--force", what->force, "replace the file of --output if it is there");
  command.add_flag("--json", what->json, "print what the page shows, as one object");
  command.on_chosen([=, &around] { chosen([=, &around] { return make_report(*what, around); }); });
}

}  // namespace troupe::program
