#include "actors/observation_queue.hpp"

#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

observation_queue::entries& observation_queue::kind_of(const observation& what) {
  if (is_detail(what)) return details_;
  return std::holds_alternative<seen::progress>(what) ? progress_ : kept_;
}

bool observation_queue::push(observation_ptr what) {
  const std::lock_guard lock(guard_);
  const bool was_empty = size() == 0;
  if (size() >= limit_ || rare(coverage_point::observations_full)) make_room();
  auto& same_kind = kind_of(*what);
  same_kind.push_back({++newest_, std::move(what)});
  return was_empty;
}

void observation_queue::make_room() {
  auto& from = progress_.empty() ? details_ : progress_;
  if (from.empty()) return;
  dropped_.add(*from.front().what);
  from.pop_front();
}

observation_ptr observation_queue::oldest() {
  entries* first = nullptr;
  for (auto* each : {&progress_, &details_, &kept_})
    if (!each->empty() && (!first || each->front().number < first->front().number)) first = each;
  if (!first) return nullptr;
  auto what = std::move(first->front().what);
  first->pop_front();
  return what;
}

std::vector<observation_ptr> observation_queue::take() {
  const std::lock_guard lock(guard_);
  std::vector<observation_ptr> all;
  all.reserve(size());
  while (auto what = oldest()) all.push_back(std::move(what));
  return all;
}

observation_ptr observation_queue::take_one() {
  const std::lock_guard lock(guard_);
  return oldest();
}

bool observation_queue::empty() const {
  const std::lock_guard lock(guard_);
  return size() == 0;
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
