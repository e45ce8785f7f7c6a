// Numbers every part, message and queue of a small job and caches the outcome of each event: the
// machines run a few thousand times, the search many millions.
#pragma once

#include "apps/testing/exhaustive/flat_tables.hpp"
#include "apps/testing/exhaustive/rank_symmetry.hpp"
#include "apps/testing/exhaustive/small_job_parts.hpp"
#include "troupe/testing/exhaustive.hpp"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace troupe::testing {

using part_number = std::uint32_t;
using message_number = std::uint32_t;
using queue_number = std::uint32_t;  ///< 0 is the empty one

/// Moves of a rank part.
enum class rank_move : std::uint8_t {
  opens,
  arrives,
  passes,
  answers,
  attends,
  follows,
  peers_missing,
  lane_ends,
  throws,
  vanishes,
};
inline constexpr std::size_t rank_moves = 10;

struct rank_facts {
  rank_part::lane_stage stage = rank_part::lane_stage::idle;
  bool meets = false, opening = false, attention = false, lane_ends = false, gone = false;
  bool active = false;
  std::uint32_t rendezvous_kinds = 0;
  std::int64_t steps = 0, applied = 0;
  std::uint64_t held = 0;
  std::uint64_t generation = 0;
  std::uint64_t digest = 0;
  std::array<std::uint32_t, rank_moves> after = {};  ///< outcomes; 0: not computed yet
};
struct rank_outcome {
  part_number next = 0;
  std::vector<message_number> sent;
  bool aborts = false;
  std::string broken;
};

struct supervisor_facts {
  bool waits = false, ended = false;
  std::uint64_t generation = 0;
  std::int64_t committed = 0;
  message_number deadline = 0;  ///< the event of its passing
  std::uint64_t digest = 0;
};
struct supervisor_outcome {
  part_number next = 0;
  std::vector<std::pair<std::int32_t, message_number>> sent;
  std::vector<std::int32_t> abandoned;
  std::vector<std::pair<std::int32_t, part_number>> started;
  std::shared_ptr<const form_generation> formed;  ///< the order of one rank
  std::int64_t committed = undefined;
  std::string broken;
};

/// References stay valid until the next call that may add entries.
class small_job_tables {
public:
  small_job_tables(const exhaustive_options& options, rank_permutations symmetry);

  /// A supervisor that has begun with its first messages and ranks.
  supervisor_outcome begun_supervisor();

  const rank_facts& rank(part_number n) const { return rank_facts_[n]; }
  const rank_part& rank_value(part_number n) const { return ranks_[n]; }
  const supervisor_facts& supervisor(part_number n) const { return supervisor_facts_[n]; }
  const supervisor_part& supervisor_value(part_number n) const { return supervisors_[n]; }
  const std::string& text(message_number n) const { return texts_[n]; }
  /// A step, or all steps, are done: the supervisor may commit when it receives the message.
  bool may_commit(message_number n) const { return commits_[n]; }
  /// Not sent through a link, so it is neither lost nor repeated.
  bool is_down(message_number n) const { return downs_[n]; }

  const rank_outcome& after(part_number n, rank_move what);
  const rank_outcome& rank_after(part_number n, message_number order);
  const supervisor_outcome& supervisor_after(part_number n, message_number event);
  message_number stop() const { return stop_; }
  message_number abort() const { return abort_; }

  message_number head(queue_number q) const { return queues_[q].front(); }
  queue_number rest(queue_number q) const { return rests_[q]; }
  queue_number longer(queue_number q, message_number last);
  const std::vector<message_number>& messages(queue_number q) const { return queues_[q]; }

  /// The permutations of ranks that change nothing. What they make of each part and queue:
  const rank_permutations& symmetry() const { return symmetry_; }
  part_number rank_image(part_number n, std::size_t permutation) const {
    return rank_images_.at(n, permutation);
  }
  part_number supervisor_image(part_number n, std::size_t permutation) const {
    return supervisor_images_.at(n, permutation);
  }
  queue_number queue_image(queue_number q, std::size_t permutation);

  std::uint64_t bytes() const;

private:
  part_number fresh_rank(std::int32_t rank, incarnation_id incarnation);
  part_number number_of(rank_part part);
  part_number number_of(supervisor_part part);
  message_number number_of(const supervision::order& what);
  message_number number_of(const supervision::event& what);
  message_number new_message(std::string text, std::map<std::string, message_number>& known);
  queue_number number_of(std::vector<message_number> queue);
  std::uint32_t keep(rank_part part, rank_effects effects);
  std::uint32_t keep(supervisor_part part, const supervisor_effects& effects);

  // One event, without its images. They return the number of the outcome.
  std::uint32_t move(part_number n, rank_move what);
  std::uint32_t order(part_number n, message_number order);
  std::uint32_t supervise(part_number n, message_number event);
  template <class Outcome>
  void link_all(const std::vector<std::uint32_t>& outcomes, const std::vector<Outcome>& all);
  void link(const rank_outcome& of, std::size_t permutation, const rank_outcome& image);
  void link(const supervisor_outcome& of, std::size_t permutation, const supervisor_outcome& image);
  void link_rank(part_number of, std::size_t permutation, part_number image);
  void link_message(message_number of, std::size_t permutation, message_number image);

  exhaustive_options options_;
  rank_permutations symmetry_;
  image_table rank_images_, supervisor_images_, message_images_, queue_images_;
  std::vector<rank_part> ranks_;
  std::vector<rank_facts> rank_facts_;
  std::vector<rank_outcome> rank_outcomes_;
  std::unordered_multimap<std::uint64_t, part_number> ranks_by_digest_;
  std::vector<supervisor_part> supervisors_;
  std::vector<supervisor_facts> supervisor_facts_;
  std::vector<supervisor_outcome> supervisor_outcomes_;
  std::unordered_multimap<std::uint64_t, part_number> supervisors_by_digest_;

  std::vector<std::string> texts_;
  std::vector<bool> commits_, downs_;
  std::map<std::string, message_number> known_orders_, known_events_;
  std::vector<std::optional<supervision::order>> orders_;  ///< by message, if it is an order
  std::vector<std::optional<supervision::event>> events_;
  message_number stop_ = 0, abort_ = 0;

  std::vector<std::vector<message_number>> queues_;
  std::vector<queue_number> rests_;
  std::map<std::vector<message_number>, queue_number> known_queues_;
  number_map longer_, rank_receives_, supervisor_receives_;
};

}  // namespace troupe::testing
