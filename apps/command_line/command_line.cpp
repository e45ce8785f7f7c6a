#include "apps/command_line/command_line.hpp"

#include "apps/command_line/suggestion.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <utility>

namespace troupe::program {

namespace {

constexpr char value_end = '\x1f';

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

// The full name of a command: `troupe data order`.
std::string typed_name(const CLI::App& app) {
  const auto* parent = app.get_parent();
  return parent ? typed_name(*parent) + " " + app.get_name() : app.get_name();
}

// The last command on the command line.
const CLI::App& innermost(const CLI::App& app) {
  const auto* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

flag_facts facts_of(const CLI::Option& of) {
  flag_facts flag;
  for (const auto& name : of.get_lnames()) flag.names.push_back("--" + name);
  if (of.get_positional()) flag.names = {of.get_name(true)};
  if (of.get_items_expected_max() > 0) flag.shape = of.get_type_name();
  flag.about = of.get_description();
  flag.value_needed = of.get_items_expected_min() > 0;
  flag.required = of.get_required();
  flag.repeats = of.get_items_expected_max() > 1;
  return flag;
}

command_facts facts_of(const CLI::App& of) {
  command_facts command{of.get_name(), of.get_description(), {}, {}, {}};
  for (const auto* one : of.get_options())
    (one->get_positional() ? command.arguments : command.flags).push_back(facts_of(*one));
  for (const auto* below : of.get_subcommands([](const CLI::App*) { return true; }))
    command.commands.push_back(facts_of(*below));
  return command;
}

// CLI11 keeps unknown arguments, so that refuse_extras names them.
void allow_extras(CLI::App& app) {
  app.allow_extras();
  for (auto* below : app.get_subcommands([](CLI::App*) { return true; })) allow_extras(*below);
}

bool takes_value(const CLI::App& app, const std::string& flag) {
  const auto is_it = [&](const CLI::Option* one) {
    return one->check_lname(flag) && one->get_items_expected_max() > 0;
  };
  return std::ranges::any_of(app.get_options(), is_it) ||
         std::ranges::any_of(app.get_subcommands([](const CLI::App*) { return true; }),
                             [&](const CLI::App* below) { return takes_value(*below, flag); });
}

// `--NAME=` gives an empty value. CLI11 would take the next argument for it.
std::vector<std::string> with_empty_values(const CLI::App& app, std::vector<std::string> all) {
  std::vector<std::string> split;
  for (auto it = all.begin(); it != all.end(); ++it) {
    if (*it == "--") {
      split.insert(split.end(), it, all.end());
      break;
    }
    const bool empty = it->starts_with("--") && it->find('=') == it->size() - 1 &&
                       takes_value(app, it->substr(2, it->size() - 3));
    split.push_back(empty ? it->substr(0, it->size() - 1) : std::move(*it));
    if (empty) split.emplace_back();
  }
  return split;
}

// CLI11 takes `[a,b]` for a list of values, unless it ends with the delimiter of values.
std::vector<std::string> with_brackets(std::vector<std::string> all) {
  for (auto& one : all)
    if (one.starts_with("[") && one.ends_with("]")) one += value_end;
  return all;
}

void refuse_extras(const CLI::App& app) {
  bool flags_end = false;
  for (const auto& extra : app.remaining()) {
    if (extra == "--" && !std::exchange(flags_end, true)) continue;
    const bool flag = extra.starts_with("-") && !flags_end;
    const auto name = extra.substr(0, extra.find_first_of({'=', value_end}));
    throw user_error(errc::bad_usage,
                     fmt::format("unknown {} \"{}\"{}\n`{} --help` lists what there is",
                                 flag ? "flag" : "argument", name,
                                 hint(name, candidates(app, flag)), typed_name(app)));
  }
  for (const auto* below : app.get_subcommands()) refuse_extras(*below);
}

}  // namespace

option option::required() const {
  option_->required();
  return *this;
}

option option::type_name(const std::string& text) const {
  option_->type_name(text);
  return *this;
}

option option::check(std::function<std::string(const std::string&)> problem) const {
  option_->check(std::move(problem));
  return *this;
}

option option::delimiter(char mark) const {
  option_->delimiter(mark);
  return *this;
}

option option::one_value() const {
  option_->allow_extra_args(false);
  return *this;
}

option option::last_counts() const {
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return *this;
}

option option::or_alone(const std::string& text) const {
  option_->expected(0, 1)->default_str(text);
  return *this;
}

option option::excludes(option other) const {
  option_->excludes(other.option_);
  return *this;
}

option option::needs(option other) const {
  option_->needs(other.option_);
  return *this;
}

command command::add_command(const std::string& name, const std::string& about) const {
  return command{app_->add_subcommand(name, about)};
}

command command::require_command() const {
  app_->require_subcommand(1);
  return *this;
}

template <class T>
option command::add(const std::string& name, T& value, const std::string& about) const {
  return option{app_->add_option(name, value, about)->delimiter(value_end)};
}
template option command::add(const std::string&, int&, const std::string&) const;
template option command::add(const std::string&, std::int64_t&, const std::string&) const;
template option command::add(const std::string&, std::uint64_t&, const std::string&) const;
template option command::add(const std::string&, double&, const std::string&) const;
template option command::add(const std::string&, std::string&, const std::string&) const;
template option command::add(const std::string&, std::vector<std::string>&,
                             const std::string&) const;
template option command::add(const std::string&, std::optional<std::int64_t>&,
                             const std::string&) const;

option command::add_flag(const std::string& name, bool& value, const std::string& about) const {
  return option{app_->add_flag(name, value, about)};
}

option command::add_switch(const std::string& names, std::vector<std::string>& texts,
                           const std::string& about) const {
  return option{app_->add_flag(names, texts, about)};
}

void command::on_chosen(std::function<void()> act) const { app_->callback(std::move(act)); }

command_line::command_line(const texts& about)
    : about_(about), app_(std::make_unique<CLI::App>(about.about, about.name)) {
  app_->footer(about.footer);
  app_->set_version_flag("--version", about.version);
}

command_line::~command_line() = default;

command command_line::top() const { return command{app_.get()}; }

std::optional<std::string> command_line::read(std::vector<std::string> arguments) {
  allow_extras(*app_);
  arguments = with_brackets(with_empty_values(*app_, normalised(std::move(arguments))));
  std::reverse(arguments.begin(), arguments.end());
  try {
    app_->parse(std::move(arguments));
  } catch (const CLI::CallForVersion& version) {
    return std::string{version.what()} + "\n";
  } catch (const CLI::CallForHelp&) {
    return help();
  } catch (const CLI::ParseError& error) {
    refuse_extras(*app_);
    throw user_error(errc::bad_usage, fmt::format("{}\n`{} --help` lists what there is",
                                                  error.what(), typed_name(innermost(*app_))));
  }
  refuse_extras(*app_);
  return std::nullopt;
}

// CLI11 appends a command's own name to the text that it is given.
std::string command_line::help() const {
  const auto& of = innermost(*app_);
  const auto* parent = of.get_parent();
  return of.help(parent ? typed_name(*parent) : std::string{});
}

command_facts command_line::facts() const { return facts_of(*app_); }

std::vector<manual_page> command_line::manual() const {
  return manual_pages(facts(), about_.version, about_.footer);
}

void check_range(std::string_view flag, std::int64_t given, std::int64_t least, std::int64_t most) {
  if (given < least || given > most)
    throw user_error(errc::bad_usage,
                     fmt::format("{} {}: from {} to {}", flag, given, least, most));
}

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

}  // namespace troupe::program
