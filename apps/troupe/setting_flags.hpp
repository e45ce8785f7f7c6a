// One flag of the command line for each setting that has one.
#pragma once

#include "apps/command_line/command_line.hpp"
#include "apps/troupe/settings_sources.hpp"

#include <deque>
#include <map>
#include <string>
#include <vector>

namespace troupe::program {

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
  std::deque<one> flags_;  ///< the command line keeps references to the texts
};

}  // namespace troupe::program
