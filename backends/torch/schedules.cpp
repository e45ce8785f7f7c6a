#include "troupe/optimizers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "troupe/failure.hpp"

// The arithmetic is that of torch/optim/lr_scheduler.py, in its order of operations.
namespace troupe::schedules {

namespace {

using groups = std::vector<group>;
using factor_function = std::function<double(std::int64_t)>;

[[noreturn]] void refuse(std::string_view which, std::string_view what) {
  throw user_error(errc::job_failed, fmt::format("schedules::{}: {}", which, what));
}

void require(bool fits, std::string_view which, std::string_view what) {
  if (!fits) refuse(which, what);
}

/// One of PyTorch's classes that derive from LRScheduler and change nothing but get_lr.
class simple : public curve {
public:
  void begin(groups& all) final {
    construct(all);
    for (const auto& one : all) bases_.push_back(one.initial);
    begin_again(all);
  }
  void step(groups& all) final {
    ++n_;
    advance();
    each(all, &simple::next);
  }
  /// The first part of a sequence, after all parts have begun.
  void begin_again(groups& all) {
    n_ = 0;
    each(all, &simple::first);
  }
  /// A later part of a sequence, at its milestone.
  void restart(groups& all) {
    n_ = 0;
    each(all, &simple::closed);
  }

protected:
  /// Before the initial rates are read.
  virtual void construct(groups& all) { (void)all; }
  virtual void advance() {}
  /// The rate of group i at step n.
  virtual double next(std::size_t i, group& g) = 0;
  /// The same at step 0, where a curve begins.
  virtual double first(std::size_t i, group& g) { return next(i, g); }
  /// The same at step 0, from the initial rate.
  virtual double closed(std::size_t i, group& g) { return next(i, g); }

  std::int64_t n() const { return n_; }
  double base(std::size_t i) const { return bases_[i]; }

private:
  void each(groups& all, double (simple::*rate)(std::size_t, group&)) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i].rate = (this->*rate)(i, all[i]);
  }

  std::vector<double> bases_;
  std::int64_t n_ = 0;
};

template <class Curve, class... Arguments>
plan plan_of(Arguments... arguments) {
  return [=]() -> std::unique_ptr<curve> { return std::make_unique<Curve>(arguments...); };
}

class lambda_curve final : public simple {
public:
  explicit lambda_curve(std::vector<factor_function> of) : of_(std::move(of)) {}

private:
  void construct(groups& all) override {
    require(of_.size() == 1 || of_.size() == all.size(), "lambda",
            fmt::format("{} functions for {} parameter groups: give one, or one per group",
                        of_.size(), all.size()));
  }
  double next(std::size_t i, group&) override {
    return base(i) * (of_.size() == 1 ? of_[0] : of_[i])(n());
  }

  std::vector<factor_function> of_;
};

class multiplicative_curve final : public simple {
public:
  explicit multiplicative_curve(factor_function of) : of_(std::move(of)) {}

private:
  double next(std::size_t, group& g) override { return g.rate * of_(n()); }
  double first(std::size_t, group& g) override { return g.rate; }

  factor_function of_;
};

class constant_curve final : public simple {
public:
  constant_curve(double factor, std::int64_t total) : factor_(factor), total_(total) {}

private:
  double next(std::size_t, group& g) override {
    if (n() == 0) return g.rate * factor_;
    return n() == total_ ? g.rate * (1.0 / factor_) : g.rate;
  }
  double closed(std::size_t i, group&) override {
    return base(i) * (factor_ + (n() >= total_ ? 1 - factor_ : 0));
  }

  double factor_;
  std::int64_t total_;
};

class linear_curve final : public simple {
public:
  linear_curve(double start, double end, std::int64_t total)
      : start_(start), end_(end), total_(static_cast<double>(total)) {}

private:
  double next(std::size_t, group& g) override {
    const auto at = static_cast<double>(n());
    if (n() == 0) return g.rate * start_;
    if (at > total_) return g.rate;
    return g.rate * (1.0 + (end_ - start_) / (total_ * start_ + (at - 1) * (end_ - start_)));
  }
  double closed(std::size_t i, group&) override { return base(i) * start_; }

  double start_, end_, total_;
};

class exponential_curve final : public simple {
public:
  explicit exponential_curve(double gamma) : gamma_(gamma) {}

private:
  double next(std::size_t, group& g) override { return g.rate * gamma_; }
  double first(std::size_t, group& g) override { return g.rate; }
  double closed(std::size_t i, group&) override { return base(i); }

  double gamma_;
};

class multi_step_curve final : public simple {
public:
  multi_step_curve(std::vector<std::int64_t> milestones, double gamma)
      : milestones_(std::move(milestones)), gamma_(gamma) {}

private:
  double next(std::size_t, group& g) override { return g.rate * decay(); }
  double closed(std::size_t i, group&) override { return base(i) * decay(); }
  double decay() const {
    return std::pow(gamma_, static_cast<double>(std::ranges::count(milestones_, n())));
  }

  std::vector<std::int64_t> milestones_;
  double gamma_;
};

class polynomial_curve final : public simple {
public:
  polynomial_curve(std::int64_t total, double power)
      : total_(static_cast<double>(total)), power_(power) {}

private:
  double next(std::size_t, group& g) override {
    const auto at = static_cast<double>(n());
    if (at > total_) return g.rate;
    return g.rate * std::pow((1.0 - at / total_) / (1.0 - (at - 1) / total_), power_);
  }
  double first(std::size_t, group& g) override { return g.rate; }
  double closed(std::size_t i, group&) override { return base(i); }

  double total_, power_;
};

class cosine_curve final : public simple {
public:
  cosine_curve(std::int64_t t_max, double least) : t_max_(t_max), least_(least) {}

private:
  double next(std::size_t i, group& g) override {
    using std::numbers::pi;
    const auto at = static_cast<double>(n()), all = static_cast<double>(t_max_);
    const auto from_bottom = (n() - 1 - t_max_) % (2 * t_max_) == 0;
    if (from_bottom) return g.rate + (base(i) - least_) * (1 - std::cos(pi / all)) / 2;
    return (1 + std::cos(pi * at / all)) / (1 + std::cos(pi * (at - 1) / all)) * (g.rate - least_) +
           least_;
  }
  double first(std::size_t, group& g) override { return g.rate; }
  double closed(std::size_t i, group&) override {
    return least_ + (base(i) - least_) * (1 + std::cos(0.0)) / 2;
  }

  std::int64_t t_max_;
  double least_;
};

class warm_restarts_curve final : public simple {
public:
  warm_restarts_curve(std::int64_t t_0, std::int64_t t_mult, double least)
      : length_(t_0), times_(t_mult), least_(least) {}

private:
  void advance() override {
    if (++at_ < length_) return;
    at_ = 0;
    length_ *= times_;
  }
  double next(std::size_t i, group&) override {
    const auto share = static_cast<double>(at_) / static_cast<double>(length_);
    return least_ + (base(i) - least_) * (1 + std::cos(std::numbers::pi * share)) / 2;
  }

  std::int64_t at_ = 0, length_, times_;
  double least_;
};

class one_cycle_curve final : public simple {
public:
  explicit one_cycle_curve(one_cycle_options how) : how_(std::move(how)) {
    const auto total = static_cast<double>(how_.total_steps);
    const auto rise = how_.pct_start * total - 1;
    phases_.push_back({rise, &levels::initial, &levels::most, &levels::fast, &levels::slow});
    if (how_.three_phase)
      phases_.push_back({2 * how_.pct_start * total - 2, &levels::most, &levels::initial,
                         &levels::slow, &levels::fast});
    const auto from = how_.three_phase ? &levels::initial : &levels::most;
    const auto momentum = how_.three_phase ? &levels::fast : &levels::slow;
    phases_.push_back({total - 1, from, &levels::least, momentum, &levels::fast});
  }

private:
  /// Rates, and the momentums that go with low and with high rates.
  struct levels {
    double initial, most, least, fast, slow;
  };
  struct phase {
    double end;
    double levels::*from;
    double levels::*to;
    double levels::*momentum_from;
    double levels::*momentum_to;
  };

  double of(const std::vector<double>& all, std::size_t i, std::size_t size,
            std::string_view name) const {
    if (all.size() != 1 && all.size() != size)
      refuse("one_cycle", fmt::format("{} holds {} numbers for {} parameter groups: give one, or "
                                      "one per group",
                                      name, all.size(), size));
    return all.size() == 1 ? all[0] : all[i];
  }

  void construct(groups& all) override {
    for (std::size_t i = 0; i < all.size(); ++i) {
      require(!how_.cycle_momentum || all[i].has_momentum, "one_cycle",
              "the optimizer has no momentum and no betas: set cycle_momentum to false");
      levels here{};
      here.most = of(how_.max_lr, i, all.size(), "max_lr");
      here.initial = all[i].initial = here.most / how_.div_factor;
      here.least = here.initial / how_.final_div_factor;
      here.fast = of(how_.max_momentum, i, all.size(), "max_momentum");
      here.slow = of(how_.base_momentum, i, all.size(), "base_momentum");
      levels_.push_back(here);
    }
  }

  double between(double from, double to, double share) const {
    if (how_.anneal_strategy == one_cycle_options::anneal::linear)
      return (to - from) * share + from;
    return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * share) + 1);
  }

  double next(std::size_t i, group& g) override {
    require(n() <= how_.total_steps, "one_cycle",
            fmt::format("a step after the last of {}: set total_steps to the steps of the run",
                        how_.total_steps));
    const auto at = static_cast<double>(n());
    auto which = phases_.begin();
    double begin = 0;
    for (; which + 1 != phases_.end() && at > which->end; ++which) begin = which->end;
    const auto share = which->end > begin ? (at - begin) / (which->end - begin) : 1;
    const auto& here = levels_[i];
    if (how_.cycle_momentum)
      g.momentum = between(here.*which->momentum_from, here.*which->momentum_to, share);
    return between(here.*which->from, here.*which->to, share);
  }

  one_cycle_options how_;
  std::vector<phase> phases_;
  std::vector<levels> levels_;
};

class sequential_curve final : public curve {
public:
  sequential_curve(const std::vector<plan>& parts, std::vector<std::int64_t> milestones)
      : milestones_(std::move(milestones)) {
    for (const auto& part : parts) {
      auto made = part();
      require(dynamic_cast<simple*>(made.get()), "sequential",
              "a part is sequential, chained or a curve of your own: give single plans of "
              "troupe::schedules");
      parts_.emplace_back(static_cast<simple*>(made.release()));
    }
  }

  void begin(groups& all) override {
    for (auto& part : parts_) part->begin(all);
    for (auto& one : all) one.rate = one.initial;
    parts_[part_at(0)]->begin_again(all);
  }
  void step(groups& all) override {
    const auto now = part_at(++n_);
    if (now > 0 && milestones_[now - 1] == n_)
      parts_[now]->restart(all);
    else
      parts_[now]->step(all);
  }

private:
  std::size_t part_at(std::int64_t n) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(milestones_, n) - milestones_.begin());
  }

  std::vector<std::unique_ptr<simple>> parts_;
  std::vector<std::int64_t> milestones_;
  std::int64_t n_ = 0;
};

class chained_curve final : public curve {
public:
  explicit chained_curve(const std::vector<plan>& parts) {
    for (const auto& part : parts) parts_.push_back(part());
  }
  void begin(groups& all) override {
    for (auto& part : parts_) part->begin(all);
  }
  void step(groups& all) override {
    for (auto& part : parts_) part->step(all);
  }

private:
  std::vector<std::unique_ptr<curve>> parts_;
};

}  // namespace

plan lambda(factor_function of) { return lambda(std::vector{std::move(of)}); }

plan lambda(std::vector<factor_function> of) {
  require(!of.empty() && std::ranges::all_of(of, [](const auto& f) { return bool{f}; }), "lambda",
          "there is no function");
  return plan_of<lambda_curve>(std::move(of));
}

plan multiplicative(factor_function of) {
  require(bool{of}, "multiplicative", "there is no function");
  return plan_of<multiplicative_curve>(std::move(of));
}

plan constant(double factor, std::int64_t total_iters) {
  require(factor > 0 && factor <= 1, "constant", "factor must be above 0, at most 1");
  return plan_of<constant_curve>(factor, total_iters);
}

plan linear(double start_factor, double end_factor, std::int64_t total_iters) {
  require(start_factor > 0 && start_factor <= 1, "linear",
          "start_factor must be above 0, at most 1");
  require(end_factor >= 0 && end_factor <= 1, "linear", "end_factor must lie between 0 and 1");
  require(total_iters > 0, "linear", "total_iters must be 1 or more");
  return plan_of<linear_curve>(start_factor, end_factor, total_iters);
}

plan exponential(double gamma) { return plan_of<exponential_curve>(gamma); }

plan multi_step(std::vector<std::int64_t> milestones, double gamma) {
  return plan_of<multi_step_curve>(std::move(milestones), gamma);
}

plan polynomial(std::int64_t total_iters, double power) {
  require(total_iters > 0, "polynomial", "total_iters must be 1 or more");
  return plan_of<polynomial_curve>(total_iters, power);
}

plan cosine_annealing(std::int64_t t_max, double eta_min) {
  require(t_max > 0, "cosine_annealing", "t_max must be 1 or more");
  return plan_of<cosine_curve>(t_max, eta_min);
}

plan cosine_annealing_warm_restarts(std::int64_t t_0, std::int64_t t_mult, double eta_min) {
  require(t_0 > 0 && t_mult > 0, "cosine_annealing_warm_restarts",
          "t_0 and t_mult must be 1 or more");
  return plan_of<warm_restarts_curve>(t_0, t_mult, eta_min);
}

plan one_cycle(one_cycle_options how) {
  require(!how.max_lr.empty(), "one_cycle", "max_lr is empty: give one, or one per group");
  require(how.total_steps > 0, "one_cycle", "total_steps must be 1 or more");
  require(how.pct_start >= 0 && how.pct_start <= 1, "one_cycle",
          "pct_start must lie between 0 and 1");
  require(how.div_factor != 0 && how.final_div_factor != 0, "one_cycle",
          "div_factor and final_div_factor must not be 0");
  return plan_of<one_cycle_curve>(std::move(how));
}

plan sequential(std::vector<plan> parts, std::vector<std::int64_t> milestones) {
  require(!parts.empty() && milestones.size() + 1 == parts.size(), "sequential",
          fmt::format("{} plans and {} milestones: give one milestone less than plans",
                      parts.size(), milestones.size()));
  require(std::ranges::is_sorted(milestones), "sequential", "milestones must ascend");
  return plan_of<sequential_curve>(std::move(parts), std::move(milestones));
}

plan chained(std::vector<plan> parts) {
  require(!parts.empty(), "chained", "there is no plan");
  return plan_of<chained_curve>(std::move(parts));
}

}  // namespace troupe::schedules
