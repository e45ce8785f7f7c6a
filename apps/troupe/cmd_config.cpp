#include "apps/troupe/commands.hpp"
#include "apps/troupe/config_text.hpp"
#include "apps/troupe/exit_code.hpp"
#include "apps/troupe/job_parts.hpp"
#include "apps/troupe/setting_flags.hpp"
#include "troupe/failure.hpp"

#include <nlohmann/json.hpp>

namespace troupe::program {

namespace {

program_end print(const schema& all, const given& what, const context& around) {
  const auto s = settled_on(around.screen, join(all, what));
  if (s.flag("json")) {
    around.screen.result(printed_json(s));
  } else {
    around.screen.results(printed(s, true));
  }
  return {};
}

// Prints all keys, types and ranges that are wrong, or else the first error of what settings say
// together. Only `fit` finds errors that show when the job starts.
program_end validate(const schema& all, const std::string& file, bool json, const context& around) {
  auto& screen = around.screen;
  std::vector<std::string> errors;
  try {
    given what;
    what.files = {file};
    auto joined = join(all, what);
    for (const auto& note : joined.notes) screen.note(note);
    for (const auto& complaint : joined.complaints) errors.push_back(complaint.text);
    if (errors.empty()) check_settings(settled(std::move(joined)), around);
  } catch (const user_error& error) {
    errors.emplace_back(error.what());
  }
  if (json) {
    const nlohmann::ordered_json object{{"schema", "troupe.config_validation/1"},
                                        {"file", file},
                                        {"valid", errors.empty()},
                                        {"errors", errors}};
    screen.result(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else if (errors.empty()) {
    screen.result(file + ": a valid configuration");
  }
  for (const auto& error : errors) screen.error(error);
  return {errors.empty() ? exits::done : static_cast<int>(errc::bad_configuration), false};
}

}  // namespace

void add_config(const command& app, const schema& all, const context& around,
                const choose& chosen) {
  const auto config =
      app.add_command("config", "settings: what they are, where they come from").require_command();
  const auto print_command =
      config.add_command("print", "the resolved settings as TOML, and where each value came from");
  auto flags = std::make_shared<setting_flags>();
  flags->add(print_command, all);
  print_command.on_chosen([=, &all, &around] {
    chosen([=, &all, &around] { return print(all, flags->taken(around.variables), around); });
  });

  const auto validate_command = config.add_command("validate", "checks a TOML file");
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  validate_command.add("FILE", *file, "the file").required();
  validate_command.add_flag("--json", *json, "one object");
  validate_command.on_chosen([=, &all, &around] {
    chosen([=, &all, &around] { return validate(all, *file, *json, around); });
  });

  const auto schema_command = config.add_command("schema", "a JSON Schema of the TOML file");
  schema_command.add_flag("--json", *json, "it is JSON with and without");
  schema_command.on_chosen([=, &all, &around] {
    chosen([&all, &around] {
      around.screen.result(json_schema(all));
      return program_end{};
    });
  });
}

}  // namespace troupe::program
