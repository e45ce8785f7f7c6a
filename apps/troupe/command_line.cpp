#include "apps/troupe/command_line.hpp"

#include "apps/troupe/suggestion.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>

namespace troupe::program {

namespace {

// Every flag of `app` and, for a word, every command.
std::vector<std::string> candidates(const CLI::App& app, bool flags) {
  std::vector<std::string> names;
  if (!flags) {
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(command->get_name());
    return names;
  }
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// As it is typed: `troupe data order`.
std::string typed_name(const CLI::App& app) {
  const auto* parent = app.get_parent();
  return parent ? typed_name(*parent) + " " + app.get_name() : app.get_name();
}

}  // namespace

std::vector<std::string> normalised(std::vector<std::string> arguments) {
  for (auto& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    const auto name_end = argument.begin() + static_cast<std::ptrdiff_t>(
                                                 std::min(argument.find('='), argument.size()));
    std::replace(argument.begin(), name_end, '_', '-');
  }
  return arguments;
}

void setting_flags::add(CLI::App& to, const schema& all) {
  to.add_option("--config", files_, "read settings from this TOML file; may repeat")
      ->type_name("FILE.toml");
  to.add_option("--set", assignments_, "any setting, VALUE in TOML's syntax; may repeat")
      ->type_name("KEY=VALUE");
  for (const auto& setting : all) {
    if (setting.flag.empty()) continue;
    auto& kept = flags_.emplace_back();
    kept.key = setting.key;
    kept.flag = setting.flag.substr(0, setting.flag.find(','));
    const auto fallback = toml_text(setting.fallback);
    const auto help = setting.help + (fallback.empty() || fallback == "[]" || fallback == "false"
                                          ? ""
                                          : fmt::format(" ({})", fallback));
    if (setting.kind == kind::boolean) {
      to.add_flag(setting.flag + ",!--no-" + kept.flag.substr(2), kept.texts, help);
      continue;
    }
    auto* option = to.add_option(setting.flag, kept.texts, help)->allow_extra_args(false);
    if (setting.kind != kind::texts) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (!setting.bare.empty()) option->expected(0, 1)->default_str(setting.bare);
    option->type_name(setting.choices.empty() ? "VALUE"
                                              : fmt::format("{}", fmt::join(setting.choices, "|")));
  }
}

given setting_flags::taken(const std::map<std::string, std::string>& variables) const {
  given what{files_, variables, assignments_, {}};
  for (const auto& one : flags_)
    if (!one.texts.empty()) what.flags.push_back({one.key, one.flag, one.texts});
  return what;
}

void refuse_extras(const CLI::App& app) {
  for (const auto& extra : app.remaining()) {
    const bool flag = extra.starts_with("-");
    const auto name = extra.substr(0, extra.find('='));
    throw user_error(errc::bad_usage,
                     fmt::format("unknown {} \"{}\"{}\n`{} --help` lists what there is",
                                 flag ? "flag" : "argument", name,
                                 hint(name, candidates(app, flag)), typed_name(app)));
  }
  for (const auto* command : app.get_subcommands()) refuse_extras(*command);
}

}  // namespace troupe::program
