// The other half of ranks as processes: what a process does that was started as a rank, and how
// its rank lives in it. The part that users see is troupe/trainer.hpp.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/spawn.hpp"
#include "backends/launcher.hpp"
#include "troupe/trainer.hpp"

namespace troupe {

/// In a process that something else has placed as `rank` (mpirun, torchrun): one life of that rank
/// after the other, as `join_info` (`placed_launcher`) leads to them, until there are no more.
/// Returns the exit code for main: 0 after a shutdown message, 1 when the process that starts ranks
/// is gone. Does not return when a life was given up. Throws user_error (membership) when that
/// process could not be reached before the first life.
int run_placed_rank(std::int32_t rank, const std::string& join_info,
                    const rank_process_options& home);

/// The ranks that a connection briefs, among the actors of `system`. Used by one thread at a time;
/// destroyed before the system and before the connection. Destruction ends ranks that still live.
class rank_host {
public:
  rank_host(launcher_client& parent, const rank_process_options& home, caf::actor_system& system);
  ~rank_host();
  rank_host(const rank_host&) = delete;
  rank_host& operator=(const rank_host&) = delete;

  /// Takes a rank_spec, a warm_up or an order of the supervisor's side. Ignores other messages.
  void receive(link_message&& what);
  /// All ranks have ended, and their last messages are sent.
  bool ended() const;

private:
  struct inside;
  std::unique_ptr<inside> inside_;
};

}  // namespace troupe
