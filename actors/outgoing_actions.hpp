// The actions with which the supervisor machine answers one event. A part of the supervisor
// machine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/membership.hpp"
#include "actors/placements.hpp"
#include "actors/supervisor_events.hpp"

namespace troupe {

/// A list that grows while the machine handles the event. The machine's members that it is made
/// with outlive it. An announcement carries the generation and the committed steps of the time at
/// which it is added.
class outgoing_actions {
public:
  /// `deadline` is the number of the newest deadline.
  outgoing_actions(const membership& members, const std::int64_t& committed,
                   std::uint64_t& deadline)
      : members_(members), committed_(committed), deadline_(deadline) {}

  /// Reserves memory for so many actions per rank, and a few others, because actions are large.
  void make_room(std::size_t each = 1);
  void add(supervision::action what) { list_.push_back(std::move(what)); }
  void send(const member& to, supervision::order what);
  void abandon(const member& m);
  void start(const member& m);
  void start_process(const placements& of, std::int32_t number);
  /// Replaces the deadline before, whose id is void from now on.
  void arm(std::chrono::nanoseconds delay);
  void announce(lifecycle_kind event, std::int32_t rank = -1,
                std::map<std::string, std::string> details = {});
  void announce_failure(lifecycle_kind event, const failure& what);

  std::vector<supervision::action> take() { return std::move(list_); }

private:
  const membership& members_;
  const std::int64_t& committed_;
  std::uint64_t& deadline_;
  std::vector<supervision::action> list_;
};

}  // namespace troupe
