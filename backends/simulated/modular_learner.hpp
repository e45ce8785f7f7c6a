// The integer payload: training with integers modulo 2^61 - 1, where sums are associative, so that
// every difference is an error of logic. It has the parts of a real training: a gradient that
// depends on the weights, a mean over samples, momentum, noise keyed by (seed, epoch, batch, rank),
// and buffers that rank 0 broadcasts. A serial reference computes the expected states.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "troupe/detail/data_order.hpp"
#include "troupe/learner.hpp"

namespace troupe {

/// The state of a replica. Regular.
struct modular_state {
  std::vector<std::uint64_t> weights;
  std::vector<std::uint64_t> momentum;
  std::uint64_t statistic = 0;  ///< a buffer that only rank 0's samples change

  friend bool operator==(const modular_state&, const modular_state&) = default;
  std::uint64_t digest() const;

  /// Value of weights and momentum after a NaN in any gradient. It is not an element of the field.
  static constexpr std::uint64_t not_a_number = (std::uint64_t{1} << 61) - 1;
  bool is_nan() const { return !weights.empty() && weights.front() == not_a_number; }
};

/// One finished step of one rank: the samples that all ranks consumed, and the state.
struct finished_step {
  job_id job;
  std::int32_t rank = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;  ///< number of finished steps
  std::int64_t epoch = 0;
  piece consumed;            ///< part of the epoch's order that all ranks consumed
  std::uint64_t digest = 0;  ///< of the state after the step
  const modular_state* state = nullptr;
};

struct modular_options {
  std::int64_t samples = 64;
  std::size_t width = 8;
  bool buffers = false;  ///< broadcast the statistic after each step
  bool logs = false;     ///< after each step log `logged_state` of the state, and queue its number
  /// Call collectives in hooks of batches and epochs, as a user's hooks may, and check the results.
  bool collectives = false;
  /// Called at every hook, in the lane; may throw.
  std::function<void(const learner_context& context, const hook& what)> at_hook;
  /// False if `at_hook` would do nothing now. The learner asks once before it passes several hooks
  /// at one moment, and then skips `at_hook` for all of them. Empty: `at_hook` is always called.
  std::function<bool()> faults_due;
  /// Called at every backward: true makes that rank's gradient NaN.
  std::function<bool(const learner_context& context, const position& at)> poisons;
  /// Called after every step of every rank, in the lane; may throw.
  std::function<void(const finished_step& what)> stepped;
  /// Reads a checkpoint; required for runs that resume.
  std::function<snapshot(const std::string& path)> load;
};

/// The value that is logged for a state with this digest, and its name.
inline constexpr const char* logged_state = "train/state";
inline double logged_value(std::uint64_t digest) { return static_cast<double>(digest >> 11); }

/// Makes integer learners, for lanes that cannot wait (the learner throws `not_yet`) and for those
/// that can.
class modular_recipe : public learner_recipe {
public:
  explicit modular_recipe(modular_options options) : options_(std::move(options)) {}
  std::unique_ptr<learner> make(const learner_context& context) const override;

  const modular_options& options() const { return options_; }
  using order = std::shared_ptr<const std::vector<std::int64_t>>;
  /// The epoch's order, computed once for all ranks. Thread-safe.
  order order_of(std::uint64_t seed, std::int64_t epoch) const;

private:
  const modular_options options_;
  mutable std::mutex guard_;
  mutable std::vector<std::pair<std::pair<std::uint64_t, std::int64_t>, order>> orders_;
};

/// Converts a snapshot's tensors to a state and back. Throws user_error (checkpoint) if they are
/// not one.
modular_state modular_state_of(const snapshot& what);
snapshot snapshot_of(const modular_state& what);

/// The state after every step of any run of that job, computed serially. Index 0 is the initial
/// state.
class modular_reference {
public:
  modular_reference(const modular_options& options, const trainer_options& run);
  /// Computes up to the step that is asked for.
  const modular_state& after(std::int64_t step);
  std::uint64_t digest_after(std::int64_t step);
  /// Epoch and samples of step `step`, counted from 1.
  std::pair<std::int64_t, piece> consumed_by(std::int64_t step);

private:
  void advance();

  modular_options options_;
  trainer_options run_;
  std::int64_t epoch_ = 0;
  std::int64_t batch_ = 0;
  std::vector<std::int64_t> order_;
  std::vector<modular_state> states_;
  std::vector<std::uint64_t> digests_;
  std::vector<std::pair<std::int64_t, piece>> consumed_;
};

}  // namespace troupe
