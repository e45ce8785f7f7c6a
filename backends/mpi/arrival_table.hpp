// Which members have arrived at which operation of a (sub)group. A value; it does not use MPI.
#pragma once

#include "backends/collective/submission.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace troupe::mpi {

/// Operations are counted from 0; each member arrives at each of them once, in order. Remembers an
/// operation from its first arrival until it is dropped; at most `limit` at a time.
class arrival_table {
public:
  static constexpr std::size_t limit = collectives::ahead_max;

  explicit arrival_table(std::vector<std::int32_t> members);

  const std::vector<std::int32_t>& members() const { return members_; }
  /// The place of a world rank; throws std::invalid_argument if it is no member.
  std::size_t member(std::int32_t rank) const;
  /// Operations the member has arrived at.
  std::uint64_t arrivals(std::size_t member) const { return arrivals_[member]; }

  /// The member's next operation. Returns what disagrees with those before it, or nothing. Throws
  /// internal_error past the limit.
  std::optional<std::string> arrive(std::size_t member, const collective_call& call, bool yes);

  /// The oldest operation that is remembered.
  std::uint64_t first() const { return first_; }
  /// All have arrived and agree.
  bool complete(std::uint64_t number) const;
  /// World ranks that have not arrived; none for an operation that was dropped.
  std::vector<std::int32_t> missing(std::uint64_t number) const;
  /// The result of a complete `decide`: whether all ranks, or any rank, voted yes.
  bool verdict(std::uint64_t number) const;
  /// Forgets complete operations before `number`.
  void drop_before(std::uint64_t number);

  friend bool operator==(const arrival_table&, const arrival_table&) = default;

private:
  struct seat {
    bool arrived = false;
    bool yes = false;
    collective_call call;
    friend bool operator==(const seat&, const seat&) = default;
  };
  struct entry {
    std::vector<seat> seats;
    std::size_t arrived = 0;
    bool disagreed = false;
    friend bool operator==(const entry&, const entry&) = default;
  };
  const entry* find(std::uint64_t number) const;

  std::vector<std::int32_t> members_;
  std::vector<std::uint64_t> arrivals_;
  std::uint64_t first_ = 0;
  std::deque<entry> window_;
};

}  // namespace troupe::mpi
