#include "apps/troupe/cmd_init.hpp"

#include "apps/command_line/command_line.hpp"
#include "apps/troupe/output_file.hpp"
#include "apps/troupe/project_files.hpp"
#include "apps/troupe/replaced.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>

namespace troupe::program {

namespace {

namespace files = std::filesystem;

// The folder's name as CMake takes it for a project: `my model 2` is my_model_2.
std::string project_name(const files::path& folder) {
  const auto whole = files::absolute(folder).lexically_normal();
  auto name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  for (auto& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front()))) name = "my_" + name;
  return name;
}

void make_folder(const files::path& folder) {
  std::error_code failed;
  files::create_directories(folder, failed);
  if (failed)
    throw user_error(errc::bad_configuration, fmt::format("cannot make the folder {}: {}",
                                                          folder.string(), failed.message()));
}

program_end write_project(const files::path& folder, console& screen) {
  std::error_code failed;
  const bool there = files::exists(files::symlink_status(folder, failed));
  if (there && !(files::is_directory(folder, failed) && files::is_empty(folder, failed)))
    throw user_error(errc::bad_configuration,
                     fmt::format("{} is there and is no empty folder: name a new folder for the "
                                 "project",
                                 folder.string()));
  for (const auto& one : project_files()) {
    const auto path = folder / one.path;
    make_folder(path.parent_path());
    write_output(path.string(), {replaced(one.text, "@NAME@", project_name(folder))}, false);
  }
  screen.note(
      fmt::format("{} says how to build it and how to run it", (folder / "README.md").string()));
  screen.result(folder.string());
  return {};
}

}  // namespace

void add_init(const command& app, const context& around, const choose& chosen) {
  const auto command = app.add_command("init", "writes a C++ project of your own, which trains");
  auto folder = std::make_shared<std::string>();
  command.add("DIR", *folder, "the project's folder; it must not be there yet, or be empty")
      .required();
  command.on_chosen(
      [=, &around] { chosen([=, &around] { return write_project(*folder, around.screen); }); });
}

}  // namespace troupe::program
