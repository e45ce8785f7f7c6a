// The null payload: training without numbers. It sends the same messages and waits for the same
// operations as a real training; a gradient is a size and costs time. For simulations too wide for
// weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "troupe/learner.hpp"

namespace troupe {

struct null_options {
  std::int64_t samples = 64;  ///< per epoch
  std::uint64_t gradient_bytes = std::uint64_t{256} << 20;
  std::uint64_t bucket_bytes = std::uint64_t{256} << 20;  ///< bound of one all_reduce
  /// Called at every hook, in the lane; may throw.
  std::function<void(const learner_context& context, const hook& what)> at_hook;
  /// False if `at_hook` would do nothing now. The learner asks once before it passes several hooks
  /// at one moment, and then skips `at_hook` for all of them. Empty: `at_hook` is always called.
  std::function<bool()> faults_due;
  /// Called after every step of every rank with the number of steps done and the digest of its
  /// position in the data, which is equal on all ranks.
  std::function<void(const learner_context& context, std::int64_t steps, std::uint64_t digest)>
      stepped;
  /// Reads a checkpoint; required for runs that resume.
  std::function<snapshot(const std::string& path)> load;
};

/// Calls `use` with the number of elements of each all_reduce of a step, in order.
template <class Use>
void each_bucket(const null_options& of, Use&& use) {
  const auto most = std::max<std::uint64_t>(4, of.bucket_bytes);
  for (auto left = of.gradient_bytes; left > 0;) {
    const auto now = std::min(left, most);
    use(std::max<std::uint64_t>(1, now / sizeof(float)));
    left -= now;
  }
}

/// Makes null learners, for lanes on the simulated fabric: their buffers have no memory. A
/// checkpoint holds only the loop's state.
class null_recipe : public learner_recipe {
public:
  explicit null_recipe(null_options options) : options_(std::move(options)) {}
  std::unique_ptr<learner> make(const learner_context& context) const override;
  const null_options& options() const { return options_; }

private:
  const null_options options_;
};

}  // namespace troupe
