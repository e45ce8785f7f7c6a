// Inside of the reducer. Split by time: reducer_layout.cpp (between steps), reducer.cpp (in one).
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <optional>
#include <unordered_set>

#include "backends/torch/reducer.hpp"

namespace troupe {

struct reducer::state : std::enable_shared_from_this<reducer::state> {
  struct member {
    parameter what;
    at::Tensor place;  // in bucket memory; undefined while it takes no part
    std::size_t in_bucket = 0;
    bool taking_part = false;  // required a gradient when the buckets were laid out
    bool placed = false;       // its gradient is (or was, in this window) in its place
    int arrivals = 0;          // in the backward in progress
    int expected = 1;          // of them, before its bucket may leave
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor{})) accumulator;
  };
  struct bucket {
    std::vector<std::size_t> members;
    std::uint64_t optimizers = 1;
    at::Tensor all;                            // gradients and word
    at::Tensor gradients;                      // without the word
    at::Tensor word;                           // undefined: carries none
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
  std::shared_ptr<communicator> world;
  reducer_options options;
  figures seen;

  // The backward in progress.
  bool armed = false;
  bool held_back = false;
  last_backward now;
  bool learning = false;             // static_graph: this backward shows what the others will do
  std::vector<std::size_t> leaving;  // buckets, in order
  std::size_t next = 0;
  std::exception_ptr error;
  std::vector<std::optional<std::vector<int>>> usage;  // by optimizer, then member: arrivals

  // Between steps.
  void listen(std::size_t index);
  void lay_out();
  void allocate(bucket& one, bool with_word);
  bool membership_changed() const;
  void learn_from_first_steps();
  void measure();

  // In one.
  void expect();
  bool settle(member& one);
  void arrived(std::size_t index) noexcept;
  void check_usage();
  void leave(std::size_t index);
  std::vector<double> numbers_of_word() const;
  word take_word(const double* numbers);
  word exchange_word();
  word read_word(const bucket& one);
  bool of_optimizer(const member& one) const {
    return one.taking_part && (buckets[one.in_bucket].optimizers >> now.optimizer & 1);
  }

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

/// The nodes that a backward from `loss` runs.
std::unordered_set<const torch::autograd::Node*> nodes_behind(const at::Tensor& loss);

}  // namespace troupe
