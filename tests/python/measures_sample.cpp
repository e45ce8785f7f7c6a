#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "backends/checkpoint/safetensors.hpp"
#include "tests/python/samples.hpp"
#include "tests/support/rank_threads.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/measures.hpp"
#include "troupe/optimizers.hpp"

namespace {

using namespace troupe;
using json = nlohmann::json;

// --- measures -----------------------------------------------------------------------------------

using measures::average;
using make_measure = std::function<std::unique_ptr<measures::measure>()>;

struct measured_case {
  at::Tensor prediction, target;
  std::map<std::string, make_measure> measures;
};

template <class Measure, class... Arguments>
make_measure of(Arguments... arguments) {
  return [=] { return std::make_unique<Measure>(arguments...); };
}

void add_averages(measured_case& to, measures::classification how) {
  const std::map<std::string, average> averages{{"micro", average::micro},
                                                {"macro", average::macro},
                                                {"weighted", average::weighted},
                                                {"none", average::none}};
  for (const auto& [name, one] : averages) {
    how.how = one;
    to.measures["accuracy." + name] = of<measures::accuracy>(how);
    to.measures["precision." + name] = of<measures::precision>(how);
    to.measures["recall." + name] = of<measures::recall>(how);
    to.measures["f1." + name] = of<measures::f1>(how);
    if (one == average::micro || to.prediction.dim() == to.target.dim()) continue;
    to.measures["auroc." + name] = of<measures::auroc>(how);
    to.measures["binned_auroc." + name] = of<measures::auroc>(how, 20);
  }
}

void add_matrices(measured_case& to, measures::classification how) {
  using measures::confusion_matrix;
  to.measures["matrix"] = of<confusion_matrix>(how);
  to.measures["matrix.targets"] = of<confusion_matrix>(how, measures::normalize::targets);
  to.measures["matrix.predictions"] = of<confusion_matrix>(how, measures::normalize::predictions);
  to.measures["matrix.all"] = of<confusion_matrix>(how, measures::normalize::all);
}

void add_binary(measured_case& to) {
  for (const auto& [name, make] : std::map<std::string, make_measure>{
           {"accuracy", of<measures::accuracy>()},
           {"precision", of<measures::precision>()},
           {"recall", of<measures::recall>()},
           {"f1", of<measures::f1>()},
           {"auroc", of<measures::auroc>()},
           {"binned_auroc", of<measures::auroc>(measures::classification{}, 20)}})
    to.measures[name] = make;
  add_matrices(to, {});
}

measured_case binary_case() {
  measured_case c;
  c.target = at::randint(0, 2, {97}, at::kLong);
  // Two digits, so that scores are equal.
  c.prediction = ((at::rand({97}) + 0.3 * c.target) / 1.3).mul(100).round().div(100);
  add_binary(c);
  return c;
}

// Many logits lie between 0 and 0.5. Each update has one below 0 or above 1.
measured_case binary_logit_case() {
  measured_case c;
  c.target = at::randint(0, 2, {97}, at::kLong);
  c.prediction = at::randn({97}) + c.target;
  add_binary(c);
  return c;
}

// Class 5 never occurs in targets, class 6 in neither.
measured_case multiclass_case(bool logits) {
  measured_case c;
  c.target = at::randint(0, 5, {131}, at::kLong);
  auto scores = at::randn({131, 7}) + 2 * at::one_hot(c.target, 7);
  scores.select(1, 6).fill_(-10);
  c.prediction = logits ? scores : scores.softmax(1);
  add_averages(c, {.classes = 7});
  add_matrices(c, {.classes = 7});
  for (const std::int64_t k : {2, 3}) {
    const auto name = "top_" + std::to_string(k);
    c.measures[name + ".micro"] =
        of<measures::accuracy>(measures::classification{7, average::micro, 0.5, k});
    c.measures[name + ".macro"] =
        of<measures::accuracy>(measures::classification{7, average::macro, 0.5, k});
  }
  return c;
}

// Scores (N, classes, length); targets of -1 do not count.
measured_case sequence_case() {
  measured_case c;
  c.target = at::randint(-1, 4, {40, 3}, at::kLong);
  c.prediction = at::rand({40, 4, 3}).softmax(1);
  add_averages(c, {.classes = 4, .ignore_index = -1});
  return c;
}

measured_case label_case() {
  measured_case c;
  c.target = at::randint(0, 4, {60}, at::kLong);
  c.prediction = at::where(at::rand({60}).lt(0.6), c.target, at::randint(0, 4, {60}, at::kLong));
  add_averages(c, {.classes = 4});
  return c;
}

measured_case regression_case() {
  measured_case c;
  c.target = at::randn({83, 2});
  c.prediction = c.target + 0.3 * at::randn({83, 2});
  c.measures["mse"] = of<measures::mean_squared_error>();
  c.measures["rmse"] = of<measures::mean_squared_error>(true);
  c.measures["mae"] = of<measures::mean_absolute_error>();
  return c;
}

measured_case language_case() {
  measured_case c;
  c.target = at::randint(0, 11, {24, 5}, at::kLong);
  c.prediction = 3 * at::randn({24, 5, 11});
  c.measures["perplexity"] = of<measures::perplexity>();
  c.measures["perplexity.ignore"] = of<measures::perplexity>(std::optional<std::int64_t>{3});
  return c;
}

/// Three ranks: one without samples, one with a quarter in one update, one with the rest in many.
at::Tensor over_ranks(const measured_case& c, const make_measure& make) {
  const auto size = c.target.size(0), quarter = size / 4;
  std::vector<at::Tensor> found(3);
  const auto errors = testing::on_ranks(3, [&](auto rank, const auto& group) {
    strategy_parts parts;
    parts.about.rank = rank;
    parts.about.world = 3;
    data_parallel how{parts};
    how.bind(group, generation_id{1});
    const auto mine = make();
    const auto take = [&](std::int64_t first, std::int64_t count) {
      mine->update(c.prediction.narrow(0, first, count), c.target.narrow(0, first, count));
    };
    if (rank == 1) take(0, quarter);
    if (rank == 2)
      for (auto i = quarter; i < size; i += 10) take(i, std::min<std::int64_t>(10, size - i));
    mine->compute(how);  // changes nothing
    found[rank] = mine->compute(how);
  });
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  if (!found[0].equal(found[1]) || !found[0].equal(found[2]))
    throw std::runtime_error("ranks compute different numbers");
  return found[0];
}

json numbers_of(const at::Tensor& tensor) {
  const auto flat = tensor.contiguous().flatten();
  const auto* first = flat.const_data_ptr<double>();
  if (tensor.dim() == 0) return *first;
  return std::vector<double>(first, first + flat.numel());
}

// --- schedules ----------------------------------------------------------------------------------

namespace sd = schedules;

constexpr int steps = 300;

std::vector<torch::optim::OptimizerParamGroup> some_groups() {
  std::vector<torch::optim::OptimizerParamGroup> all;
  for (int i = 0; i < 3; ++i)
    all.emplace_back(std::vector<at::Tensor>{at::zeros({1}).requires_grad_()});
  return all;
}

constexpr double rates[] = {0.1, 0.03, 1.0};

std::shared_ptr<torch::optim::Optimizer> sgd_of_three() {
  auto made = std::make_shared<torch::optim::SGD>(some_groups(),
                                                  torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int i = 0; i < 3; ++i) made->param_groups()[i].options().set_lr(rates[i]);
  return made;
}

std::shared_ptr<torch::optim::Optimizer> adam_of_three() {
  auto made = std::make_shared<torch::optim::Adam>(some_groups(), torch::optim::AdamOptions(0.1));
  for (int i = 0; i < 3; ++i) made->param_groups()[i].options().set_lr(rates[i]);
  return made;
}

double momentum_of(torch::optim::OptimizerOptions& options) {
  if (auto* known = dynamic_cast<torch::optim::SGDOptions*>(&options)) return known->momentum();
  return std::get<0>(dynamic_cast<torch::optim::AdamOptions&>(options).betas());
}

json course_of(const std::shared_ptr<torch::optim::Optimizer>& optimizer,
               const std::vector<sd::plan>& plans) {
  optimizers all;
  all.add(optimizer);
  for (const auto& one : plans) all.scheduled(one, {.every = schedule::interval::step});
  json course;
  for (int step = 0; step <= steps; ++step) {
    std::vector<double> row;
    for (auto& one : optimizer->param_groups()) row.push_back(one.options().get_lr());
    for (auto& one : optimizer->param_groups()) row.push_back(momentum_of(one.options()));
    course.push_back(row);
    if (step == steps) break;
    for (auto& one : all.all()[0].schedulers) one.step({});
  }
  return course;
}

std::map<std::string, std::vector<sd::plan>> plans_of_sgd() {
  const auto decay = [](std::int64_t n) { return 1.0 / (1.0 + 0.1 * static_cast<double>(n)); };
  const auto grow = [](std::int64_t n) { return n % 2 == 0 ? 1.02 : 0.97; };
  const auto flat = [](std::int64_t) { return 1.0; };
  return {
      {"lambda", {sd::lambda(decay)}},
      {"lambdas",
       {sd::lambda(std::vector<std::function<double(std::int64_t)>>{decay, flat, grow})}},
      {"multiplicative", {sd::multiplicative(grow)}},
      {"constant", {sd::constant()}},
      {"constant_long", {sd::constant(0.25, 70)}},
      {"linear", {sd::linear()}},
      {"linear_down", {sd::linear(0.9, 0.1, 120)}},
      {"exponential", {sd::exponential(0.98)}},
      {"multi_step", {sd::multi_step({30, 80, 80, 200}, 0.5)}},
      {"polynomial", {sd::polynomial(200, 2.0)}},
      {"polynomial_short", {sd::polynomial()}},
      {"cosine", {sd::cosine_annealing(100)}},
      {"cosine_least", {sd::cosine_annealing(37, 0.002)}},
      {"restarts", {sd::cosine_annealing_warm_restarts(40)}},
      {"restarts_longer", {sd::cosine_annealing_warm_restarts(10, 2, 0.001)}},
      {"one_cycle", {sd::one_cycle({.max_lr = {0.5}, .total_steps = steps})}},
      {"one_cycle_phases",
       {sd::one_cycle({.max_lr = {0.5, 0.1, 2.0},
                       .total_steps = steps,
                       .pct_start = 0.2,
                       .anneal_strategy = sd::one_cycle_options::anneal::linear,
                       .base_momentum = {0.7},
                       .max_momentum = {0.99, 0.9, 0.8},
                       .div_factor = 10,
                       .final_div_factor = 100,
                       .three_phase = true})}},
      {"one_cycle_plain",
       {sd::one_cycle({.max_lr = {0.5}, .total_steps = steps, .cycle_momentum = false})}},
      {"warm_up",
       {sd::sequential({sd::linear(0.01, 1.0, 20), sd::cosine_annealing(250, 0.001)}, {20})}},
      {"sequence",
       {sd::sequential({sd::constant(0.5, 10), sd::exponential(0.95), sd::polynomial(60, 1.5),
                        sd::cosine_annealing_warm_restarts(25), sd::multi_step({10, 20})},
                       {15, 70, 140, 220})}},
      {"sequence_of_rest",
       {sd::sequential({sd::cosine_annealing_warm_restarts(15, 2), sd::lambda(decay),
                        sd::constant(0.5, 20), sd::linear(0.2, 1.0, 30)},
                       {50, 100, 150})}},
      {"chained", {sd::chained({sd::constant(0.1, 20), sd::exponential(0.99)})}},
      {"chained_sequence",
       {sd::chained({sd::sequential({sd::linear(0.1, 1.0, 30), sd::exponential(0.99)}, {30}),
                     sd::multi_step({100, 200})})}},
      {"several", {sd::linear(0.1, 1.0, 25), sd::cosine_annealing(300), sd::exponential(0.995)}},
  };
}

}  // namespace

void write_measures(const std::string& folder) {
  at::manual_seed(11);
  json found;
  std::vector<tensor_blob> samples;
  for (const auto& [name, c] : std::map<std::string, measured_case>{
           {"binary", binary_case()},
           {"multiclass", multiclass_case(/*logits=*/false)},
           {"sequence", sequence_case()},
           {"labels", label_case()},
           {"regression", regression_case()},
           {"language", language_case()},
           {"binary_logits", binary_logit_case()},
           {"multiclass_logits", multiclass_case(/*logits=*/true)}}) {
    samples.push_back(blob_of(name + ".prediction", c.prediction));
    samples.push_back(blob_of(name + ".target", c.target));
    for (const auto& [measure, make] : c.measures)
      found[name][measure] = numbers_of(over_ranks(c, make));
  }
  std::ofstream out{folder + "/measures.safetensors", std::ios::binary};
  for (const auto& piece : encode_safetensors(samples))
    out.write(reinterpret_cast<const char*>(piece->data()),
              static_cast<std::streamsize>(piece->size()));
  std::ofstream{folder + "/measures.json"} << found;
}

void write_schedules(const std::string& folder) {
  json found;
  for (const auto& [name, plans] : plans_of_sgd()) found[name] = course_of(sgd_of_three(), plans);
  found["one_cycle_adam"] =
      course_of(adam_of_three(), {sd::one_cycle({.max_lr = {0.5}, .total_steps = steps})});
  std::ofstream{folder + "/schedules.json"} << found;
}
