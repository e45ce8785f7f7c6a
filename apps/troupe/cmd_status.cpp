#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/run_files.hpp"
#include "apps/troupe/run_status.hpp"

#include <nlohmann/json.hpp>

namespace troupe::program {

namespace {

program_end status(const std::string& run, bool json, console& screen) {
  check_holds_run(run);
  const auto all =
      status_object(run, [&](const std::string& text) { screen.note("note: " + text); });
  if (json)
    screen.result(all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    show_status(all, screen);
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
