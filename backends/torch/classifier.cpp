#include "backends/torch/classifier.hpp"

#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace troupe {

namespace fn = torch::nn::functional;

namespace {

void check(const classifier_options& options) {
  const auto refuse = [](std::string_view key, double number, std::string_view range) {
    throw user_error(errc::bad_configuration,
                     fmt::format("optimizer.{} is {}, but must be {}", key, number, range));
  };
  if (!(options.learning_rate >= 0)) refuse("learning_rate", options.learning_rate, "0 or more");
  if (!(options.momentum >= 0)) refuse("momentum", options.momentum, "0 or more");
  if (!(options.weight_decay >= 0)) refuse("weight_decay", options.weight_decay, "0 or more");
  if (options.optimizer != "sgd" && options.optimizer != "adam" && options.optimizer != "adamw")
    throw user_error(
        errc::bad_configuration,
        fmt::format("unknown optimizer \"{}\": use one of sgd, adam, adamw", options.optimizer));
  if (options.scheduler != "none" && options.scheduler != "cosine" &&
      options.scheduler != "polynomial")
    throw user_error(errc::bad_configuration,
                     fmt::format("unknown optimizer.scheduler \"{}\": use one of none, cosine, "
                                 "polynomial",
                                 options.scheduler));
  if (options.warmup_epochs < 0)
    throw user_error(errc::bad_configuration, "optimizer.warmup_epochs must not be negative");
}

}  // namespace

classifier::classifier(classifier_options options) : classifier(std::move(options), layers::now) {}

classifier::classifier(classifier_options options, layers when) : options_(std::move(options)) {
  check(options_);
  reads_text_ = find_model(options_.model).reads_text;
  if (when == layers::now) make_layers(options_.layers.features, options_.layers.classes);
}

void classifier::make_layers(std::int64_t features, std::int64_t classes) {
  options_.layers.features = features;
  options_.layers.classes = classes;
  net_ = register_module("net", find_model(options_.model).make(options_.layers));
}

// Files hold other types as well. A text is numbers of characters, which stay integers.
at::Tensor classifier::as_weights(const at::Tensor& inputs) const {
  if (reads_text_) return inputs;
  return inputs.to(net_->parameters().front().scalar_type());
}

// Computed in a wider type than bfloat16 and float16, whose few digits are not enough for a loss.
at::Tensor classifier::logits(const batch& b) {
  const auto raw = net_->forward(as_weights(b[0]));
  return raw.element_size() == 2 ? raw.to(at::kFloat) : raw;
}

step_output classifier::training_step(const batch& b, std::int64_t) {
  auto loss = fn::cross_entropy(logits(b), b[1]);
  log("train/loss", loss);
  return loss;
}

void classifier::judge(const batch& b, const std::string& stage) {
  const auto scores = logits(b);
  if (const auto most = b[1].max().item<std::int64_t>(); most >= scores.size(1))
    throw user_error(errc::job_failed,
                     fmt::format("the data has the class {}, and the model knows {}, from 0: give "
                                 "it data with the classes that it was trained on",
                                 most, scores.size(1)));
  const auto losses =
      fn::cross_entropy(scores, b[1], fn::CrossEntropyFuncOptions().reduction(torch::kNone));
  const auto right = scores.argmax(1).eq(b[1]).sum().item<std::int64_t>();
  const auto count = static_cast<double>(b[1].numel());
  log_ratio(stage + "/loss", losses.to(at::kDouble).sum().item<double>(), count);
  log_ratio(stage + "/accuracy", static_cast<double>(right), count);
}

step_output classifier::validation_step(const batch& b, std::int64_t) {
  judge(b, "val");
  return {};
}

step_output classifier::test_step(const batch& b, std::int64_t) {
  judge(b, "test");
  return {};
}

value classifier::predict_step(const batch& b, std::int64_t) { return boxed(logits(b)); }

namespace {

optimizers scheduled(optimizers made, const classifier_options& o) {
  if (o.scheduler == "none" && o.warmup_epochs == 0) return made;
  if (o.epochs < 0 && o.scheduler != "none")
    throw user_error(
        errc::bad_configuration,
        fmt::format("optimizer.scheduler = \"{}\": the rate falls to 0 over max_epochs, "
                    "which is -1: give max_epochs",
                    o.scheduler));
  const auto rest = std::max<std::int64_t>(o.epochs - o.warmup_epochs, 1);
  auto plan = o.scheduler == "cosine"       ? schedules::cosine_annealing(rest)
              : o.scheduler == "polynomial" ? schedules::polynomial(rest)
                                            : schedules::exponential(1);
  if (o.warmup_epochs > 0)
    plan = schedules::sequential({schedules::linear(1.0 / 3, 1, o.warmup_epochs), plan},
                                 {o.warmup_epochs});
  return made.scheduled(plan);
}

}  // namespace

optimizers classifier::configure_optimizers() { return scheduled(plain_optimizers(), options_); }

optimizers classifier::plain_optimizers() {
  const auto& o = options_;
  if (o.optimizer == "adam")
    return torch::optim::Adam(
        parameters(), torch::optim::AdamOptions(o.learning_rate).weight_decay(o.weight_decay));
  if (o.optimizer == "adamw")
    return torch::optim::AdamW(
        parameters(), torch::optim::AdamWOptions(o.learning_rate).weight_decay(o.weight_decay));
  return torch::optim::SGD(
      parameters(),
      torch::optim::SGDOptions(o.learning_rate).momentum(o.momentum).weight_decay(o.weight_decay));
}

}  // namespace troupe
