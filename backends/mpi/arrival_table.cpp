#include "backends/mpi/arrival_table.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace troupe::mpi {

arrival_table::arrival_table(std::vector<std::int32_t> members)
    : members_(std::move(members)), arrivals_(members_.size(), 0) {}

std::size_t arrival_table::member(std::int32_t rank) const {
  const auto found = std::lower_bound(members_.begin(), members_.end(), rank);
  if (found == members_.end() || *found != rank)
    throw std::invalid_argument(fmt::format("rank {} is no member", rank));
  return static_cast<std::size_t>(found - members_.begin());
}

const arrival_table::entry* arrival_table::find(std::uint64_t number) const {
  if (number < first_ || number - first_ >= window_.size()) return nullptr;
  return &window_[number - first_];
}

std::optional<std::string> arrival_table::arrive(std::size_t member, const collective_call& call,
                                                 bool yes) {
  const auto number = arrivals_.at(member);
  if (number < first_) throw internal_error("a rank arrives at an operation that is over");
  if (number - first_ >= limit)
    throw internal_error(
        fmt::format("a rank is {} collectives ahead, more than it may be", number - first_));
  while (window_.size() <= number - first_) window_.push_back({std::vector<seat>(members_.size())});
  ++arrivals_[member];
  auto& at = window_[number - first_];
  at.seats[member] = {true, yes, call};
  ++at.arrived;
  std::vector<called> calls;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (at.seats[i].arrived) calls.push_back({members_[i], at.seats[i].call});
  const bool same = std::all_of(calls.begin(), calls.end(),
                                [&](const called& one) { return one.call == calls[0].call; });
  if (same) return std::nullopt;
  at.disagreed = true;
  return disagreement(number, calls);
}

bool arrival_table::complete(std::uint64_t number) const {
  const auto* at = find(number);
  return at && at->arrived == members_.size() && !at->disagreed;
}

std::vector<std::int32_t> arrival_table::missing(std::uint64_t number) const {
  if (number < first_) return {};
  const auto* at = find(number);
  std::vector<std::int32_t> ranks;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (!at || !at->seats[i].arrived) ranks.push_back(members_[i]);
  return ranks;
}

bool arrival_table::verdict(std::uint64_t number) const {
  const auto* at = find(number);
  if (!at) throw internal_error("no verdict of an operation that is over");
  const auto yes = [](const seat& one) { return one.yes; };
  return at->seats[0].call.all ? std::all_of(at->seats.begin(), at->seats.end(), yes)
                               : std::any_of(at->seats.begin(), at->seats.end(), yes);
}

void arrival_table::drop_before(std::uint64_t number) {
  while (first_ < number && complete(first_)) {
    window_.pop_front();
    ++first_;
  }
}

}  // namespace troupe::mpi
