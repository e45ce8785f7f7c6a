#include "apps/troupe/run_status.hpp"

#include "apps/troupe/control_socket.hpp"
#include "apps/troupe/run_files.hpp"
#include "apps/troupe/run_folder.hpp"
#include "backends/checkpoint/run_checkpoints.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace troupe::program {

using nlohmann::ordered_json;

std::string plain(const ordered_json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) return "?";
  const auto& what = object[name];
  return what.is_string() ? what.get<std::string>() : what.dump();
}

namespace {

// The text that `render` makes of a failure, made of its JSON.
std::string failure_text(const ordered_json& what) {
  std::string text;
  const auto known = [&](const char* name) { return what.contains(name) && !what[name].is_null(); };
  if (known("rank")) text += fmt::format("rank {} ", plain(what, "rank"));
  text += "failed";
  if (known("hook")) text += fmt::format(" in {}", plain(what, "hook"));
  if (known("step")) text += fmt::format(" at step {}", plain(what, "step"));
  return text + fmt::format(": {}: {}", plain(what, "type"), plain(what, "what"));
}

// `generation 2: 3 ranks from step 20 on, steps done again: 1; finished`.
std::string generation_text(const ordered_json& one, bool first) {
  auto text = fmt::format("generation {}: {} ranks from step {} on", plain(one, "generation"),
                          plain(one, "ranks"), plain(one, "base_step"));
  if (!first) text += fmt::format(", steps done again: {}", plain(one, "steps_redone"));
  const bool failed = one.contains("ended_by") && one["ended_by"].is_object();
  return text + "; " + (failed ? failure_text(one["ended_by"]) : plain(one, "ended_by"));
}

void show_generations(const ordered_json& result, console& screen) {
  if (!result.contains("generations") || !result["generations"].is_array()) return;
  screen.result(fmt::format("restarts {}", plain(result, "restarts")));
  bool first = true;
  for (const auto& one : result["generations"])
    if (one.is_object()) screen.result(generation_text(one, std::exchange(first, false)));
}

// What the program that runs there says; null when none does, or when it does not answer.
ordered_json live_status_of(const std::string& run, const note_taker& note) {
  try {
    const auto answer = ask_program(run, R"({"command":"status"})");
    const auto object = ordered_json::parse(answer.value_or(""), nullptr, false);
    if (object.is_object() && object.contains("status") && object["status"].is_object())
      return object["status"];
  } catch (const user_error& error) {
    note(error.what());
  }
  return nullptr;
}

void show_live(const ordered_json& live, console& screen) {
  screen.result(fmt::format("{} ({}), generation {}, ranks {}, shards {}, step {}",
                            plain(live, "state"), plain(live, "stage"), plain(live, "generation"),
                            plain(live, "ranks"), plain(live, "shards"), plain(live, "step")));
  if (live.contains("samples_per_second") && live["samples_per_second"].is_number())
    screen.result(
        fmt::format("samples per second {:.0f}", live["samples_per_second"].get<double>()));
  screen.result(fmt::format("restarts {}, left {}; failures {}", plain(live, "restarts"),
                            plain(live, "restarts_left"), plain(live, "failures")));
  if (!live.contains("newest_failures") || !live["newest_failures"].is_array()) return;
  for (const auto& one : live["newest_failures"])
    screen.result(fmt::format("generation {}: {}", plain(one, "generation"), plain(one, "what")));
}

}  // namespace

ordered_json status_object(const std::string& run, const note_taker& note) {
  const auto live = live_status_of(run, note);
  const bool running = is_running(run);
  const auto host = live.is_object() ? std::nullopt : other_host(run);
  const auto result = read_result(run, note);
  const auto checkpoints = list_checkpoints(run);
  return {{"schema", "troupe.status/1"},
          {"run_folder", run},
          {"state", state_of_run(run, running, result)},
          {"other_host", host ? ordered_json(*host) : ordered_json(nullptr)},
          {"checkpoint",
           checkpoints.empty() ? ordered_json(nullptr) : ordered_json(checkpoints.back().path)},
          {"last_event", last_event(run)},
          {"live", live},
          {"result", result}};
}

std::string text_of_other_host(const ordered_json& all) {
  return fmt::format("its program is on host {}: only there it answers", plain(all, "other_host"));
}

void show_status(const ordered_json& all, console& screen) {
  const auto& result = all["result"];
  screen.result(fmt::format("{}: {}", plain(all, "run_folder"), plain(all, "state")));
  if (all["other_host"].is_string()) screen.result(text_of_other_host(all));
  if (all["live"].is_object()) show_live(all["live"], screen);
  if (!all["checkpoint"].is_null())
    screen.result(fmt::format("last checkpoint {}", plain(all, "checkpoint")));
  if (result.is_object() && result.contains("metrics"))
    for (const auto& [name, number] : result["metrics"].items())
      screen.result(fmt::format("{} {}", name, number.dump()));
  if (result.is_object()) show_generations(result, screen);
}

}  // namespace troupe::program
