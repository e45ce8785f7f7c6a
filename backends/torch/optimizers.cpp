#include "troupe/optimizers.hpp"

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "troupe/failure.hpp"

namespace troupe {

scheduler::scheduler(std::shared_ptr<torch::optim::LRScheduler> plain, schedule how)
    : plain_(std::move(plain)), how_(std::move(how)) {
  if (!plain_) throw user_error(errc::job_failed, "configure_optimizers: a scheduler is null");
  plain_->step();
}

scheduler::scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau,
                     schedule how)
    : plateau_(std::move(plateau)), how_(std::move(how)) {
  if (!plateau_) throw user_error(errc::job_failed, "configure_optimizers: a scheduler is null");
}

void scheduler::step(std::optional<double> metric) {
  if (++offered_ % std::max<std::int64_t>(how_.frequency, 1) != 0) return;
  if (plateau_ && !metric)
    throw user_error(errc::job_failed, "a plateau scheduler waits for \"" + how_.monitor +
                                           "\", which was not logged: log it in validation_step, "
                                           "or name another in schedule::monitor");
  move(metric.value_or(0));
}

void scheduler::move(double metric) {
  if (!plateau_) return plain_->step();
  fed_.push_back(metric);
  plateau_->step(static_cast<float>(metric));
}

void scheduler::replay(std::int64_t offered, const std::vector<double>& fed) {
  if (plateau_) {
    for (auto i = fed_.size(); i < fed.size(); ++i) move(fed[i]);
  } else {
    const auto every = std::max<std::int64_t>(how_.frequency, 1);
    for (auto n = offered / every - offered_ / every; n > 0; --n) plain_->step();
  }
  offered_ = offered;
}

optimizers& optimizers::add(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (!optimizer) throw user_error(errc::job_failed, "configure_optimizers: an optimizer is null");
  all_.push_back({std::move(optimizer), {}});
  return *this;
}

torch::optim::Optimizer& optimizers::last() {
  if (all_.empty())
    throw user_error(errc::job_failed,
                     "configure_optimizers: a schedule needs an optimizer before it");
  return *all_.back().optimizer;
}

optimizers& optimizers::attach(std::shared_ptr<torch::optim::LRScheduler> plain, schedule how) {
  last();
  all_.back().schedulers.emplace_back(std::move(plain), std::move(how));
  return *this;
}

optimizers& optimizers::attach(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau,
                               schedule how) {
  last();
  all_.back().schedulers.emplace_back(std::move(plateau), std::move(how));
  return *this;
}

}  // namespace troupe
