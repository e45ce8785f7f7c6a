// Finds gradients that a rank computed alone, in modules that run backward themselves.
#pragma once

#include <memory>
#include <vector>

#include "troupe/detail/tensor.hpp"

namespace troupe {

/// Notes the gradients that a backward leaves in parameters. One that is changed or replaced after
/// that is no longer noted. Costs a hook per parameter and backward, and no look at numbers.
/// Not thread-safe: autograd's threads call its hooks while the caller of backward waits.
class gradient_watch {
public:
  gradient_watch();
  ~gradient_watch();

  /// Notes the gradients of these leaves from now on, too.
  void add(const std::vector<at::Tensor>& parameters);
  /// The gradient of `parameter` is as a backward left it that no `pause` was around.
  bool noted(const at::Tensor& parameter) const;
  /// Notes the gradient that `parameter` has now.
  void note(const at::Tensor& parameter);

  /// While it lives, nothing is noted. `whose` may be null.
  class pause {
  public:
    explicit pause(gradient_watch* whose);
    ~pause();
    pause(const pause&) = delete;
    pause& operator=(const pause&) = delete;

  private:
    gradient_watch* whose_;
  };

private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace troupe
