// Where settings come from, and how they join: default, file, variable, `--set`, flag; later ones
// win.
#pragma once

#include "apps/troupe/settings.hpp"

#include <map>
#include <string>
#include <vector>

namespace troupe::program {

/// What a user gave, unread. The program's edge fills it; nothing below reads an environment.
struct given {
  /// Files in the order in which they are read; later ones win.
  std::vector<std::string> files;
  /// The environment's variables that start with TROUPE_.
  std::map<std::string, std::string> variables;
  /// `KEY=VALUE`, VALUE in TOML's syntax; what is no TOML is a text.
  std::vector<std::string> assignments;
  struct flag_value {
    std::string key;
    std::string flag;  ///< as the user wrote it
    std::vector<std::string> texts;
  };
  std::vector<flag_value> flags;
};

struct resolution {
  program::settings settings;
  std::vector<complaint> complaints;  ///< all that is wrong, in the order of reading
  std::vector<std::string> notes;     ///< variables that name no setting, and what has no effect
};

/// Joins all sources and keeps every complaint. Throws user_error (bad_configuration) when a file
/// cannot be read or is no TOML.
resolution join(const schema& all, const given& what);

/// The settings, or a user_error that lists every complaint: bad_usage when a flag's value cannot
/// be read as its type, else bad_configuration.
settings settled(resolution result);

/// The dotted keys of a TOML file with their values as TOML writes them, keys without a dot first.
/// Throws user_error (bad_configuration) when it cannot be read or is no TOML.
std::vector<std::pair<std::string, std::string>> settings_texts(const std::string& file);

/// A variable of the set-up commands, not of the program: no note about it.
bool belongs_to_setup(const std::string& variable);

}  // namespace troupe::program
