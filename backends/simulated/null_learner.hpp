// The ghost payload: a training without numbers. It says what a real one says and waits for what a
// real one waits for; a gradient is its size, and costs time only. For worlds too wide for weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "troupe/learner.hpp"

namespace troupe {

struct null_options {
  std::int64_t samples = 64;  ///< of an epoch
  std::uint64_t gradient_bytes = std::uint64_t{256} << 20;
  std::uint64_t bucket_bytes = std::uint64_t{256} << 20;  ///< of one all_reduce, at most
  /// Called at every hook, on the lane's side; may throw.
  std::function<void(const learner_context& context, const hook& what)> at_hook;
  /// Whether `at_hook` has anything to do now; asked once for hooks that happen at one moment.
  /// Empty: it always has.
  std::function<bool()> faults_due;
  /// Called behind every step of every rank with the number of steps done, and the digest of where
  /// in the data it was: equal on all ranks.
  std::function<void(const learner_context& context, std::int64_t steps, std::uint64_t digest)>
      stepped;
  /// Reads a checkpoint; needed by runs that resume.
  std::function<snapshot(const std::string& path)> load;
};

/// The elements of each all_reduce of a step, in order.
template <class Use>
void each_bucket(const null_options& of, Use&& use) {
  const auto most = std::max<std::uint64_t>(4, of.bucket_bytes);
  for (auto left = of.gradient_bytes; left > 0;) {
    const auto now = std::min(left, most);
    use(std::max<std::uint64_t>(1, now / sizeof(float)));
    left -= now;
  }
}

/// Makes ghosts, for lanes on the simulated fabric: what they submit has no memory behind it. A
/// checkpoint holds the loop's state and nothing else.
class null_recipe : public learner_recipe {
public:
  explicit null_recipe(null_options options) : options_(std::move(options)) {}
  std::unique_ptr<learner> make(const learner_context& context) const override;
  const null_options& options() const { return options_; }

private:
  const null_options options_;
};

}  // namespace troupe
