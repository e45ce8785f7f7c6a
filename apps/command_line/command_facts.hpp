// The commands and flags of a program as plain data: completions and manual pages are made from it.
#pragma once

#include <string>
#include <vector>

namespace troupe::program {

/// A flag, or an argument.
struct flag_facts {
  /// `--json`, `--no-json`; an argument's only name has no hyphens: `RUN_DIR`.
  std::vector<std::string> names;
  /// What help shows for the value: `FILE.toml`, `torch|safetensors`. Empty: there is no value.
  std::string shape;
  std::string about;
  bool value_needed = true;  ///< false: the value may be left out
  bool required = false;
  bool repeats = false;
};

/// A command, or the program itself.
struct command_facts {
  std::string name;  ///< one word: `order`
  std::string about;
  std::vector<flag_facts> flags;
  std::vector<flag_facts> arguments;
  std::vector<command_facts> commands;
};

}  // namespace troupe::program
