// The result of configure_optimizers: optimizers, each with its schedulers.
#pragma once

#include "troupe/observer.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
class LRScheduler;
}  // namespace torch::optim

namespace troupe::schedules {

// Schedules of learning rates that LibTorch lacks: those of torch.optim.lr_scheduler, equal step by
// step. `optimizers::scheduled` attaches one:
// `troupe::optimizers{torch::optim::SGD(parameters(), 0.1)}
//      .scheduled(troupe::schedules::cosine_annealing(1000), {.every = schedule::interval::step})`

/// A parameter group as a curve sees and changes it.
struct group {
  double initial = 0;   ///< the rate before any schedule; one_cycle replaces it
  double rate = 0;      ///< now
  double momentum = 0;  ///< now; the first beta of Adam and AdamW
  /// The optimizer is SGD, RMSprop, Adam or AdamW.
  bool has_momentum = false;
};

/// A plan in use by one optimizer. A user may derive one.
class curve {
public:
  virtual ~curve() = default;
  /// Called once, before all steps. Sets the groups' first rates.
  virtual void begin(std::vector<group>& groups) = 0;
  /// The groups' next rates.
  virtual void step(std::vector<group>& groups) = 0;
};

/// How to make a curve: a value that may be copied, and used by several optimizers.
using plan = std::function<std::unique_ptr<curve>()>;

// Each has the arguments, defaults and arithmetic of the PyTorch class that its comment names. `n`
// counts steps from 0. Impossible arguments are a user_error.

/// LambdaLR: initial rate x of(n). One function for all groups, or one per group.
/// @{
plan lambda(std::function<double(std::int64_t n)> of);
plan lambda(std::vector<std::function<double(std::int64_t n)>> of);
/// @}
/// MultiplicativeLR: the rate is multiplied by of(n) in each step.
plan multiplicative(std::function<double(std::int64_t n)> of);
/// ConstantLR: initial rate x factor until total_iters.
plan constant(double factor = 1.0 / 3, std::int64_t total_iters = 5);
/// LinearLR, for a warm-up: from initial rate x start_factor to x end_factor in total_iters.
plan linear(double start_factor = 1.0 / 3, double end_factor = 1, std::int64_t total_iters = 5);
/// ExponentialLR.
plan exponential(double gamma);
/// MultiStepLR: times gamma at each milestone.
plan multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);
/// PolynomialLR: to 0 in total_iters.
plan polynomial(std::int64_t total_iters = 5, double power = 1);
/// CosineAnnealingLR: half a cosine down to eta_min in t_max, and up again.
plan cosine_annealing(std::int64_t t_max, double eta_min = 0);
/// CosineAnnealingWarmRestarts: half a cosine down in t_0; each time t_mult times as long.
plan cosine_annealing_warm_restarts(std::int64_t t_0, std::int64_t t_mult = 1, double eta_min = 0);

/// OneCycleLR. Rates and momentums per group, or one for all.
struct one_cycle_options {
  /// The highest rates; must be given.
  std::vector<double> max_lr;
  /// Steps of the whole cycle; must be given.
  std::int64_t total_steps = 0;
  /// The share of steps in which the rate rises: 0 to 1. If that is one step, the first rate is the
  /// highest one; PyTorch divides by zero there.
  double pct_start = 0.3;
  /// The shape of the ways up and down.
  /// @{
  enum class anneal : std::uint8_t { cos, linear } anneal_strategy = anneal::cos;
  /// @}
  bool cycle_momentum = true;  ///< for optimizers with a momentum or betas
  /// At the highest rate.
  std::vector<double> base_momentum{0.85};
  /// At the lowest rate.
  std::vector<double> max_momentum{0.95};
  /// The first rate is max_lr over this.
  double div_factor = 25;
  /// The last rate is the first one over this.
  double final_div_factor = 1e4;
  /// Down to the first rate as fast as up, then on to the last one; else straight to the last one.
  bool three_phase = false;
};
/// Fails the step after the last of total_steps, as PyTorch does.
plan one_cycle(one_cycle_options how);

/// SequentialLR: the next plan begins at each milestone. Its parts are plans from above, not
/// sequential, chained or a user's own.
plan sequential(std::vector<plan> parts, std::vector<std::int64_t> milestones);
/// ChainedScheduler: all at once, each on the rate that the one before it made.
plan chained(std::vector<plan> parts);

/// ReduceLROnPlateau, in both modes. Not a plan: it reads a metric. `optimizers::scheduled` takes
/// it, in place of LibTorch's ReduceLROnPlateauScheduler. Groups that are added later count.
struct reduce_on_plateau {
  bool maximize = false;       ///< mode max: more is better
  double factor = 0.1;         ///< of the rate, below 1
  std::int64_t patience = 10;  ///< metrics without an improvement before the next one reduces
  double threshold = 1e-4;     ///< an improvement is more than this
  bool relative = true;        ///< threshold_mode rel: a share of the best metric
  std::int64_t cooldown = 0;   ///< metrics after a reduction that do not count
  /// The least rate: one for all groups, or one per group.
  std::vector<double> min_lr{0};
  double eps = 1e-8;  ///< a reduction by no more than this is left out
};

/// The rates of an optimizer's groups before any schedule.
std::shared_ptr<std::vector<double>> initial_rates(torch::optim::Optimizer& of);
/// As a scheduler of LibTorch, whose first step sets the first rates. All plans of an optimizer
/// share `initial`.
std::shared_ptr<torch::optim::LRScheduler> make_scheduler(
    torch::optim::Optimizer& of, std::shared_ptr<std::vector<double>> initial, const plan& which);

}  // namespace troupe::schedules

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
  /// Every optimizer step, or every epoch. A plateau scheduler steps at the end of a validation
  /// if validations log its metric, else at the end of each epoch.
  interval every = interval::epoch;
  std::int64_t frequency = 1;        ///< only every n-th time
  std::string monitor = "val/loss";  ///< plateau schedulers
};

class optimizers;

/// One scheduler of LibTorch that counts as PyTorch's schedulers do: it computes its first rates at
/// once, so that its first step ends its first interval (LibTorch's own first step changes
/// nothing). Its state is the list of its inputs: a new scheduler with the same inputs is in the
/// same state, a user's own scheduler included. Not thread-safe.
class scheduler {
public:
  /// Throws user_error if null, and for `every` plateau of a scheduler that reads no metric. One
  /// that is not a plateau's makes its first step here. LibTorch's plateau scheduler is wrong in
  /// mode max: it begins with the smallest positive float as the best metric, so that none below 0
  /// improves, and with ThresholdMode abs it multiplies the best one by the threshold. Use
  /// schedules::reduce_on_plateau. Attached to optimizers, LibTorch's moves the groups that its
  /// optimizer has then; later ones keep their rates, as with plans.
  /// @{
  scheduler(std::shared_ptr<torch::optim::LRScheduler> plain, schedule when);
  scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau, schedule when);
  /// @}

  /// When it steps.
  const schedule& when() const { return when_; }
  /// Whether it reads a metric.
  bool plateau() const { return plateau_ != nullptr || on_metric_ != nullptr; }
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
  friend optimizers;
  scheduler(std::function<void(double)> on_metric, schedule when);
  void move(double metric);

  std::shared_ptr<torch::optim::LRScheduler> plain_;
  std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau_;
  std::function<void(double)> on_metric_;  // reduce_on_plateau; copies share its state
  torch::optim::Optimizer* of_ = nullptr;  // of a plateau's scheduler, once it is attached
  std::size_t moved_ = 0;                  // its groups then
  schedule when_;
  std::int64_t offered_ = 0;
  std::vector<double> fed_;
};

/// One optimizer and the schedulers that move its rates, in this order.
struct scheduled_optimizer {
  /// Never null.
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  /// May be empty.
  std::vector<scheduler> schedulers;
  /// The rate of each group before any plan; null: no plan is attached.
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
  /// Drops repeats in a group. Throws user_error: null, or two groups have the same parameter.
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
  /// Attaches a plan of `schedules`.
  optimizers& scheduled(const schedules::plan& which, schedule how = {});
  /// Attaches what reduces the rates by a metric. Throws user_error for impossible values.
  optimizers& scheduled(const schedules::reduce_on_plateau& which, schedule how = {});
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
