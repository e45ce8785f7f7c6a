// The commands and flags of a program. Only command_line.cpp includes CLI11, and it replaces
// CLI11's error texts and exit codes with Troupe's.
#pragma once

#include "apps/command_line/command_facts.hpp"
#include "apps/command_line/manual.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  /// One value each time that the flag is given.
  option one_value() const;
  /// Of the values of a repeated flag the last one counts.
  option last_counts() const;
  /// The value may be left out, and then is `text`.
  option or_alone(const std::string& text) const;
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
  /// `--flag,!--no-flag`: `texts` gets a `true` or `false` each time that one of them is given.
  option add_switch(const std::string& names, std::vector<std::string>& texts,
                    const std::string& about) const;
  /// Calls `act` if the command is on the command line, after all flags were read.
  void on_chosen(std::function<void()> act) const;

private:
  friend class command_line;
  explicit command(CLI::App* of) : app_(of) {}
  CLI::App* app_;
};

/// Throws user_error (bad_usage) that names the flag, if `given` is not within `least` .. `most`.
void check_range(std::string_view flag, std::int64_t given, std::int64_t least, std::int64_t most);

/// `--max_epochs=3` as `--max-epochs=3`: both spellings are accepted. Arguments after `--` stay.
std::vector<std::string> normalised(std::vector<std::string> arguments);

/// A program's commands, or only its flags.
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

}  // namespace troupe::program
