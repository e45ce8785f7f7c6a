#include "troupe/optimizers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

void refuse_steps(const schedule& when) {
  if (when.every == schedule::interval::step)
    throw user_error(errc::job_failed,
                     "configure_optimizers: a plateau scheduler looks at its metric when an epoch "
                     "or a validation ends, not at steps: leave out schedule::every");
}

}  // namespace

scheduler::scheduler(std::shared_ptr<torch::optim::LRScheduler> plain, schedule when)
    : plain_(std::move(plain)), when_(std::move(when)) {
  if (!plain_) throw user_error(errc::job_failed, "configure_optimizers: a scheduler is null");
  if (when_.every == schedule::interval::plateau)
    throw user_error(errc::job_failed,
                     "configure_optimizers: a scheduler that reads no metric steps with every step "
                     "or epoch: set schedule::every to one of them");
  plain_->step();
}

scheduler::scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau,
                     schedule when)
    : plateau_(std::move(plateau)), when_(std::move(when)) {
  if (!plateau_) throw user_error(errc::job_failed, "configure_optimizers: a scheduler is null");
  refuse_steps(when_);
}

scheduler::scheduler(std::function<void(double)> on_metric, schedule when)
    : on_metric_(std::move(on_metric)), when_(std::move(when)) {
  refuse_steps(when_);
}

void scheduler::step(std::optional<double> metric) {
  if (++offered_ % std::max<std::int64_t>(when_.frequency, 1) != 0) return;
  if (plateau() && !metric)
    throw user_error(errc::job_failed, "a plateau scheduler waits for \"" + when_.monitor +
                                           "\", which was not logged: log it, or name "
                                           "another in schedule::monitor");
  move(metric.value_or(0));
}

namespace {

// Takes the groups that were added later out of an optimizer as long as it lives. LibTorch's
// plateau scheduler would read its list of least rates past the end for them.
class later_groups {
public:
  later_groups(torch::optim::Optimizer* of, std::size_t first) : of_(of) {
    if (!of_ || of_->param_groups().size() <= first) return;
    auto& all = of_->param_groups();
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    later_.assign(std::make_move_iterator(begin), std::make_move_iterator(all.end()));
    all.erase(begin, all.end());
  }
  ~later_groups() {
    for (auto& one : later_) of_->param_groups().push_back(std::move(one));
  }
  later_groups(const later_groups&) = delete;
  later_groups& operator=(const later_groups&) = delete;

private:
  torch::optim::Optimizer* of_;
  std::vector<torch::optim::OptimizerParamGroup> later_;
};

}  // namespace

void scheduler::move(double metric) {
  if (!plateau()) return plain_->step();
  fed_.push_back(metric);
  if (on_metric_) return on_metric_(metric);
  const later_groups aside{of_, moved_};
  plateau_->step(static_cast<float>(metric));
}

void scheduler::replay(std::int64_t offered, const std::vector<double>& fed) {
  if (plateau()) {
    for (auto i = fed_.size(); i < fed.size(); ++i) move(fed[i]);
  } else {
    const auto every = std::max<std::int64_t>(when_.frequency, 1);
    for (auto n = offered / every - offered_ / every; n > 0; --n) plain_->step();
  }
  offered_ = offered;
}

namespace {

// Module::parameters() of LibTorch lists a parameter once for each of its names, PyTorch's once.
void drop_repeats(torch::optim::Optimizer& of) {
  std::map<const c10::TensorImpl*, std::size_t> group_with;
  auto& groups = of.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    std::erase_if(groups[g].params(), [&](const at::Tensor& one) {
      const auto [known, fresh] = group_with.emplace(one.unsafeGetTensorImpl(), g);
      if (!fresh && known->second != g)
        throw user_error(
            errc::job_failed,
            fmt::format("configure_optimizers: groups {} and {} of an optimizer have the same "
                        "parameter, of shape ({}): give each parameter to one group",
                        known->second, g, fmt::join(one.sizes(), ", ")));
      return !fresh;
    });
}

}  // namespace

optimizers& optimizers::add(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (!optimizer) throw user_error(errc::job_failed, "configure_optimizers: an optimizer is null");
  drop_repeats(*optimizer);
  all_.push_back({std::move(optimizer), {}, nullptr});
  return *this;
}

torch::optim::Optimizer& optimizers::last() {
  if (all_.empty())
    throw user_error(errc::job_failed,
                     "configure_optimizers: a schedule needs an optimizer before it");
  return *all_.back().optimizer;
}

optimizers& optimizers::scheduled(const schedules::plan& which, schedule how) {
  auto& optimizer = last();
  auto& initial = all_.back().initial_rates;
  if (!initial) initial = schedules::initial_rates(optimizer);
  return attach(schedules::make_scheduler(optimizer, initial, which), std::move(how));
}

namespace {

// torch.optim.lr_scheduler.ReduceLROnPlateau.
class plateau_watch {
public:
  plateau_watch(torch::optim::Optimizer& of, schedules::reduce_on_plateau how)
      : of_(of), how_(std::move(how)), best_(how_.maximize ? -HUGE_VAL : HUGE_VAL) {
    if (!(how_.factor < 1) || how_.patience < 0 || how_.cooldown < 0)
      throw user_error(errc::job_failed,
                       fmt::format("schedules::reduce_on_plateau: factor is {}, patience {} and "
                                   "cooldown {}: give a factor below 1, and the others from 0",
                                   how_.factor, how_.patience, how_.cooldown));
    check_groups();
  }

  void take(double metric) {
    if (improves(metric)) {
      best_ = metric;
      bad_ = 0;
    } else {
      ++bad_;
    }
    if (cooling_ > 0) {
      --cooling_;
      bad_ = 0;
    }
    if (bad_ <= how_.patience) return;
    reduce();
    cooling_ = how_.cooldown;
    bad_ = 0;
  }

private:
  bool improves(double metric) const {
    const auto sign = how_.maximize ? 1 : -1;
    const auto limit =
        how_.relative ? best_ * (1 + sign * how_.threshold) : best_ + sign * how_.threshold;
    return how_.maximize ? metric > limit : metric < limit;
  }
  void check_groups() const {
    const auto groups = of_.param_groups().size();
    if (how_.min_lr.size() == 1 || how_.min_lr.size() == groups) return;
    throw user_error(errc::job_failed,
                     fmt::format("schedules::reduce_on_plateau: min_lr holds {} numbers for {} "
                                 "parameter groups: give one, or one for each",
                                 how_.min_lr.size(), groups));
  }
  void reduce() {
    check_groups();
    auto& groups = of_.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto old = groups[i].options().get_lr();
      const auto least = how_.min_lr[how_.min_lr.size() == 1 ? 0 : i];
      const auto next = std::max(old * how_.factor, least);
      if (old - next > how_.eps) groups[i].options().set_lr(next);
    }
  }

  torch::optim::Optimizer& of_;
  schedules::reduce_on_plateau how_;
  double best_;
  std::int64_t bad_ = 0;
  std::int64_t cooling_ = 0;
};

}  // namespace

optimizers& optimizers::scheduled(const schedules::reduce_on_plateau& which, schedule how) {
  const auto watch = std::make_shared<plateau_watch>(last(), which);
  all_.back().schedulers.push_back(
      scheduler{[watch](double metric) { watch->take(metric); }, std::move(how)});
  return *this;
}

optimizers& optimizers::attach(std::shared_ptr<torch::optim::LRScheduler> plain, schedule how) {
  last();
  all_.back().schedulers.emplace_back(std::move(plain), std::move(how));
  return *this;
}

optimizers& optimizers::attach(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau,
                               schedule how) {
  auto& optimizer = last();
  auto& added = all_.back().schedulers.emplace_back(std::move(plateau), std::move(how));
  added.of_ = &optimizer;
  added.moved_ = optimizer.param_groups().size();
  return *this;
}

}  // namespace troupe

// A plan as a scheduler of LibTorch.
namespace troupe::schedules {

namespace {

template <class Options>
bool visit_betas(torch::optim::OptimizerOptions& options, group& g, bool write) {
  auto* known = dynamic_cast<Options*>(&options);
  if (!known) return false;
  auto [first, second] = known->betas();
  if (write)
    known->betas({g.momentum, second});
  else
    g.momentum = first;
  return true;
}

template <class Options>
bool visit_momentum(torch::optim::OptimizerOptions& options, group& g, bool write) {
  auto* known = dynamic_cast<Options*>(&options);
  if (!known) return false;
  if (write)
    known->momentum(g.momentum);
  else
    g.momentum = known->momentum();
  return true;
}

bool visit(torch::optim::OptimizerOptions& options, group& g, bool write) {
  using namespace torch::optim;
  return visit_momentum<SGDOptions>(options, g, write) ||
         visit_betas<AdamOptions>(options, g, write) ||
         visit_betas<AdamWOptions>(options, g, write) ||
         visit_momentum<RMSpropOptions>(options, g, write);
}

/// Moves the groups that the optimizer has now; later ones keep their rates.
class planned_scheduler final : public torch::optim::LRScheduler {
public:
  planned_scheduler(torch::optim::Optimizer& of, std::shared_ptr<std::vector<double>> initial,
                    const plan& which)
      : LRScheduler(of),
        of_(of),
        initial_(std::move(initial)),
        curve_(which()),
        moved_(of.param_groups().size()) {
    if (!curve_) throw user_error(errc::job_failed, "configure_optimizers: a plan made no curve");
  }

private:
  std::vector<double> get_lrs() override {
    auto groups = read();
    if (std::exchange(begun_, true))
      curve_->step(groups);
    else
      curve_->begin(groups);
    std::vector<double> rates;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].has_momentum) visit(of_.param_groups()[i].options(), groups[i], true);
      (*initial_)[i] = groups[i].initial;
      rates.push_back(groups[i].rate);
    }
    for (auto i = moved_; i < of_.param_groups().size(); ++i)
      rates.push_back(of_.param_groups()[i].options().get_lr());
    return rates;
  }

  std::vector<group> read() {
    std::vector<group> groups;
    for (std::size_t i = 0; i < moved_; ++i) {
      auto& one = of_.param_groups().at(i);
      auto& g = groups.emplace_back();
      if (groups.size() > initial_->size()) initial_->push_back(one.options().get_lr());
      g.initial = (*initial_)[groups.size() - 1];
      g.rate = one.options().get_lr();
      g.has_momentum = visit(one.options(), g, false);
    }
    return groups;
  }

  torch::optim::Optimizer& of_;
  std::shared_ptr<std::vector<double>> initial_;
  std::unique_ptr<curve> curve_;
  std::size_t moved_;  // groups, the first ones
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<std::vector<double>> initial_rates(torch::optim::Optimizer& of) {
  auto rates = std::make_shared<std::vector<double>>();
  for (auto& one : of.param_groups()) rates->push_back(one.options().get_lr());
  return rates;
}

std::shared_ptr<torch::optim::LRScheduler> make_scheduler(
    torch::optim::Optimizer& of, std::shared_ptr<std::vector<double>> initial, const plan& which) {
  return std::make_shared<planned_scheduler>(of, std::move(initial), which);
}

}  // namespace troupe::schedules
