#include "troupe/detail/optimizer_state.hpp"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <typeinfo>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

using json = nlohmann::json;
namespace optim = torch::optim;

template <class Options, class State>
struct kind {
  using options = Options;
  using state = State;
  const char* name;
};

/// Calls f with the optimizer's class if its state is known here. Returns false for all others, and
/// for a user's class that derives from a known one.
template <class F>
bool with_kind(const optim::Optimizer& optimizer, F&& f) {
  const auto& type = typeid(optimizer);
  if (type == typeid(optim::SGD))
    f(kind<optim::SGDOptions, optim::SGDParamState>{"sgd"});
  else if (type == typeid(optim::Adam))
    f(kind<optim::AdamOptions, optim::AdamParamState>{"adam"});
  else if (type == typeid(optim::AdamW))
    f(kind<optim::AdamWOptions, optim::AdamWParamState>{"adamw"});
  else if (type == typeid(optim::RMSprop))
    f(kind<optim::RMSpropOptions, optim::RMSpropParamState>{"rmsprop"});
  else if (type == typeid(optim::Adagrad))
    f(kind<optim::AdagradOptions, optim::AdagradParamState>{"adagrad"});
  else if (type == typeid(optim::LBFGS))
    f(kind<optim::LBFGSOptions, optim::LBFGSParamState>{"lbfgs"});
  else
    return false;
  return true;
}

template <class F>
void each_option(optim::SGDOptions& o, F&& f) {
  f("lr", o.lr()), f("momentum", o.momentum()), f("dampening", o.dampening());
  f("weight_decay", o.weight_decay()), f("nesterov", o.nesterov());
}
template <class Adam, class F>
void each_adam_option(Adam& o, F&& f) {
  f("lr", o.lr()), f("betas", o.betas()), f("eps", o.eps());
  f("weight_decay", o.weight_decay()), f("amsgrad", o.amsgrad());
}
template <class F>
void each_option(optim::AdamOptions& o, F&& f) {
  each_adam_option(o, f);
}
template <class F>
void each_option(optim::AdamWOptions& o, F&& f) {
  each_adam_option(o, f);
}
template <class F>
void each_option(optim::RMSpropOptions& o, F&& f) {
  f("lr", o.lr()), f("alpha", o.alpha()), f("eps", o.eps()), f("weight_decay", o.weight_decay());
  f("momentum", o.momentum()), f("centered", o.centered());
}
template <class F>
void each_option(optim::AdagradOptions& o, F&& f) {
  f("lr", o.lr()), f("lr_decay", o.lr_decay()), f("weight_decay", o.weight_decay());
  f("initial_accumulator_value", o.initial_accumulator_value()), f("eps", o.eps());
}
template <class F>
void each_option(optim::LBFGSOptions& o, F&& f) {
  f("lr", o.lr()), f("max_iter", o.max_iter()), f("max_eval", o.max_eval());
  f("tolerance_grad", o.tolerance_grad()), f("tolerance_change", o.tolerance_change());
  f("history_size", o.history_size()), f("line_search_fn", o.line_search_fn());
}

template <class T>
json option_to(const T& x) {
  return x;
}
template <class T>
json option_to(const std::optional<T>& x) {
  return x ? json(*x) : json();
}
template <class T>
void option_from(const json& from, T& x) {
  from.get_to(x);
}
template <class T>
void option_from(const json& from, std::optional<T>& x) {
  x = from.is_null() ? std::optional<T>{} : from.get<T>();
}

template <class F>
void each_slot(optim::SGDParamState& s, F&& f) {
  f("momentum_buffer", s.momentum_buffer());
}
template <class Adam, class F>
void each_adam_slot(Adam& s, F&& f) {
  f("step", s.step()), f("exp_avg", s.exp_avg()), f("exp_avg_sq", s.exp_avg_sq());
  f("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class F>
void each_slot(optim::AdamParamState& s, F&& f) {
  each_adam_slot(s, f);
}
template <class F>
void each_slot(optim::AdamWParamState& s, F&& f) {
  each_adam_slot(s, f);
}
template <class F>
void each_slot(optim::RMSpropParamState& s, F&& f) {
  f("step", s.step()), f("square_avg", s.square_avg());
  f("momentum_buffer", s.momentum_buffer()), f("grad_avg", s.grad_avg());
}
template <class F>
void each_slot(optim::AdagradParamState& s, F&& f) {
  f("step", s.step()), f("sum", s.sum());
}

/// One state for all parameters, stored with the first. The field `al` is scratch and not stored.
template <class F>
void each_slot(optim::LBFGSParamState& s, F&& f) {
  f("func_evals", s.func_evals()), f("n_iter", s.n_iter()), f("t", s.t());
  f("prev_loss", s.prev_loss()), f("d", s.d()), f("H_diag", s.H_diag());
  f("prev_flat_grad", s.prev_flat_grad()), f("old_dirs", s.old_dirs());
  f("old_stps", s.old_stps()), f("ro", s.ro());
}

at::Tensor tensor_from_slot(const at::Tensor& slot) { return slot; }
at::Tensor tensor_from_slot(std::int64_t slot) { return at::scalar_tensor(slot, at::kLong); }
at::Tensor tensor_from_slot(double slot) { return at::scalar_tensor(slot, at::kDouble); }
void slot_from_tensor(at::Tensor& slot, const at::Tensor& from) { slot = from; }
void slot_from_tensor(std::int64_t& slot, const at::Tensor& from) {
  if (from.dim() != 0 || from.scalar_type() != at::kLong)
    throw std::invalid_argument("it is no step count");
  slot = from.item<std::int64_t>();
}
void slot_from_tensor(double& slot, const at::Tensor& from) {
  if (from.dim() != 0 || from.scalar_type() != at::kDouble)
    throw std::invalid_argument("it is no number");
  slot = from.item<double>();
}

/// On the parameter's device, floating-point numbers in `type`, and, if it has the parameter's
/// shape, with its strides, as optimizers make them.
at::Tensor placed_like(const at::Tensor& parameter, at::ScalarType type, const at::Tensor& from) {
  const bool cast = from.is_floating_point() && at::isFloatingType(type);
  const auto moved = from.to(parameter.device(), cast ? type : from.scalar_type());
  if (moved.sizes() != parameter.sizes() || moved.strides() == parameter.strides()) return moved;
  return at::empty_like(parameter, moved.options()).copy_(moved);
}

[[noreturn]] void refuse(std::int32_t index, std::string_view why) {
  throw user_error(errc::checkpoint,
                   fmt::format("the state of optimizer {} does not fit: {}; go on with the "
                               "optimizer and the model it was saved from",
                               index, why));
}

/// The name of each parameter of an optimizer.
class parameter_names {
public:
  explicit parameter_names(const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters())
      names_.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::string operator()(const at::Tensor& parameter, std::size_t group, std::size_t at) const {
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    return found == names_.end() ? fmt::format("group{}.{}", group, at) : found->second;
  }

private:
  std::map<const void*, std::string> names_;
};

/// Calls f(parameter, name) for every parameter of a group.
template <class F>
void each_parameter(const optim::OptimizerParamGroup& group, std::size_t g,
                    const parameter_names& names, F&& f) {
  for (std::size_t i = 0; i < group.params().size(); ++i)
    f(group.params()[i], names(group.params()[i], g, i));
}

/// A slot that holds a list of tensors, stored as `<slot>.<i>`.
template <class T>
inline constexpr bool is_row = std::is_same_v<std::decay_t<T>, std::deque<at::Tensor>>;

template <class Kind>
optimizer_state save_as(Kind what, const optim::Optimizer& optimizer, const parameter_names& names,
                        std::int32_t index) {
  optimizer_state saved;
  auto groups = json::array();
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    auto options = static_cast<const typename Kind::options&>(group.options());
    json entry;
    each_option(options, [&](const char* name, const auto& x) { entry[name] = option_to(x); });
    entry["parameters"] = json::array();
    each_parameter(group, g, names, [&](const at::Tensor& parameter, const std::string& name) {
      entry["parameters"].push_back(name);
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) return;
      auto& state = static_cast<typename Kind::state&>(*found->second);
      const auto put = [&](const std::string& slot, const at::Tensor& tensor) {
        if (tensor.defined())
          saved.tensors.push_back(blob_of(fmt::format("{}.{}.{}", index, name, slot), tensor));
      };
      each_slot(state, [&](const char* slot, const auto& x) {
        if constexpr (is_row<decltype(x)>)
          for (std::size_t i = 0; i < x.size(); ++i) put(fmt::format("{}.{}", slot, i), x[i]);
        else
          put(slot, tensor_from_slot(x));
      });
    });
    groups.push_back(std::move(entry));
  }
  saved.groups = json{{"type", what.name}, {"groups", std::move(groups)}}.dump();
  return saved;
}

/// Reads and checks everything before it changes the optimizer.
template <class Kind>
class restoration {
public:
  restoration(std::int32_t index, const optimizer_state& state) : index_(index) {
    const auto prefix = fmt::format("{}.", index);
    for (const auto& blob : state.tensors)
      if (blob.name.starts_with(prefix)) blobs_.emplace(blob.name.substr(prefix.size()), &blob);
  }

  void read(const optim::Optimizer& optimizer, const parameter_names& names, const json& groups) {
    if (groups.size() != optimizer.param_groups().size())
      refuse(index_, fmt::format("it has {} groups, {} are here", groups.size(),
                                 optimizer.param_groups().size()));
    for (std::size_t g = 0; g < groups.size(); ++g)
      read_group(optimizer.param_groups()[g], g, names, groups[g]);
    if (!blobs_.empty()) refuse(index_, blobs_.begin()->first + " belongs to no parameter");
  }

  void apply(optim::Optimizer& optimizer) {
    for (std::size_t g = 0; g < options_.size(); ++g)
      static_cast<typename Kind::options&>(optimizer.param_groups()[g].options()) = options_[g];
    optimizer.state().clear();
    for (auto& [key, state] : states_) optimizer.state()[key] = std::move(state);
  }

private:
  void read_group(const optim::OptimizerParamGroup& group, std::size_t g,
                  const parameter_names& names, const json& saved) {
    auto options = static_cast<const typename Kind::options&>(group.options());
    each_option(options, [&](const char* name, auto& x) { option_from(saved.at(name), x); });
    options_.push_back(options);
    auto parameters = json::array();
    each_parameter(group, g, names, [&](const at::Tensor& parameter, const std::string& name) {
      parameters.push_back(name);
      read_slots(parameter, name, type_in(group, parameter));
    });
    if (parameters != saved.at("parameters"))
      refuse(index_, fmt::format("group {} has other parameters", g));
  }

  // LBFGS computes with all parameters in one row.
  static at::ScalarType type_in(const optim::OptimizerParamGroup& group, const at::Tensor& one) {
    auto type = one.scalar_type();
    if (!shaped_like_parameters)
      for (const auto& other : group.params()) type = c10::promoteTypes(type, other.scalar_type());
    return type;
  }

  void read_slots(const at::Tensor& parameter, const std::string& name, at::ScalarType type) {
    auto state = std::make_unique<typename Kind::state>();
    bool any = false;
    const auto take = [&](const std::string& slot, auto& x) {
      const auto found = blobs_.find(fmt::format("{}.{}", name, slot));
      if (found == blobs_.end()) return false;
      try {
        const auto from = tensor_of(*found->second);
        if (shaped_like_parameters && from.dim() != 0 && from.sizes() != parameter.sizes())
          throw std::invalid_argument("it has another shape than its parameter");
        constexpr bool number = !std::is_same_v<std::remove_cvref_t<decltype(x)>, at::Tensor>;
        slot_from_tensor(x, number ? from : placed_like(parameter, type, from));
      } catch (const std::invalid_argument& error) {
        refuse(index_, fmt::format("{}: {}", found->first, error.what()));
      }
      blobs_.erase(found);
      return any = true;
    };
    each_slot(*state, [&](const char* slot, auto& x) {
      if constexpr (is_row<decltype(x)>) {
        at::Tensor one;
        while (take(fmt::format("{}.{}", slot, x.size()), one)) x.push_back(one);
      } else {
        take(slot, x);
      }
    });
    if (any) states_.emplace_back(parameter.unsafeGetTensorImpl(), std::move(state));
  }

  static constexpr bool shaped_like_parameters =
      !std::is_same_v<typename Kind::state, optim::LBFGSParamState>;

  std::int32_t index_;
  std::map<std::string, const tensor_blob*> blobs_;
  std::vector<typename Kind::options> options_;
  std::vector<std::pair<void*, std::unique_ptr<optim::OptimizerParamState>>> states_;
};

optimizer_state archive_of(const optim::Optimizer& optimizer, std::int32_t index) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  const auto text = std::move(out).str();
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  tensor_blob blob{fmt::format("{}.archive", index),
                   "U8",
                   {static_cast<std::int64_t>(text.size())},
                   std::make_shared<const std::vector<std::byte>>(data, data + text.size())};
  return {{std::move(blob)}, json{{"type", "archive"}}.dump()};
}

void load_archive(optim::Optimizer& optimizer, std::int32_t index, const optimizer_state& state) {
  const auto name = fmt::format("{}.archive", index);
  for (const auto& blob : state.tensors)
    if (blob.name == name && blob.bytes) {
      std::istringstream in{
          std::string{reinterpret_cast<const char*>(blob.bytes->data()), blob.bytes->size()}};
      torch::serialize::InputArchive archive;
      archive.load_from(in);
      return optimizer.load(archive);
    }
  refuse(index, name + " is missing");
}

}  // namespace

void copy_options(const optim::OptimizerOptions& from, const optim::Optimizer& optimizer,
                  optim::OptimizerParamGroup& into) {
  const bool known = with_kind(optimizer, [&](auto what) {
    using options = typename decltype(what)::options;
    static_cast<options&>(into.options()) = static_cast<const options&>(from);
  });
  if (known) return;
  try {
    into.options().set_lr(from.get_lr());
  } catch (const c10::Error&) {
    // It has no rate that LibTorch knows.
  }
}

void check_saves(const optim::Optimizer& optimizer, std::int32_t index) {
  if (optimizer.state().empty() || with_kind(optimizer, [](auto) {})) return;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::stringstream bytes;
  archive.save_to(bytes);
  torch::serialize::InputArchive written;
  written.load_from(bytes);
  if (!written.keys().empty()) return;
  throw user_error(errc::checkpoint,
                   fmt::format("optimizer {} keeps a state that its class does not save, so a "
                               "resume and new ranks would begin without it: override save and "
                               "load of torch::optim::Optimizer",
                               index));
}

optimizer_state state_of(const optim::Optimizer& optimizer, const torch::nn::Module& module,
                         std::int32_t index) {
  optimizer_state saved;
  const parameter_names names{module};
  if (!with_kind(optimizer, [&](auto what) { saved = save_as(what, optimizer, names, index); }))
    saved = archive_of(optimizer, index);
  return saved;
}

void load_state(optim::Optimizer& optimizer, const torch::nn::Module& module, std::int32_t index,
                const optimizer_state& state) {
  try {
    const auto saved = json::parse(state.groups);
    const auto type = saved.at("type").get<std::string>();
    const bool known = with_kind(optimizer, [&](auto what) {
      if (type != what.name) refuse(index, fmt::format("it is of {}, not of {}", type, what.name));
      restoration<decltype(what)> taken{index, state};
      taken.read(optimizer, parameter_names{module}, saved.at("groups"));
      taken.apply(optimizer);
    });
    if (known) return;
    if (type != "archive") refuse(index, fmt::format("it is of {}", type));
    load_archive(optimizer, index, state);
  } catch (const json::exception& error) {
    refuse(index, error.what());
  } catch (const c10::Error& error) {
    refuse(index, error.what_without_backtrace());
  }
}

}  // namespace troupe
