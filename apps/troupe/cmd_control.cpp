#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/control_socket.hpp"
#include "apps/troupe/run_folder.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

// Throws user_error: nothing runs there, or the program there refuses.
void request_of(const context& around, const std::string& run, const ordered_json& what) {
  const auto said = ask_program(run, what.dump());
  if (!said && is_running(run) && is_job_of_service(run))
    throw user_error(errc::bad_configuration,
                     fmt::format("{} is a job of troupe_service: ask that, on its page or by POST "
                                 "/v1/jobs/NAME/{}",
                                 run, what["command"].get<std::string>()));
  if (const auto host = said ? std::nullopt : other_host(run))
    throw user_error(errc::bad_configuration,
                     fmt::format("the program that runs in {} is on host {}: call {} {} there", run,
                                 *host, around.name, what["command"].get<std::string>()));
  if (!said)
    throw user_error(
        errc::bad_configuration,
        is_running(run)
            ? fmt::format("the program that runs in {} takes no requests now: it is starting or "
                          "ending; try again",
                          run)
            : fmt::format("no program runs in {}; see {} status {}", run, around.name, run));
  const auto answer = ordered_json::parse(*said, nullptr, false);
  if (answer.is_object() && answer.contains("ok")) return;
  throw user_error(errc::bad_configuration,
                   answer.is_object() && answer.contains("error") && answer["error"].is_string()
                       ? answer["error"].get<std::string>()
                       : fmt::format("no answer that can be read: {}", *said));
}

void add_stop(const command& app, const context& around, const choose& chosen) {
  const auto command = app.add_command("stop", "stops a run at a step boundary, with a checkpoint");
  auto run = std::make_shared<std::string>();
  auto now = std::make_shared<bool>(false);
  command.add("RUN_DIR", *run, "the run's folder").required();
  command.add_flag("--now", *now, "ends it at once, without a checkpoint");
  command.on_chosen([=, &around] {
    chosen([=, &around]() -> program_end {
      request_of(around, *run, {{"command", "stop"}, {"now", *now}});
      around.screen.result(fmt::format("{}: {}", *run, *now ? "ending now" : "stopping"));
      return {};
    });
  });
}

void add_scale(const command& app, const context& around, const choose& chosen) {
  const auto command = app.add_command("scale", "lets a run go on with another number of ranks");
  auto run = std::make_shared<std::string>();
  auto ranks = std::make_shared<int>(0);
  command.add("RUN_DIR", *run, "the run's folder").required();
  command.add("--ranks", *ranks, "the processes from the next agreed step on").required();
  command.on_chosen([=, &around] {
    chosen([=, &around]() -> program_end {
      request_of(around, *run, {{"command", "scale"}, {"ranks", *ranks}});
      around.screen.result(fmt::format("{}: asked for {} ranks", *run, *ranks));
      return {};
    });
  });
}

}  // namespace

void add_control(const command& app, const context& around, const choose& chosen) {
  add_stop(app, around, chosen);
  add_scale(app, around, chosen);
}

}  // namespace troupe::program
