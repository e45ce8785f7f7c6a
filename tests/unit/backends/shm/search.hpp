// Visits every state that a small model can reach, breadth first, each state once.
#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <utility>

namespace troupe::testing {

struct search_result {
  std::size_t states = 0;
  std::size_t endings = 0;  ///< states without a successor
  std::string violation;    ///< empty: no state violates the model
};

/// `State` is ordered. `successors()` returns a range of states. `violation(last)` returns an empty
/// text if the state is allowed; `last` is true if the state has no successor.
template <class State>
search_result search(const State& first, std::size_t states_max = 5'000'000) {
  search_result result;
  std::set<State> seen{first};
  std::deque<State> open{first};
  while (!open.empty()) {
    const auto at = std::move(open.front());
    open.pop_front();
    ++result.states;
    const auto next = at.successors();
    if (next.empty()) ++result.endings;
    if (auto why = at.violation(next.empty()); !why.empty()) {
      result.violation = std::move(why);
      return result;
    }
    for (const auto& state : next)
      if (seen.insert(state).second) open.push_back(state);
    if (seen.size() > states_max) {
      result.violation = "more states than allowed";
      return result;
    }
  }
  return result;
}

}  // namespace troupe::testing
