// The result of configure_optimizers: optimizers, each with its schedulers.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/hooks.hpp"
#include "troupe/schedules.hpp"

namespace torch::optim {
class Optimizer;
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace troupe {

/// When a scheduler steps.
struct schedule {
  /// `plateau` is of plateau schedulers only.
  using interval = hooks::lr_scheduler_step::interval;
  /// Every optimizer step, or every epoch. A plateau scheduler steps when validation has produced
  /// its metric.
  interval every = interval::epoch;
  std::int64_t frequency = 1;        ///< only every n-th time
  std::string monitor = "val/loss";  ///< plateau schedulers
};

/// One scheduler of LibTorch that counts as PyTorch's schedulers do: it computes its first rates at
/// once, so that its first step ends its first interval (LibTorch's own first step changes
/// nothing). Its state is the list of its inputs: a new scheduler with the same inputs is in the
/// same state, a user's own scheduler included. Not thread-safe.
class scheduler {
public:
  /// Throws user_error if null. One that is not a plateau's makes its first step here.
  /// @{
  scheduler(std::shared_ptr<torch::optim::LRScheduler> plain, schedule how);
  scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau, schedule how);
  /// @}

  /// When it steps.
  const schedule& how() const { return how_; }
  /// Whether it reads a metric.
  bool plateau() const { return plateau_ != nullptr; }
  /// One step; counts for `frequency`. Throws user_error when a plateau scheduler gets no metric.
  void step(std::optional<double> metric);

  /// Steps so far, before `frequency` is applied.
  std::int64_t offered() const { return offered_; }
  /// The metrics that a plateau scheduler got.
  const std::vector<double>& metrics_fed() const { return fed_; }
  /// Repeats the inputs of another scheduler, on a new one or on one that has had the first of
  /// these inputs.
  void replay(std::int64_t offered, const std::vector<double>& fed);

private:
  void move(double metric);

  std::shared_ptr<torch::optim::LRScheduler> plain_;
  std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau_;
  schedule how_;
  std::int64_t offered_ = 0;
  std::vector<double> fed_;
};

/// One optimizer and the schedulers that move its rates, in this order.
struct scheduled_optimizer {
  /// Never null.
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  /// May be empty.
  std::vector<scheduler> schedulers;
  /// Of each group, before any plan; null: no plan is attached.
  std::shared_ptr<std::vector<double>> initial_rates;
};

/// `return torch::optim::SGD(parameters(), 0.1);`, or
/// `return troupe::optimizers{torch::optim::SGD(parameters(), 0.1)}
///     .scheduled<torch::optim::StepLR>({.every = troupe::schedule::interval::step}, 100, 0.5);`
/// Several: `.add(...)`; a schedule belongs to the optimizer added last.
class optimizers {
public:
  optimizers() = default;
  /// Implicit, for a module with one optimizer; see add.
  /// @{
  template <class O>
  requires std::derived_from<O, torch::optim::Optimizer> optimizers(O optimizer) {
    add(std::make_shared<O>(std::move(optimizer)));
  }
  template <class O>
  requires std::derived_from<O, torch::optim::Optimizer> optimizers(std::shared_ptr<O> optimizer) {
    add(std::move(optimizer));
  }
  /// @}

  /// Adds an optimizer without schedulers; a position's `optimizer` counts them in this order.
  /// Throws user_error if null.
  /// @{
  optimizers& add(std::shared_ptr<torch::optim::Optimizer> optimizer);
  template <class O>
  requires std::derived_from<O, torch::optim::Optimizer> optimizers& add(O optimizer) {
    return add(std::shared_ptr<torch::optim::Optimizer>(std::make_shared<O>(std::move(optimizer))));
  }
  /// @}
  /// Makes `S(optimizer, arguments...)` for the optimizer added last.
  template <class S, class... Arguments>
  optimizers& scheduled(schedule how, Arguments&&... arguments) {
    return attach(std::make_shared<S>(last(), std::forward<Arguments>(arguments)...),
                  std::move(how));
  }
  /// Attaches a plan of <troupe/schedules.hpp>.
  optimizers& scheduled(const schedules::plan& which, schedule how = {});
  /// Attaches a scheduler to the optimizer added last. Throws user_error if there is none.
  /// @{
  optimizers& attach(std::shared_ptr<torch::optim::LRScheduler> plain, schedule how = {});
  optimizers& attach(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau,
                     schedule how = {});
  /// @}

  /// In the order of add.
  /// @{
  std::vector<scheduled_optimizer>& all() { return all_; }
  const std::vector<scheduled_optimizer>& all() const { return all_; }
  /// @}

private:
  torch::optim::Optimizer& last();

  std::vector<scheduled_optimizer> all_;
};

}  // namespace troupe
