#include "messages/lane.hpp"

#include <algorithm>
#include <iterator>

namespace troupe {

void hook_outcome::merge(hook_outcome&& later) {
  if (later.verdict != run_verdict::proceed) verdict = later.verdict;
  stop |= later.stop;
  save_due |= later.save_due;
  validation_due |= later.validation_due;
  if (!later.loaders.empty())
    loaders.insert(loaders.end(), later.loaders.begin(), later.loaders.end());
  if (later.optimizers) optimizers = later.optimizers;
  if (later.restored) restored = std::move(later.restored);
  if (!later.logged.empty())
    for (auto& [key, number] : later.logged) logged[key] = number;
  for (auto& key : later.prog_bar)
    if (std::ranges::find(prog_bar, key) == prog_bar.end()) prog_bar.push_back(std::move(key));
  if (later.snapshot) snapshot = std::move(later.snapshot);
  if (!later.queued.empty())
    std::move(later.queued.begin(), later.queued.end(), std::back_inserter(queued));
  if (later.splits > 0) splits = later.splits;
  if (!later.state_digest.empty()) state_digest = std::move(later.state_digest);
  samples += later.samples;
  waited += later.waited;
}

}  // namespace troupe
