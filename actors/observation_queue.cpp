#include "actors/observation_queue.hpp"

#include <algorithm>
#include <iterator>

#include "troupe/detail/coverage.hpp"

namespace troupe {

bool observation_queue::push(observation_ptr what) {
  const std::lock_guard lock(guard_);
  const bool was_empty = waiting_.empty();
  if (waiting_.size() >= limit_ || rare(coverage_point::observations_full)) make_room();
  waiting_.push_back(std::move(what));
  return was_empty;
}

void observation_queue::make_room() {
  const auto drop_oldest = [&](auto is) {
    const auto found = std::ranges::find_if(waiting_, is);
    if (found == waiting_.end()) return false;
    dropped_.add(**found);
    waiting_.erase(found);
    return true;
  };
  if (drop_oldest([](const auto& o) { return std::holds_alternative<seen::progress>(*o); })) return;
  drop_oldest([](const auto& o) { return is_detail(*o); });
}

std::vector<observation_ptr> observation_queue::take() {
  const std::lock_guard lock(guard_);
  std::vector<observation_ptr> all{std::make_move_iterator(waiting_.begin()),
                                   std::make_move_iterator(waiting_.end())};
  waiting_.clear();
  return all;
}

observation_ptr observation_queue::take_one() {
  const std::lock_guard lock(guard_);
  if (waiting_.empty()) return nullptr;
  auto oldest = std::move(waiting_.front());
  waiting_.pop_front();
  return oldest;
}

bool observation_queue::empty() const {
  const std::lock_guard lock(guard_);
  return waiting_.empty();
}

void observation_queue::add_dropped(dropped_observations elsewhere) {
  if (!wants_hooks_) elsewhere.hooks = 0;
  const std::lock_guard lock(guard_);
  dropped_.add(elsewhere);
}

dropped_observations observation_queue::dropped() const {
  const std::lock_guard lock(guard_);
  return dropped_;
}

}  // namespace troupe
