// The program's commands and flags. Only command_line.cpp includes CLI11, and it replaces CLI11's
// error texts and exit codes with the program's.
#pragma once

#include "apps/troupe/command_facts.hpp"
#include "apps/troupe/manual.hpp"
#include "apps/troupe/settings_sources.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace troupe::program {

/// A flag or an argument of a command. Handles like this one are valid as long as their
/// command_line. Each function returns the same option.
class option {
public:
  option required() const;
  /// What the help shows in place of the value.
  option type_name(const std::string& text) const;
  /// `problem` returns what is wrong with a text, nothing when it is fine.
  option check(std::function<std::string(const std::string&)> problem) const;
  /// Several values in one text, divided by `mark`.
  option delimiter(char mark) const;
  option excludes(option other) const;
  option needs(option other) const;

private:
  friend class command;
  explicit option(CLI::Option* of) : option_(of) {}
  CLI::Option* option_;
};

/// A command whose flags are being declared. The variables that flags fill must outlive `read`.
class command {
public:
  command add_command(const std::string& name, const std::string& about) const;
  /// One of its own commands has to be named.
  command require_command() const;
  /// `--flag`, or `NAME` for an argument. T: int, int64_t, uint64_t, double, string, a vector of
  /// strings, or an optional int64_t.
  template <class T>
  option add(const std::string& name, T& value, const std::string& about) const;
  option add_flag(const std::string& name, bool& value, const std::string& about) const;
  /// Calls `act` if the command is on the command line, after all flags were read.
  void on_chosen(std::function<void()> act) const;

private:
  friend class command_line;
  friend class setting_flags;
  explicit command(CLI::App* of) : app_(of) {}
  CLI::App* app_;
};

/// `--max_epochs=3` as `--max-epochs=3`: both spellings are accepted. Arguments after `--` stay.
std::vector<std::string> normalised(std::vector<std::string> arguments);

/// All commands of the program.
class command_line {
public:
  struct texts {
    std::string name, about, footer, version;
  };
  explicit command_line(const texts& about);
  ~command_line();
  command_line(const command_line&) = delete;
  command_line& operator=(const command_line&) = delete;

  command top() const;
  /// Reads the arguments (without the program's name) and calls the functions that the named
  /// commands' on_chosen got. Returns the text for --help or --version; nothing otherwise. Throws
  /// user_error (bad_usage) that names the first unknown argument and the most similar known one.
  std::optional<std::string> read(std::vector<std::string> arguments);
  /// All commands with their flags, as help has them.
  command_facts facts() const;
  std::vector<manual_page> manual() const;

private:
  std::string help() const;
  texts about_;
  std::unique_ptr<CLI::App> app_;
};

/// The flags of all settings on one command, and what a user gave with them.
class setting_flags {
public:
  /// Adds `--config`, `--set` and one flag per setting that has one. Must outlive the reading.
  void add(const command& to, const schema& all);
  /// What was given; to be called after the reading.
  given taken(const std::map<std::string, std::string>& variables) const;

private:
  struct one {
    std::string key;
    std::string flag;
    std::vector<std::string> texts;
  };
  std::vector<std::string> files_;
  std::vector<std::string> assignments_;
  std::deque<one> flags_;  ///< CLI11 keeps references to the texts
};

}  // namespace troupe::program
