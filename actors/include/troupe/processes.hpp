// Ranks as processes: the line that begins main in a program that runs jobs with
// placement_kind::processes.
//
// A rank's process runs this program again, from main on: neither a module nor a data set of the
// process that starts it can be handed over. So main says, before anything else, how a rank's
// recipe is made. That line cannot be found out for the program, because main may do anything
// before it reaches its trainer; but a program without it is refused, and so is a process that
// makes another recipe than the job's.
#pragma once

#include "troupe/call.hpp"
#include "troupe/learner.hpp"
#include "troupe/ports.hpp"

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

/// What a rank's process brings along: the way to its recipe, the program's own ports, and the
/// functions that it can call. `recipe` and `world` are called once, after the arguments are known
/// to be a rank's.
struct rank_process_options {
  rank_process_options() = default;
  /// `make()` makes the program's recipe. Programs with several take `make(job::recipe_text)`.
  template <class Make>
  requires std::is_invocable_r_v<recipe_ptr, const Make&> ||
      std::is_invocable_r_v<recipe_ptr, const Make&, const std::string&>
      rank_process_options(Make make, std::function<ports()> own_ports = local_ports)
      : world(std::move(own_ports)) {
    if constexpr (std::is_invocable_v<const Make&, const std::string&>)
      recipe = std::move(make);
    else
      recipe = the_only_recipe(std::move(make));
  }

  /// Makes the recipe of a rank from job::recipe_text. Empty: only `functions` can be called.
  std::function<recipe_ptr(const std::string& recipe_text)> recipe;
  /// Makes the ports of the rank's process.
  std::function<ports()> world = local_ports;
  /// What session::spawn calls in a rank's process. Each name is there once.
  std::vector<named_function> functions;

private:
  static std::function<recipe_ptr(const std::string&)> the_only_recipe(
      std::function<recipe_ptr()> make);
};

/// To be the first line of main in a program that runs jobs with placement_kind::processes, where
/// `make_recipe()` makes the recipe of its trainer or session:
///
///     if (const auto code = troupe::run_rank_if_child(argc, argv, make_recipe)) return *code;
///
/// - In the program as users start it this process remembers the call, and nothing else happens.
/// - Started as a rank's process it runs that rank in here, and returns when the rank is torn down,
///   with the exit code for main. A process whose starter is gone, or has given it up, ends without
///   returning. It ignores SIGINT and SIGHUP: the process that started it ends it. SIGTERM, blocked
///   in all of its threads, asks the process that started it to let the ranks go on elsewhere.
/// - Without the line every job with placement_kind::processes is refused (bad_configuration), with
///   a text that shows it. A process that was started as a rank starts no job, of whatever
///   placement (bad_configuration as well).
/// - The job fails (bad_configuration) when `make_recipe()` has another identity than the job's
///   recipe (learner_recipe::identity).
std::optional<int> run_rank_if_child(int count, const char* const* arguments,
                                     const rank_process_options& home);

}  // namespace troupe
