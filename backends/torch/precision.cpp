#include "troupe/precision.hpp"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

/// Everything in one type: weights, gradients, inputs.
class true_precision : public precision {
public:
  true_precision(std::string_view name, c10::ScalarType type) : name_(name), type_(type) {}
  std::string_view name() const override { return name_; }
  void convert_module(torch::nn::Module& module) override { module.to(type_); }
  value convert_input(const value& batch) override {
    return map_tensors(batch, [&](const at::Tensor& t) {
      return t.defined() && t.is_floating_point() ? t.to(type_) : t;
    });
  }

private:
  std::string_view name_;
  c10::ScalarType type_;
};

/// Autocast is a thread-local state: it does not affect other ranks or the rest of the program.
class autocast_context : public precision::context {
public:
  explicit autocast_context(c10::ScalarType type)
      : was_on_(at::autocast::is_autocast_enabled(at::kCPU)),
        was_type_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::increment_nesting();
  }
  ~autocast_context() override {
    // Cached casts of weights are outdated after an optimizer step.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_on_);
    at::autocast::set_autocast_dtype(at::kCPU, was_type_);
  }

private:
  bool was_on_;
  c10::ScalarType was_type_;
};

/// Weights and gradients in float32, matrix products in bfloat16. Needs no loss scale: bfloat16 has
/// the exponents of float32.
class bf16_mixed : public precision {
public:
  std::string_view name() const override { return "bf16-mixed"; }
  std::unique_ptr<context> forward_context() override {
    return std::make_unique<autocast_context>(at::kBFloat16);
  }
};

}  // namespace

precision_table default_precisions() {
  return {
      {"32-true", [] { return std::make_unique<precision>(); }},
      {"64-true", [] { return std::make_unique<true_precision>("64-true", at::kDouble); }},
      {"bf16-true", [] { return std::make_unique<true_precision>("bf16-true", at::kBFloat16); }},
      {"bf16-mixed", [] { return std::make_unique<bf16_mixed>(); }},
  };
}

std::unique_ptr<precision> make_precision(const precision_table& known, std::string_view name) {
  if (const auto found = known.find(name); found != known.end()) return found->second();
  std::vector<std::string_view> names;
  for (const auto& [other, factory] : known) names.push_back(other);
  throw user_error(errc::bad_configuration, fmt::format("unknown precision \"{}\": use one of {}",
                                                        name, fmt::join(names, ", ")));
}

}  // namespace troupe
