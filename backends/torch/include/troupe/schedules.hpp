// Schedules of learning rates that LibTorch lacks: those of torch.optim.lr_scheduler, equal step by
// step. `optimizers::scheduled` attaches one:
// `troupe::optimizers{torch::optim::SGD(parameters(), 0.1)}
//      .scheduled(troupe::schedules::cosine_annealing(1000), {.every = schedule::interval::step})`
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
class LRScheduler;
}  // namespace torch::optim

namespace troupe::schedules {

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
  /// The share of steps in which the rate rises: 0 to 1.
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

/// The rates of an optimizer's groups before any schedule.
std::shared_ptr<std::vector<double>> initial_rates(torch::optim::Optimizer& of);
/// As a scheduler of LibTorch, whose first step sets the first rates. All plans of an optimizer
/// share `initial`.
std::shared_ptr<torch::optim::LRScheduler> make_scheduler(
    torch::optim::Optimizer& of, std::shared_ptr<std::vector<double>> initial, const plan& which);

}  // namespace troupe::schedules
