// The seam to CLI11: flags of settings, and errors in our words and with our exit codes.
#pragma once

#include "apps/troupe/settings_sources.hpp"

#include <deque>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace troupe::program {

/// `--max_epochs=3` as `--max-epochs=3`: both spellings are welcome. What follows `--` stays.
std::vector<std::string> normalised(std::vector<std::string> arguments);

/// The flags of all settings on one command, and what a user gave with them.
class setting_flags {
public:
  /// Adds `--config`, `--set` and one flag per setting that has one. Lives as long as `to`.
  void add(CLI::App& to, const schema& all);
  /// What was given; to be called after parsing.
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

/// Throws user_error (bad_usage) that names the first argument nobody understood on `app` or on the
/// commands that were called below it, and the nearest flag or command.
void refuse_extras(const CLI::App& app);

}  // namespace troupe::program
