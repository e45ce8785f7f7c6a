#include "actors/snapshot_sender.hpp"

#include <algorithm>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

void snapshot_sender::send(write_checkpoint m) {
  const auto monitor = monitored_by(policy_.monitor, m.what->loop);
  kept_checkpoint now{m.what->loop.steps, {}, monitor.has_value(), monitor.value_or(0)};
  std::vector<kept_checkpoint> all{now};
  for (const auto& one : waiting_) all.push_back(one.what);
  std::vector<waiting_snapshot> left;
  for (auto& one : waiting_) {
    if (waits_as_best(one.what, all, sent_, policy_)) {
      left.push_back(std::move(one));
    } else if (sometimes(to_.withdraw(one.tag), coverage_point::snapshot_withdrawn)) {
      m.skipped += 1 + one.skipped;
    } else {
      remember(std::move(one.what));
    }
  }
  waiting_ = std::move(left);
  if (m.must) {
    remember(std::move(now));
    to_.send(std::move(m));
  } else {
    waiting_.push_back({++tags_, std::move(now), m.skipped});
    to_.send(std::move(m), keep::until_withdrawn, tags_);
  }
}

// Only how good they were counts, and only of as many as keep_best keeps.
void snapshot_sender::remember(kept_checkpoint sent) {
  if (!sent.has_monitor || policy_.keep_best <= 0) return;
  sent_.push_back(std::move(sent));
  auto last_only = policy_;
  last_only.keep_last = 1;
  for (const auto step : to_remove(sent_, last_only))
    std::erase_if(sent_, [step](const auto& one) { return one.step == step; });
}

}  // namespace troupe
