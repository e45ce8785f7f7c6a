// A supervisor machine and its rank machines with lanes that compute a number, as one value that a
// random schedule drives. No actors, no threads, no time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/rank_machine.hpp"
#include "actors/supervisor_machine.hpp"

namespace elastic {

struct job_options {
  std::int32_t ranks = 3;
  std::int32_t max_restarts = 0;
  std::int64_t steps = 4;
  int kills = 0;   ///< ranks that end without a report
  int throws = 0;  ///< hooks that throw
  int stuck = 0;   ///< lanes that never answer
  int leaves = 0;  ///< processes that want to leave
  int scales = 0;  ///< requests of the caller
};

/// What a lane trains: after step n the number is the same for every run without a fault.
struct lane_state {
  std::uint64_t number = 0;
  std::uint64_t kept = 0;
  bool set_up = false;
  bool has_kept = false;
  bool alone = false;
};

class job {
public:
  job(job_options options, std::uint64_t seed);
  /// Runs to the end, or throws std::runtime_error with the reason why it cannot.
  void run();

  const troupe::supervision::complete& end() const { return *end_; }
  /// The number that each rank's lane holds at the end.
  std::vector<std::uint64_t> numbers() const;
  static std::uint64_t expected(std::int64_t steps);

  std::vector<std::int64_t> commits;
  int killed = 0;
  std::set<std::string_view> handled;  ///< names of hooks that lanes handled
  /// By rank and step: how often the weights were updated.
  std::map<std::pair<std::int32_t, std::int64_t>, int> updates;

private:
  struct rank {
    std::int32_t number = 0;
    std::int32_t process = 0;
    troupe::incarnation_id incarnation;
    std::optional<troupe::rank_machine> machine;
    std::deque<troupe::supervision::order> inbox;
    std::optional<troupe::hook_run> run;
    lane_state lane;
    std::uint64_t generation = 0;  ///< of its communicator
    bool attention = false;
    bool aborted = false;  ///< its communicator
    bool lane_closing = false;
    bool stuck = false;
    bool overdue = false;
    bool alive = false;
    std::size_t collectives = 0;  ///< number of its runs with a collective in this generation
  };
  struct choice {
    enum class kind { order, report, answer, lane_end, fault, overdue, deadline } what;
    std::size_t which;
  };

  void feed(const troupe::supervision::event& e);
  void carry_out(const troupe::supervision::action& a);
  void feed(rank& r, const troupe::ranks::event& e);
  void carry_out(rank& r, const troupe::ranks::action& a);
  void take(const choice& c);
  void ask_for_change();
  void end_processes();
  rank& at(std::size_t i) { return i < ranks_.size() ? ranks_[i] : old_[i - ranks_.size()]; }
  const rank& at(std::size_t i) const { return const_cast<job&>(*this).at(i); }
  std::size_t all_ranks() const { return ranks_.size() + old_.size(); }
  void answer(rank& r);
  void kill(rank& r);
  void end_of(rank& r);
  bool in_processes() const { return options_.leaves + options_.scales > 0; }
  bool may_answer(const rank& r) const;
  bool all_arrived(const rank& r) const;
  troupe::ran handle(rank& r);
  bool handle(rank& r, const troupe::hook& h, troupe::hook_outcome& out);
  std::vector<choice> choices() const;
  std::size_t pick(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>{0, n - 1}(random_);
  }

  job_options options_;
  std::mt19937_64 random_;
  troupe::supervisor_machine supervisor_;
  std::vector<rank> ranks_;
  std::deque<rank> old_;                // incarnations that moved, and may not have ended
  std::set<std::int32_t> ending_;       // processes
  std::multiset<int> asks_for_change_;  // in which moves
  // By generation and rank: runs with a collective that were submitted.
  std::map<std::uint64_t, std::vector<std::size_t>> arrived_;
  std::deque<troupe::supervision::event> reports_;
  std::optional<std::uint64_t> deadline_;
  std::optional<troupe::supervision::complete> end_;
  int kills_left_, throws_left_, stuck_left_, scales_left_;
};

}  // namespace elastic
