#include "apps/command_line/command_line.hpp"
#include "apps/command_line/manual.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/completion.hpp"
#include "apps/troupe/output_file.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace troupe::program {

namespace {

shell shell_named(const std::string& name) {
  if (name == "bash") return shell::bash;
  if (name == "zsh") return shell::zsh;
  return shell::fish;
}

program_end write_manual(const command_line& line, const std::string& folder, bool force,
                         console& screen) {
  const auto pages = line.manual();
  if (folder.empty()) {
    screen.results(pages.front().text);
    return {};
  }
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    throw user_error(errc::bad_configuration,
                     fmt::format("cannot make the folder {}: {}; name another one with --output",
                                 folder, failed.message()));
  for (const auto& page : pages)
    write_output((std::filesystem::path{folder} / page.file).string(), {page.text}, force);
  screen.result(folder);
  return {};
}

}  // namespace

void add_completion(const command& app, const command_line& line, const schema& all,
                    const context& around, const choose& chosen) {
  const auto command =
      app.add_command("completion", "prints a script that completes this program's commands");
  auto name = std::make_shared<std::string>();
  command.add("SHELL", *name, "bash, zsh or fish").required().check([](const std::string& x) {
    return x == "bash" || x == "zsh" || x == "fish" ? "" : "one of bash, zsh, fish";
  });
  command.on_chosen([=, &line, &all, &around] {
    chosen([=, &line, &all, &around] {
      around.screen.results(completion_script(shell_named(*name), line.facts(), all));
      return program_end{};
    });
  });
}

void add_manual(const command& app, const command_line& line, const context& around,
                const choose& chosen) {
  const auto command = app.add_command("manual", "prints this program's manual page, for man");
  auto folder = std::make_shared<std::string>();
  auto force = std::make_shared<bool>(false);
  command.add("--output", *folder, "write the pages of all commands into this folder")
      .type_name("DIR");
  command.add_flag("--force", *force, "replace pages that are there");
  command.on_chosen([=, &line, &around] {
    chosen([=, &line, &around] { return write_manual(line, *folder, *force, around.screen); });
  });
}

}  // namespace troupe::program
