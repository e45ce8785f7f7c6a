#include "apps/troupe/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/run_folder.hpp"
#include "backends/checkpoint/run_checkpoints.hpp"
#include "backends/telemetry/line_file.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace troupe::program {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// The last line of events.jsonl that is whole, or null.
ordered_json last_event(const fs::path& run) {
  if (!fs::exists(run / events_file)) return nullptr;
  auto text = read_text_file((run / events_file).string());
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

ordered_json last_result(const fs::path& run, console& screen) {
  const auto path = (run / result_file).string();
  if (!fs::exists(path)) return nullptr;
  auto result = ordered_json::parse(read_text_file(path), nullptr, false);
  if (result.is_object()) return result;
  screen.note(fmt::format("note: {} is damaged: it holds no JSON object", path));
  return nullptr;
}

std::string state_of(bool running, const ordered_json& result) {
  if (running) return "running";
  // Neither running nor with a result: it was killed, and can be resumed.
  return result.is_object() ? result.value("status", "unknown") : "interrupted";
}

program_end status(const std::string& run, bool json, console& screen) {
  if (!holds_run(run))
    throw user_error(errc::bad_configuration,
                     fmt::format("{} holds no run; name the folder that fit printed last", run));
  const auto result = last_result(run, screen);
  const auto checkpoints = list_checkpoints(run);
  const ordered_json object{
      {"schema", "troupe.status/1"},
      {"run_folder", run},
      {"state", state_of(is_running(run), result)},
      {"checkpoint",
       checkpoints.empty() ? ordered_json(nullptr) : ordered_json(checkpoints.back().path)},
      {"last_event", last_event(run)},
      {"result", result}};
  if (json) {
    screen.result(object.dump());
    return {};
  }
  screen.result(fmt::format("{}: {}", run, object["state"].get<std::string>()));
  if (!checkpoints.empty())
    screen.result(fmt::format("last checkpoint {}", checkpoints.back().path));
  if (result.is_object() && result.contains("metrics"))
    for (const auto& [name, number] : result["metrics"].items())
      screen.result(fmt::format("{} {}", name, number.dump()));
  return {};
}

}  // namespace

void add_status(const command& app, const context& around, const choose& chosen) {
  const auto command = app.add_command("status", "how a run stands");
  auto run = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command.add("RUN_DIR", *run, "the run's folder").required();
  command.add_flag("--json", *json, "one object");
  command.on_chosen(
      [=, &around] { chosen([=, &around] { return status(*run, *json, around.screen); }); });
}

}  // namespace troupe::program
