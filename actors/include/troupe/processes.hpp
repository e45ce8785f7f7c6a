// Ranks as processes: the line that begins main in a program that runs jobs with placement
// "processes".
#pragma once

#include "troupe/learner.hpp"
#include "troupe/ports.hpp"

#include <functional>
#include <optional>
#include <string>

namespace troupe {

/// What a rank's process brings along: the program's own ports and the way from `job::recipe_text`
/// to a recipe. Both are called once, after the arguments are known to be a rank's.
struct rank_process_options {
  std::function<recipe_ptr(const std::string& recipe_text)> recipe;
  std::function<ports()> world = local_ports;
};

/// To be the first line of main in a program that runs jobs with placement "processes":
///
///     if (const auto code = troupe::run_rank_if_child(argc, argv, {make_recipe})) return *code;
///
/// Without that line every job with placement "processes" is refused (bad_configuration). A process
/// that was started as a rank starts no job, of whatever placement (bad_configuration as well).
///
/// In the program as users start it this process remembers the call, and nothing else happens.
/// Started as a rank's process it runs that rank in here, and returns when the rank is torn down,
/// with the exit code for main. A process whose starter is gone, or has given it up, ends without
/// returning. It ignores SIGINT, SIGTERM and SIGHUP: the process that started it ends it.
std::optional<int> run_rank_if_child(int count, const char* const* arguments,
                                     const rank_process_options& home);

}  // namespace troupe
