#include "tests/unit/actors/fit_oracle.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace fit_drive {

using namespace troupe;
namespace h = troupe::hooks;

namespace {

struct fit_oracle {
  const fit_plan& plan;
  const facts& known;
  std::vector<hook> out = {};
  loop_state loop = {};
  std::int64_t saved = -1;

  std::int64_t batches = apply_limit(plan.train_batches, known.train);
  std::vector<std::int64_t> val_batches = {};

  position at(stage s) const { return {s, loop.epoch, loop.steps}; }

  template <class... H>
  void plain(const position& p) {
    (out.push_back(H{{p}}), ...);
  }

  bool out_of_steps() const { return plan.max_steps && loop.steps >= *plan.max_steps; }

  std::int64_t interval() const {
    if (const auto* n = std::get_if<std::int64_t>(&plan.val_check_interval)) return *n;
    const auto share = std::get<double>(plan.val_check_interval);
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(share * double(batches)));
  }

  void set_up() {
    plain<h::connect, h::setup_environment, h::prepare_data>({});
    out.push_back(h::barrier{{}, "pre_setup"});
    plain<h::setup>({});
    out.push_back(h::barrier{{}, "post_setup"});
    plain<h::model_sharded_context, h::configure_model>({});
    plain<h::model_to_device, h::setup_optimizers, h::setup_precision>({});
    plain<h::process_dataloader>({stage::train});
    const bool validates =
        plan.val_batches != batch_limit{std::int64_t{0}} && plan.val_batches != batch_limit{0.0};
    for (std::size_t i = 0; validates && i < std::max<std::size_t>(known.val.size(), 1); ++i) {
      position p{stage::validate};
      p.dataloader = static_cast<std::int32_t>(i);
      plain<h::process_dataloader>(p);
    }
    if (validates)
      for (const auto n : known.val) val_batches.push_back(apply_limit(plan.val_batches, n));
    plain<h::on_fit_start, h::pre_dispatch, h::dispatch>({});
    out.push_back(h::barrier{{}, "run-stage"});
  }

  void evaluate(stage s, std::int64_t most, bool zero_grad) {
    if (zero_grad) plain<h::on_validation_model_zero_grad>(at(s));
    plain<h::on_validation_model_eval, h::on_validation_start, h::on_validation_epoch_start>(at(s));
    for (std::size_t i = 0; i < val_batches.size(); ++i) {
      const auto n = most < 0 ? val_batches[i] : std::min(most, val_batches[i]);
      for (std::int64_t b = 0; b < n; ++b) {
        auto p = at(s);
        p.batch = b;
        p.dataloader = static_cast<std::int32_t>(i);
        plain<h::batch_to_device, h::on_validation_batch_start, h::validation_step,
              h::validation_step_end, h::on_validation_batch_end>(p);
      }
    }
    plain<h::on_validation_epoch_end, h::on_validation_end, h::on_validation_model_train>(at(s));
  }

  bool has_validation() const {
    return std::any_of(val_batches.begin(), val_batches.end(), [](auto n) { return n > 0; });
  }

  void save() {
    if (!plan.checkpoint.enabled || saved == loop.steps) return;
    saved = loop.steps;
    for (std::int32_t i = 0; i < known.optimizers.optimizers; ++i) {
      auto p = at(stage::train);
      p.optimizer = i;
      plain<h::optimizer_state>(p);
    }
    plain<h::on_save_checkpoint>(at(stage::train));
    out.push_back(h::save_checkpoint{at(stage::train), loop});
  }

  std::vector<hook> closure(position p, std::int64_t first, std::int64_t last) {
    const auto keep = std::move(out);
    out.clear();
    plain<h::training_step, h::training_step_end>(p);
    if (p.batch == first) plain<h::on_before_zero_grad, h::optimizer_zero_grad>(p);
    plain<h::pre_backward, h::on_before_backward>(p);
    out.push_back(h::backward::of_window(p, first, last));
    plain<h::on_after_backward, h::post_backward>(p);
    if (!steps(p.batch, last)) return made(keep);
    plain<h::on_before_optimizer_step>(p);
    if (plan.clip) out.push_back(h::clip_gradients{p, plan.clip->limit, plan.clip->how});
    return made(keep);
  }

  std::vector<hook> made(const std::vector<hook>& before) {
    auto hooks = std::move(out);
    out = before;
    return hooks;
  }

  bool steps(std::int64_t batch, std::int64_t last) const {
    return batch == last || known.optimizers.accumulates_itself;
  }

  void batch(std::int64_t b) {
    const auto first = b / plan.accumulate * plan.accumulate;
    const auto last = std::min(first + plan.accumulate, batches) - 1;
    auto p = at(stage::train);
    p.batch = b;
    plain<h::batch_to_device, h::on_train_batch_start>(p);
    std::int32_t splits = 1;
    if (known.optimizers.splits_batches) {
      plain<h::tbptt_split_batch>(p);
      splits = known.splits[static_cast<std::size_t>(b) % known.splits.size()];
    }
    for (std::int32_t split = 0; split < splits; ++split)
      for (std::int32_t i = 0; i < known.optimizers.optimizers; ++i) {
        p.optimizer = i;
        p.split = split;
        const auto inner = closure(p, first, last);
        if (steps(b, last))
          out.push_back(h::optimizer_step{p, static_cast<std::uint32_t>(inner.size())});
        out.insert(out.end(), inner.begin(), inner.end());
        if (steps(b, last)) loop.samples += 7, loop.cursor += 7;
      }
    p.optimizer = p.split = 0;
    if (b == last) p.step = ++loop.steps;
    if (b == last && known.optimizers.step_schedulers)
      out.push_back(h::lr_scheduler_step{p, h::lr_scheduler_step::interval::step});
    plain<h::on_train_batch_end>(p);
    if (b == last) loop.batch = b + 1;
    if (b == last) loop.validated = false;
  }

  bool validates_behind(std::int64_t b) const {
    const auto nth = plan.check_val_every_n_epoch;
    if (nth > 0 && (loop.epoch + 1) % nth != 0) return false;
    const auto counted = (nth == 0 ? loop.earlier_batches : 0) + b + 1;
    return has_validation() && counted % interval() == 0;
  }

  bool best_inside_epoch() const {
    const auto& how = plan.checkpoint;
    return how.every_epoch && how.keep_best != 0 && loop.validated &&
           known.validation.contains(how.monitor) && !validates_behind(batches - 1);
  }

  void validation_behind(std::int64_t b) {
    if (!validates_behind(b)) return;
    const bool boundary = loop.batch == b + 1;
    evaluate(stage::validate, -1, boundary && !known.optimizers.manual);
    if (known.optimizers.plateau_schedulers) {
      auto p = at(stage::train);
      p.batch = b + 1;
      out.push_back(h::lr_scheduler_step{p, h::lr_scheduler_step::interval::plateau});
    }
    for (const auto& [key, number] : known.validation) {
      loop.last[key] = number;
      loop.of_validation.insert(key);
      if (key == plan.checkpoint.monitor) loop.monitored = {key, loop.steps, -1};
    }
    if (boundary) loop.validated = true;
  }

  // Returns false when the run ends inside the epoch.
  bool epoch() {
    plain<h::on_train_epoch_start>(at(stage::train));
    const auto n = plan.checkpoint.every_n_steps;
    for (std::int64_t b = 0; b < batches; ++b) {
      batch(b);
      validation_behind(b);
      if (loop.batch != b + 1 || b + 1 == batches) continue;
      if ((n && loop.steps % *n == 0) || best_inside_epoch()) save();
      if (out_of_steps()) return false;
    }
    plain<h::on_train_epoch_end>(at(stage::train));
    if (known.optimizers.epoch_schedulers)
      out.push_back(h::lr_scheduler_step{at(stage::train), h::lr_scheduler_step::interval::epoch});
    if (known.optimizers.plateau_schedulers)
      out.push_back(
          h::lr_scheduler_step{at(stage::train), h::lr_scheduler_step::interval::plateau});
    ++loop.epoch;
    loop.earlier_batches += loop.batch;
    loop.batch = loop.cursor = 0;
    loop.validated = false;
    if (plan.checkpoint.every_epoch || (n && loop.steps % *n == 0)) save();
    return true;
  }

  void whole() {
    set_up();
    const bool trains = batches > 0 && plan.max_epochs != 0 && !out_of_steps();
    if (trains && has_validation() && plan.sanity_batches != 0) {
      plain<h::on_sanity_check_start>(at(stage::sanity));
      evaluate(stage::sanity, plan.sanity_batches, false);
      plain<h::on_sanity_check_end>(at(stage::sanity));
    }
    if (trains) plain<h::on_train_start>(at(stage::train));
    const auto open = [&] { return plan.max_epochs < 0 || loop.epoch < plan.max_epochs; };
    for (bool more = trains; more && open() && !out_of_steps();) more = epoch();
    save();
    if (trains) plain<h::on_train_end>(at(stage::train));
    plain<h::post_dispatch, h::on_fit_end>({});
  }
};

}  // namespace

std::vector<hook> expected_fit(const fit_plan& plan, const facts& known) {
  fit_oracle oracle{plan, known};
  oracle.whole();
  return std::move(oracle.out);
}

namespace {

// Follows the hooks of a run and tracks which scopes are open.
struct order_check {
  bool broken_off;
  std::vector<std::string> open = {};
  std::set<std::pair<std::int64_t, std::int64_t>> seen = {};  // (epoch, batch)
  std::int64_t steps = -1;

  std::string start(const std::string& what) {
    open.push_back(what);
    return {};
  }
  std::string end(const std::string& what) {
    while (broken_off && !open.empty() && open.back() != what) open.pop_back();
    if (open.empty() || open.back() != what) return what + " ends without a start";
    open.pop_back();
    return {};
  }
  std::string next(const hook& one) {
    const std::string text{name(one)};
    const auto& p = where(one);
    if (p.stage == stage::train && p.step != undefined) {
      if (p.step < steps) return text + ": steps go back";
      steps = p.step;
    }
    if (text == "on_train_batch_start" && !seen.insert({p.epoch, p.batch}).second)
      return text + ": a batch twice";
    const auto* back = one.get_if<h::backward>();
    if (back && (p.batch < back->window_first() || p.batch > back->window_last() ||
                 back->synchronize() != (p.batch == back->window_last())))
      return "backward outside of its window";
    if (text.ends_with("_batch_end")) return end(text.substr(0, text.size() - 4));
    if (text.ends_with("_epoch_end")) return end(text.substr(0, text.size() - 4));
    for (const std::string pair :
         {"on_train", "on_validation", "on_sanity_check", "on_fit", "on_train_batch",
          "on_validation_batch", "on_train_epoch", "on_validation_epoch"}) {
      if (text == pair + "_start") return start(pair);
      if (text == pair + "_end") return end(pair);
    }
    return {};
  }
};

}  // namespace

std::string disorder(const std::vector<hook>& all, bool broken_off) {
  order_check check{broken_off};
  for (const auto& one : all)
    if (auto what = check.next(one); !what.empty()) return what;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (const auto* step = all[i].get_if<h::optimizer_step>()) {
      const auto inner = names({all.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                all.begin() + static_cast<std::ptrdiff_t>(i + step->closure) + 1});
      if (!inner.starts_with("training_step ") ||
          inner.find("on_before_optimizer_step") == std::string::npos)
        return "a closure that is none: " + inner;
    }
  return check.open.empty() ? "" : check.open.back() + " never ends";
}

}  // namespace fit_drive
