// Callbacks that log and that end a run. The averages of weights are in weight_averaging.cpp.
#include "troupe/callbacks.hpp"

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <typeinfo>

#include "backends/torch/report_monitor.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

// The same number on all ranks.
void log_common(module& m, const std::string& name, double number) {
  m.log(name, number, {.reduce = log_reduction::max});
}

clock_function clock_of(const module& m, const clock_function& given) {
  if (given) return given;
  const auto* how = m.strategy_in_use();
  if (how && how->about().now) return how->about().now;
  return [] { return std::chrono::steady_clock::now().time_since_epoch(); };
}

// Whether the step in progress reports its values when it ends.
bool reports(const module& m) {
  const auto every = m.strategy_in_use()->about().options.log_every_n_steps;
  return (m.at().step + 1) % std::max<std::int64_t>(every, 1) == 0;
}

}  // namespace

// --- learning rates ------------------------------------------------------------------------------

namespace {

// `SGD` of torch::optim::SGD.
std::string class_name(const torch::optim::Optimizer& optimizer) {
  auto name = c10::demangle(typeid(optimizer).name());
  return name.substr(name.rfind(':') + 1);
}

struct group_numbers {
  double momentum = 0;
  double weight_decay = 0;
};

// Zeros for optimizers that LibTorch does not have.
group_numbers numbers_of(const torch::optim::OptimizerParamGroup& group) {
  const auto& any = group.options();
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&any))
    return {sgd->momentum(), sgd->weight_decay()};
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&any))
    return {std::get<0>(adamw->betas()), adamw->weight_decay()};
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&any))
    return {std::get<0>(adam->betas()), adam->weight_decay()};
  if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradOptions*>(&any))
    return {0, adagrad->weight_decay()};
  if (const auto* rms = dynamic_cast<const torch::optim::RMSpropOptions*>(&any))
    return {rms->momentum(), rms->weight_decay()};
  return {};
}

}  // namespace

namespace {

// None: it has none that LibTorch knows.
std::optional<double> rate_of(const torch::optim::OptimizerParamGroup& group) {
  try {
    return group.options().get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

void learning_rate_monitor::on_train_epoch_start(module& m, std::int64_t) {
  if (how_.every == learning_rate_monitor_options::interval::epoch) log_rates(m);
}

void learning_rate_monitor::on_train_batch_start(module& m, const batch&, std::int64_t) {
  if (how_.every == learning_rate_monitor_options::interval::step) log_rates(m);
}

void learning_rate_monitor::log_rates(module& m) const {
  std::map<std::string, int> of_class;
  for (const auto& one : m.optimizers_in_use()->all()) {
    auto name = "lr-" + class_name(*one.optimizer);
    if (const auto before = of_class[name]++; before > 0) name += fmt::format("-{}", before);
    const auto& groups = one.optimizer->param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto key = groups.size() > 1 ? fmt::format("{}/pg{}", name, i + 1) : name;
      const auto numbers = numbers_of(groups[i]);
      if (const auto rate = rate_of(groups[i])) log_common(m, key, *rate);
      if (how_.log_momentum) log_common(m, key + "-momentum", numbers.momentum);
      if (how_.log_weight_decay) log_common(m, key + "-weight_decay", numbers.weight_decay);
    }
  }
}

// --- gradient norms ------------------------------------------------------------------------------

void gradient_norms::on_before_optimizer_step(module& m, torch::optim::Optimizer& optimizer) {
  if (!reports(m)) return;
  const at::NoGradGuard no_grad;
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : m.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  const auto kind = std::isinf(how_.norm) ? "inf" : fmt::format("{:.1f}", how_.norm);
  std::vector<at::Tensor> norms;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      norms.push_back(parameter.grad().norm(how_.norm));
      if (how_.each)
        log_common(m, fmt::format("grad_{}_norm/{}", kind, names[parameter.unsafeGetTensorImpl()]),
                   norms.back().item<double>());
    }
  if (norms.empty()) return;
  auto total = fmt::format("grad_{}_norm_total", kind);
  if (const auto index = m.at().optimizer; index > 0) total += fmt::format("-{}", index);
  log_common(m, total, at::stack(norms).norm(how_.norm).item<double>());
}

// --- throughput, statistics of the process -------------------------------------------------------

void throughput_monitor::on_train_epoch_start(module& m, std::int64_t) {
  if (!clock_) clock_ = clock_of(m, how_.now);
  marks_.assign(1, {clock_(), samples_});
}

void throughput_monitor::on_train_batch_start(module& m, const batch&, std::int64_t) {
  step_ = m.at().step;
}

void throughput_monitor::on_train_batch_end(module& m, const step_output&, const batch& b,
                                            std::int64_t) {
  samples_ += b.samples();
  if (m.at().step == step_) return;
  if (!clock_) clock_ = clock_of(m, how_.now);
  marks_.push_back({clock_(), samples_});
  if (marks_.size() > static_cast<std::size_t>(std::max<std::int64_t>(how_.window, 1)) + 1)
    marks_.pop_front();
  const std::chrono::duration<double> took = marks_.back().at - marks_.front().at;
  const auto rate = [&](auto number) {
    return took.count() > 0 ? static_cast<double>(number) / took.count() : 0;
  };
  m.log("throughput/samples_per_second", rate(marks_.back().samples - marks_.front().samples),
        {.reduce = log_reduction::sum});
  log_common(m, "throughput/steps_per_second", rate(marks_.size() - 1));
}

namespace {

double resident_mib() {
  std::ifstream file{"/proc/self/statm"};
  std::int64_t all = 0, resident = 0;
  file >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

std::chrono::nanoseconds processor_time() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& t) {
    return std::chrono::seconds{t.tv_sec} + std::chrono::microseconds{t.tv_usec};
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

}  // namespace

void device_stats_monitor::on_train_batch_start(module& m, const batch&, std::int64_t) {
  if (!reports(m)) return;
  if (!now_) now_ = clock_of(m, {});
  const auto now = now_();
  const auto used = processor_time();
  log_common(m, "device/process_memory_mib", resident_mib());
  const auto since = std::exchange(at_, now);
  const auto before = std::exchange(used_, used);
  const bool known = since.count() >= 0 && now > since;
  log_common(m, "device/process_cpu_percent",
             known ? 100 * static_cast<double>((used - before).count()) /
                         static_cast<double>((now - since).count())
                   : 0);
}

void rank_monitor::begin(const module& m) {
  if (!clock_) clock_ = clock_of(m, now_);
  since_ = clock_();
  waited_ = m.strategy_in_use()->waited();
  samples_ = 0;
}

void rank_monitor::on_train_epoch_start(module& m, std::int64_t) { begin(m); }

void rank_monitor::on_train_batch_start(module& m, const batch&, std::int64_t) {
  // After a failure steps are done again: the recovery's time belongs to no step.
  if (since_.count() < 0 || m.at().step < step_) begin(m);
  step_ = m.at().step;
}

void rank_monitor::on_train_batch_end(module& m, const step_output&, const batch& b, std::int64_t) {
  samples_ += b.samples();
  const auto step = m.at().step;
  const auto every = m.strategy_in_use()->about().options.log_every_n_steps;
  if (step == step_ || step % std::max<std::int64_t>(every, 1) != 0) return;
  const std::chrono::duration<double> took = clock_() - since_;
  const std::chrono::duration<double> waited = m.strategy_in_use()->waited() - waited_;
  const bool known = took.count() > 0;
  const auto rate = known ? static_cast<double>(samples_) / took.count() : 0;
  const auto share = known ? std::clamp(waited / took, 0.0, 1.0) : 0;
  // All ranks must log the same names, so each rank logs those of the others with weight 0.
  for (std::int32_t rank = 0; rank < std::min(m.world(), ranks_max); ++rank) {
    const double mine = rank == m.rank() ? 1 : 0;
    m.log_ratio(fmt::format("rank/{}/samples_per_second", rank), mine * rate, mine);
    m.log_ratio(fmt::format("rank/{}/waiting_share", rank), mine * share, mine);
  }
  begin(m);
}

void report_monitor::begin(const module& m) {
  if (!clock_) clock_ = clock_of(m, now_);
  since_ = clock_();
  samples_ = 0;
}

void report_monitor::on_train_epoch_start(module& m, std::int64_t) { begin(m); }

void report_monitor::on_train_batch_start(module& m, const batch&, std::int64_t) {
  // After a failure steps are done again: the recovery's time belongs to no step.
  if (since_.count() < 0 || m.at().step < step_) begin(m);
  step_ = m.at().step;
  if (!reports(m)) return;
  rates_.clear();
  for (const auto& one : m.optimizers_in_use()->all())
    for (const auto& group : one.optimizer->param_groups()) rates_.push_back(rate_of(group));
}

void report_monitor::on_train_batch_end(module& m, const step_output&, const batch& b,
                                        std::int64_t) {
  samples_ += b.samples();
  const auto every = m.strategy_in_use()->about().options.log_every_n_steps;
  if (m.at().step == step_ || m.at().step % std::max<std::int64_t>(every, 1) != 0) return;
  for (std::size_t i = 0; i < rates_.size(); ++i)
    if (rates_[i])
      log_common(m, i == 0 ? "run/learning_rate" : fmt::format("run/learning_rate_{}", i + 1),
                 *rates_[i]);
  const std::chrono::duration<double> took = clock_() - since_;
  m.log("run/samples_per_second",
        took.count() > 0 ? static_cast<double>(samples_) / took.count() : 0,
        {.reduce = log_reduction::sum});
  log_common(m, "run/process_memory_mib", resident_mib());
  begin(m);
}

// --- timer ---------------------------------------------------------------------------------------

timer::timer(timer_options how) : how_(std::move(how)) {
  if (how_.max_time.count() <= 0)
    throw user_error(errc::bad_configuration,
                     "timer: max_time is not positive: give the longest time that training may "
                     "take");
}

std::chrono::nanoseconds timer::elapsed() const {
  return began_ ? before_ + (clock_() - *began_) : before_;
}

void timer::on_train_start(module& m) {
  clock_ = clock_of(m, how_.now);
  began_ = clock_();
  look(m);
}

void timer::on_train_batch_end(module& m, const step_output&, const batch&, std::int64_t) {
  if (how_.every == timer_options::interval::step) look(m);
}

void timer::on_train_epoch_end(module& m, std::int64_t) {
  if (how_.every == timer_options::interval::epoch) look(m);
}

void timer::look(module& m) {
  if (m.rank() == 0 && elapsed() >= how_.max_time) m.stop();
}

callback_state timer::save_state() const {
  return {.json = nlohmann::json{{"elapsed_ns", elapsed().count()}}.dump()};
}

// A rank that returns to a point has taken the time since then. One that joins a running job goes
// on from the time that the others had: its on_train_start may have been called already.
void timer::load_state(module& m, const callback_state& from) {
  const std::chrono::nanoseconds saved{
      nlohmann::json::parse(from.json).at("elapsed_ns").get<std::int64_t>()};
  if (began_) {
    before_ += std::max(saved - elapsed(), std::chrono::nanoseconds{0});
    return;
  }
  before_ = saved;
  if (m.at().epoch == undefined) return;
  clock_ = clock_of(m, how_.now);
  began_ = clock_();
}

}  // namespace troupe
