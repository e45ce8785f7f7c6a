// The reducer's state. reducer_layout.cpp works between steps, reducer.cpp during a step.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <optional>
#include <unordered_set>

#include "troupe/detail/reducer.hpp"

namespace troupe {

struct reducer::state : std::enable_shared_from_this<reducer::state> {
  static constexpr std::size_t none = -1;
  static constexpr std::size_t word_numbers = 3;  // of the status, before the parameters' flags

  struct member {
    parameter what;
    std::vector<std::int64_t> strides;  // of its gradient
    at::Tensor place;                   // in bucket memory; for a gradient in place: on demand
    at::Tensor held;                    // the gradient of this window, in the memory that is summed
    std::size_t in_bucket = none;
    bool stays = false;        // its gradient is summed in place, in autograd's tensor
    bool taking_part = false;  // required a gradient when the buckets were laid out
    bool placed = false;       // it had a gradient in this window
    int arrivals = 0;          // of its gradient, in the backward in progress
    int expected = 1;          // arrivals before its bucket may be sent
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor{})) accumulator;
  };
  struct bucket {
    std::vector<std::size_t> members;
    std::uint64_t optimizers = 1;
    at::Tensor all;                            // gradients and status; undefined: summed in place
    at::Tensor gradients;                      // without the status
    at::Tensor word;                           // the status; undefined: it carries none
    at::Tensor on_device;                      // the gradients, where `all` is a copy for the host
    std::vector<gradient_bucket::part> parts;  // for hooks
    gradient_bucket::memory kept;
    std::size_t missing = 0;  // members whose gradients have not all arrived
    bool left = false;
    bucket_future sum;
  };

  std::vector<member> members;
  std::vector<bucket> buckets;
  std::vector<std::size_t> order;  // of members, in the order in which they are laid out
  std::vector<std::size_t> trace;  // of members, as gradients arrived in the first steps
  std::vector<bool> stepped;       // by optimizer: has finished a step
  bool traced = false;
  std::shared_ptr<communicator> world;  // carries the buckets
  std::shared_ptr<communicator> host;   // carries everything else
  bool on_devices = false;              // buckets are memory of devices
  // Gradients are not in memory: they stay autograd's tensors. When their bucket is sent, they are
  // copied to their places, which are memory of the host.
  bool apart = false;
  reducer_options options;
  figures seen;

  // The backward in progress.
  bool armed = false;
  bool held_back = false;
  last_backward now;
  bool learning = false;             // static_graph: later backwards must arrive as this one does
  std::vector<std::size_t> leaving;  // buckets, in order
  std::size_t next = 0;
  std::exception_ptr error;
  std::vector<work_ptr> on_their_way;  // sums that a device still computes
  at::Tensor lone_word;                // the status as an operation of its own
  work_ptr lone_word_sum;
  std::vector<std::optional<std::vector<int>>> usage;  // by optimizer, then member: arrivals

  // Between steps.
  void listen(std::size_t index);
  bool summed_elsewhere(const member& one) const {
    return (one.what.optimizers & ~options.summed_elsewhere) == 0;
  }
  void lay_out();
  void allocate(bucket& one, bool with_word);
  bool membership_changed() const;
  bool any_joined() const;
  void learn_from_first_steps();
  void measure();

  // During a step.
  void expect();
  static bool can_stay(const member& one);
  static const at::Tensor& place_of(member& one);
  bool settle(member& one);
  void fetch(const bucket& one);
  void arrived(std::size_t index) noexcept;
  void check_usage();
  void leave(std::size_t index);
  buffer memory_of(at::Tensor& row) const;
  bool by_events() const { return on_devices && options.devices; }
  void complete(bucket& one);
  void settle();
  std::vector<double> numbers_of_word() const;
  word take_word(const double* numbers);
  void send_word(at::ScalarType type = at::kDouble);
  word receive_word();
  word read_word(const bucket& one);
  bool of_optimizer(const member& one) const {
    return one.taking_part && (one.what.optimizers >> now.optimizer & 1);
  }
  bool sums() const { return (options.summed_elsewhere >> now.optimizer & 1) == 0; }

  template <class F>
  void timed(F&& waits) {
    const auto before = clock();
    waits();
    seen.waited += clock() - before;
  }
  std::chrono::nanoseconds clock() const {
    return options.now ? options.now() : std::chrono::steady_clock::now().time_since_epoch();
  }
};

/// The graph nodes that a backward from `loss` runs.
std::unordered_set<const torch::autograd::Node*> nodes_behind(const at::Tensor& loss);

}  // namespace troupe
