// The other half of ranks as processes: what the program does when it is started as one of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/spawn.hpp"
#include "troupe/ports.hpp"

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

/// In a process that something else has placed as `rank` (mpirun): one life of that rank after the
/// other, as `summons` (`placed_launcher`) leads to them, until there are no more: the exit code
/// for main, 0 after a goodbye. 1 when whoever starts ranks is gone. Does not return when a life
/// was given up.
int run_placed_rank(std::int32_t rank, const std::string& join_info,
                    const rank_process_options& home);

/// The rank that a connection briefs, among the actors of `system`. Used by one thread at a time;
/// destroyed before the system and before the connection. Destruction ends a rank that still lives.
class rank_host {
public:
  rank_host(launcher_client& parent, const rank_process_options& home, caf::actor_system& system);
  ~rank_host();
  rank_host(const rank_host&) = delete;
  rank_host& operator=(const rank_host&) = delete;

  /// A message from the supervisor's side; others than a brief and orders are not listened to.
  void hear(link_message&& what);
  /// The rank has ended, and its last word is on its way.
  bool ended() const;

private:
  struct inside;
  std::unique_ptr<inside> inside_;
};

}  // namespace troupe
