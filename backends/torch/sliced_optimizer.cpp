#include "backends/torch/sliced_optimizer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "backends/torch/accelerators/host_memory.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

namespace optim = torch::optim;

// 64 KiB of each tensor of the step: together they fit into a core's second-level cache.
constexpr std::int64_t slice_elements = std::int64_t{16} << 10;

/// Traits of an optimizer class: the tensors in its state, and whether the first of them starts as
/// the first gradient (else as zeros).
struct sgd {
  using optimizer = optim::SGD;
  using options = optim::SGDOptions;
  using state = optim::SGDParamState;
  static constexpr bool starts_from_gradient = true;
  static bool keeps_state(const options& o) { return o.momentum() != 0; }
  template <class F>
  static void each_slot(const options&, state& s, F&& f) {
    f(s.momentum_buffer());
  }
  static void count(state&, const state&) {}
};

template <class Optimizer, class Options, class State>
struct adam_like {
  using optimizer = Optimizer;
  using options = Options;
  using state = State;
  static constexpr bool starts_from_gradient = false;
  static bool keeps_state(const options&) { return true; }
  template <class F>
  static void each_slot(const options& o, state& s, F&& f) {
    f(s.exp_avg()), f(s.exp_avg_sq());
    if (o.amsgrad()) f(s.max_exp_avg_sq());
  }
  static void count(state& to, const state& from) { to.step(from.step()); }
};
using adam = adam_like<optim::Adam, optim::AdamOptions, optim::AdamParamState>;
using adamw = adam_like<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>;

at::Tensor row(const at::Tensor& whole, std::int64_t offset, std::int64_t count) {
  return whole.as_strided({count}, {1}, whole.storage_offset() + offset);
}

template <class Kind>
class sliced final : public sliced_optimizer {
public:
  explicit sliced(optim::Optimizer& real) : real_(real) {}

  void prepare(std::size_t entry, const at::Tensor& parameter,
               const optim::OptimizerOptions& options) override {
    auto& mine = parts_[parameter.unsafeGetTensorImpl()];
    in_step_.resize(entry);
    in_step_.push_back(&mine);
    const auto& now = static_cast<const typename Kind::options&>(options);
    const bool moved = cut(mine, parameter, now);
    mine.gradient = parameter.grad();
    for (auto& one : mine.slices)
      static_cast<typename Kind::options&>(one.optimizer->param_groups()[0].options()) = now;
    mine.options = &now;
    if (Kind::keeps_state(now)) share_state(mine, parameter, now, moved);
  }

  // The address of a gradient may change in each step; `part_of` sets the slice's.
  slice part_of(std::size_t entry, std::size_t at) override {
    auto& one = in_step_[entry]->slices[at];
    auto* const begin = in_step_[entry]->gradient.template mutable_data_ptr<float>() + one.offset;
    const auto count = one.parameter.numel();
    if (!one.gradient.defined() || one.gradient.const_data_ptr() != begin)
      one.parameter.mutable_grad() = one.gradient =
          at::from_blob(begin, {count}, one.parameter.options().requires_grad(false));
    return {one.offset, count, one.gradient};
  }

  void update(std::size_t entry, std::size_t at) override {
    auto& mine = *in_step_[entry];
    auto& one = mine.slices[at];
    one.optimizer->step();
    if (!Kind::keeps_state(*mine.options)) return;
    // State that the slice's optimizer created is moved into the whole tensor.
    std::size_t slot = 0;
    Kind::each_slot(*mine.options, state_of(one), [&](at::Tensor& kept) {
      const auto home = row(mine.kept[slot++], one.offset, one.parameter.numel());
      if (kept.const_data_ptr() == home.const_data_ptr()) return;
      home.copy_(kept);
      kept = home;
    });
  }

  void finish() override {
    for (auto* mine : in_step_) {
      mine->gradient = at::Tensor{};
      if (Kind::keeps_state(*mine->options)) Kind::count(*mine->whole, state_of(mine->slices[0]));
    }
  }

private:
  struct cut_slice {
    std::int64_t offset;
    at::Tensor parameter;
    at::Tensor gradient;  // owns nothing: valid within a step
    std::unique_ptr<typename Kind::optimizer> optimizer;
  };
  struct part {
    const void* parameter_at = nullptr;
    at::Tensor gradient;
    const typename Kind::options* options = nullptr;
    std::vector<cut_slice> slices;
    typename Kind::state* whole = nullptr;  // the real optimizer's
    std::vector<at::Tensor> kept;           // its tensors
  };

  static typename Kind::state& state_of(const cut_slice& one) {
    return static_cast<typename Kind::state&>(
        *one.optimizer->state().at(one.parameter.unsafeGetTensorImpl()));
  }

  // True if the parameter has state to slice.
  static bool cut(part& mine, const at::Tensor& parameter, const typename Kind::options& options) {
    if (mine.parameter_at == parameter.const_data_ptr() && !mine.slices.empty()) return false;
    mine.parameter_at = parameter.const_data_ptr();
    mine.slices.clear();
    const auto whole = parameter.detach();
    for (std::size_t i = 0; i < slices_of(whole.numel()); ++i) {
      const auto offset = static_cast<std::int64_t>(i) * slice_elements;
      auto part_of_it = row(whole, offset, std::min(slice_elements, whole.numel() - offset));
      mine.slices.push_back({offset, part_of_it, at::Tensor{},
                             std::make_unique<typename Kind::optimizer>(
                                 std::vector<at::Tensor>{part_of_it}, options)});
    }
    return true;
  }

  // The slices' tensors are parts of the real optimizer's, which may have been loaded since.
  void share_state(part& mine, const at::Tensor& parameter, const typename Kind::options& options,
                   bool moved) {
    auto& held = real_.state()[parameter.unsafeGetTensorImpl()];
    const bool fresh = held == nullptr;
    if (fresh) held = std::make_unique<typename Kind::state>();
    mine.whole = static_cast<typename Kind::state*>(held.get());
    std::vector<at::Tensor> kept;
    Kind::each_slot(options, *mine.whole, [&](at::Tensor& slot) {
      if (!slot.defined())
        slot = Kind::starts_from_gradient ? at::empty_like(parameter.detach())
                                          : at::zeros_like(parameter.detach());
      else if (slot.strides() != parameter.strides())
        slot = at::empty_like(parameter.detach()).copy_(slot);
      kept.push_back(slot);
    });
    const bool same = !moved && !fresh &&
                      std::equal(kept.begin(), kept.end(), mine.kept.begin(), mine.kept.end(),
                                 [](const auto& a, const auto& b) { return a.is_same(b); });
    mine.kept = std::move(kept);
    if (same) return;
    for (auto& one : mine.slices) {
      auto& slices_own = one.optimizer->state();
      slices_own.clear();
      if (fresh && Kind::starts_from_gradient) continue;
      auto state = std::make_unique<typename Kind::state>();
      Kind::count(*state, *mine.whole);
      std::size_t slot = 0;
      Kind::each_slot(options, *state, [&](at::Tensor& part_of_it) {
        part_of_it = row(mine.kept[slot++], one.offset, one.parameter.numel());
      });
      slices_own[one.parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }

  optim::Optimizer& real_;
  std::unordered_map<const void*, part> parts_;  // references to elements stay valid
  std::vector<part*> in_step_;
};

}  // namespace

std::string sliced_optimizer::obstacle(const optim::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type != typeid(optim::SGD) && type != typeid(optim::Adam) && type != typeid(optim::AdamW))
    return "the optimizer is none of torch::optim's SGD, Adam and AdamW";
  for (const auto& group : optimizer.param_groups())
    for (const auto& p : group.params())
      if (p.scalar_type() != at::kFloat || !in_host_memory(p) || p.layout() != c10::kStrided ||
          !p.is_non_overlapping_and_dense())
        return fmt::format("a parameter of shape [{}] is not dense float32 in memory of the host",
                           fmt::join(p.sizes(), ", "));
  return {};
}

std::vector<sliced_optimizer::due> sliced_optimizer::all_due(const optim::Optimizer& optimizer) {
  std::vector<due> all;
  for (const auto& group : optimizer.param_groups())
    for (const auto& p : group.params())
      if (p.grad().defined()) all.push_back({p, &group.options()});
  return all;
}

void sliced_optimizer::forget_state(optim::Optimizer& optimizer) { optimizer.state().clear(); }

std::unique_ptr<sliced_optimizer> sliced_optimizer::of(optim::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type == typeid(optim::SGD)) return std::make_unique<sliced<sgd>>(optimizer);
  if (type == typeid(optim::Adam)) return std::make_unique<sliced<adam>>(optimizer);
  if (type == typeid(optim::AdamW)) return std::make_unique<sliced<adamw>>(optimizer);
  throw internal_error("sliced_optimizer: an optimizer of an unknown class");
}

std::size_t sliced_optimizer::slices_of(std::int64_t elements) {
  const auto full = (elements + slice_elements - 1) / slice_elements;
  return static_cast<std::size_t>(std::max<std::int64_t>(full, 1));
}

}  // namespace troupe
