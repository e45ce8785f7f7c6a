// The argument and the result of a module's steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "troupe/value.hpp"

namespace troupe {

/// One rank's part of one micro-batch, on the rank's device. Copies share the tensors.
class batch {
public:
  /// No samples: the batch that a rank without data gets in a batch's start and end hooks.
  batch() = default;
  /// `samples`: of `held`, at least 0.
  batch(value held, std::int64_t samples) : held_(std::move(held)), samples_(samples) {}

  /// Item `index` of a tuple or list; the tensor itself for 0 when the batch is one tensor. Throws
  /// std::out_of_range or std::invalid_argument that says what the batch is instead.
  const at::Tensor& operator[](std::size_t index) const;
  /// The item of a map. Throws likewise; the text lists the keys.
  const at::Tensor& operator[](std::string_view key) const;
  /// The batch as the dataset made it, with its types.
  const value& get() const { return held_; }
  /// Samples of this rank in this micro-batch.
  std::int64_t samples() const { return samples_; }
  /// No samples.
  bool empty() const { return samples_ == 0; }

private:
  value held_;
  std::int64_t samples_ = 0;
};

/// A step's result: a loss, a map with `loss` in it, any value (evaluation and prediction only), or
/// nothing.
class step_output {
public:
  step_output() = default;
  /// Implicit: steps return a loss, a value or a map as they are. An undefined loss is nothing.
  /// @{
  step_output(const at::Tensor& loss);
  step_output(value any) : held_(std::move(any)) {}
  step_output(value_map map) : held_(std::move(map)) {}
  step_output(const std::map<std::string, at::Tensor>& map);
  /// @}

  /// The step returned nothing.
  bool empty() const { return held_.empty(); }
  /// What the step returned.
  const value& get() const { return held_; }
  /// Is there a loss: one tensor, or a map with a tensor `loss`.
  bool has_loss() const { return find_loss() != nullptr; }
  /// Throws user_error that says what the step returned and what it should.
  const at::Tensor& loss() const;
  /// The entry `backward_arguments` of a map, for the module's backward; empty: none.
  value backward_arguments() const;
  /// The entry `hiddens` of a map, for the step of the next part of the batch (module::hiddens).
  value hiddens() const;

private:
  const at::Tensor* find_loss() const;
  value entry(const char* key) const;

  value held_;
};

}  // namespace troupe
