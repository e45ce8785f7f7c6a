// Goal: the state of modules and optimizers can be saved and restored to the bit. State that does
// not fit is refused and changes nothing.
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>

#include "backends/torch/models.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/rank_random.hpp"
#include "backends/torch/torch_export.hpp"
#include "troupe/detail/optimizer_state.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

namespace optim = torch::optim;
using Catch::Matchers::Contains;

/// A module with a child, buffers in both, a frozen parameter, and a layer without bias.
struct sample : torch::nn::Module {
  explicit sample(std::uint64_t seed) {
    rank_random random{seed};
    const random_scope scope{random};
    scale = register_parameter("scale", at::ones({6}));
    register_parameter("frozen", at::rand({2}), /*requires_grad=*/false);
    register_buffer("seen", at::zeros({}, at::kLong));
    net = register_module(
        "net", torch::nn::Sequential{torch::nn::Linear{torch::nn::LinearOptions(4, 6).bias(false)},
                                     torch::nn::BatchNorm1d{6}, torch::nn::Linear{6, 3}});
  }
  at::Tensor loss(std::int64_t step) {
    const auto x = at::linspace(-1, 1, 40).view({10, 4}).mul(step + 1).sin();
    auto y =
        net[1]->as<torch::nn::BatchNorm1d>()->forward(net[0]->as<torch::nn::Linear>()->forward(x));
    y = net[2]->as<torch::nn::Linear>()->forward(y * scale);
    return torch::nn::functional::cross_entropy(y, at::arange(10).remainder(3));
  }
  std::vector<at::Tensor> learned() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters())
      if (parameter.requires_grad()) all.push_back(parameter);
    return all;
  }
  at::Tensor scale;
  torch::nn::Sequential net{nullptr};
};

using factory = std::function<std::unique_ptr<optim::Optimizer>(sample&)>;

void train(sample& module, optim::Optimizer& optimizer, std::int64_t first, std::int64_t last) {
  for (auto step = first; step < last; ++step)
    optimizer.step([&] {
      optimizer.zero_grad();
      const auto loss = module.loss(step);
      loss.backward();
      return loss;
    });
}

bool same(const std::vector<tensor_blob>& a, const std::vector<tensor_blob>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && *x.bytes == *y.bytes;
  });
}

std::vector<std::string> names_of(const std::vector<tensor_blob>& blobs) {
  std::vector<std::string> names;
  for (const auto& blob : blobs) names.push_back(blob.name);
  return names;
}

TEST_CASE("a module's state has the order of state_dict and can be loaded back") {
  const sample from{1};
  const auto state = state_of(from);
  CHECK(names_of(state) ==
        std::vector<std::string>{"scale", "frozen", "seen", "net.0.weight", "net.1.weight",
                                 "net.1.bias", "net.1.running_mean", "net.1.running_var",
                                 "net.1.num_batches_tracked", "net.2.weight", "net.2.bias"});
  sample to{2};
  CHECK_FALSE(same(state, state_of(to)));
  load_state(to, state);
  CHECK(same(state, state_of(to)));
  CHECK(to.scale.requires_grad());
}

TEST_CASE("weights that do not fit: the error names them and nothing is written") {
  sample to{2};
  const auto before = state_of(to);
  auto state = state_of(sample{1});
  state.erase(state.begin() + 3);
  state.push_back(blob_of("net.9.weight", at::zeros({1})));
  CHECK_THROWS_WITH(load_state(to, state),
                    Contains("missing net.0.weight") && Contains("unexpected net.9.weight"));
  CHECK(same(before, state_of(to)));
  const auto rest = load_state(to, state, matching::partial);
  CHECK(rest.missing == std::vector<std::string>{"net.0.weight"});
  CHECK(rest.unexpected == std::vector<std::string>{"net.9.weight"});
  state.back() = blob_of("net.0.weight", at::zeros({6, 5}));
  CHECK_THROWS_WITH(load_state(to, state, matching::partial),
                    Contains("net.0.weight (6, 5) for (6, 4)"));
  CHECK_THROWS_WITH(load_state(to, {}), Contains("(and 5 more)"));
}

TEST_CASE("weights are converted to the module's dtype") {
  sample to{2};
  to.to(at::kDouble);
  load_state(to, state_of(sample{1}));
  CHECK(to.scale.scalar_type() == at::kDouble);
  CHECK(at::equal(to.net[2]->as<torch::nn::Linear>()->bias.to(at::kFloat),
                  sample{1}.net[2]->as<torch::nn::Linear>()->bias));
}

TEST_CASE("an optimizer's tensors keep the strides of their parameters") {
  struct tilted : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::rand({3, 4}).t());
  } const module;
  optim::Adam from{module.parameters(), 0.01}, to{module.parameters(), 0.01};
  module.weight.pow(2).sum().backward();
  from.step();
  load_state(to, module, 0, state_of(from, module, 0));
  const auto moment = [&](optim::Adam& of) {
    return static_cast<optim::AdamParamState&>(*of.state().at(module.weight.unsafeGetTensorImpl()))
        .exp_avg();
  };
  CHECK(moment(to).strides() == module.weight.strides());
  CHECK(at::equal(moment(to), moment(from)));
}

/// A user's optimizer, of which the library knows only the base class.
struct own_optimizer : optim::Adam {
  explicit own_optimizer(std::vector<at::Tensor> learned) : Adam(std::move(learned), 0.01) {}
};

struct named_factory {
  const char* name;
  factory make;
};

std::vector<named_factory> every_optimizer() {
  using namespace optim;
  const auto of = [](auto options, auto type) {
    return [=](sample& m) -> std::unique_ptr<Optimizer> {
      using O = typename decltype(type)::type;
      return std::make_unique<O>(m.learned(), options);
    };
  };
  return {
      {"sgd", of(SGDOptions(0.1), std::type_identity<SGD>{})},
      {"sgd", of(SGDOptions(0.1).momentum(0.9).weight_decay(1e-3), std::type_identity<SGD>{})},
      {"adam", of(AdamOptions(0.01), std::type_identity<Adam>{})},
      {"adam", of(AdamOptions(0.01).amsgrad(true), std::type_identity<Adam>{})},
      {"adamw", of(AdamWOptions(0.01), std::type_identity<AdamW>{})},
      {"rmsprop",
       of(RMSpropOptions(0.01).momentum(0.5).centered(true), std::type_identity<RMSprop>{})},
      {"adagrad", of(AdagradOptions(0.01), std::type_identity<Adagrad>{})},
      {"archive",
       [](sample& m) -> std::unique_ptr<Optimizer> {
         return std::make_unique<own_optimizer>(m.learned());
       }},
      {"lbfgs", of(LBFGSOptions(0.1).max_iter(3), std::type_identity<LBFGS>{})},
  };
}

TEST_CASE("an optimizer restored from saved state continues to the bit") {
  for (const auto& [name, make] : every_optimizer()) {
    INFO(name);
    sample whole{1};
    const auto never_stopped = make(whole);
    train(whole, *never_stopped, 0, 10);

    sample first{1};
    const auto stopped = make(first);
    train(first, *stopped, 0, 4);
    const auto weights = state_of(first);
    const auto state = state_of(*stopped, first, 3);
    CHECK(nlohmann::json::parse(state.groups).at("type") == name);
    for (const auto& blob : state.tensors) CHECK(blob.name.starts_with("3."));

    sample second{2};
    const auto resumed = make(second);
    train(second, *resumed, 0, 1);  // state that is then replaced
    load_state(second, weights);
    load_state(*resumed, second, 3, state);
    train(second, *resumed, 4, 10);
    CHECK(same(state_of(whole), state_of(second)));
    // the bytes of an archive follow the order of addresses
    if (name != std::string_view{"archive"})
      CHECK(
          same(state_of(*never_stopped, whole, 0).tensors, state_of(*resumed, second, 0).tensors));
  }
}

TEST_CASE("optimizer state is named by parameter and group options by their names") {
  sample module{1};
  optim::Adam optimizer{module.learned(), optim::AdamOptions(0.1 / 3)};
  train(module, optimizer, 0, 1);
  const auto state = state_of(optimizer, module, 0);
  CHECK_THAT(names_of(state.tensors),
             Catch::VectorContains<std::string>("0.net.2.bias.exp_avg_sq"));
  CHECK_THAT(names_of(state.tensors), Catch::VectorContains<std::string>("0.scale.step"));
  const auto group = nlohmann::json::parse(state.groups).at("groups").at(0);
  CHECK(group.at("lr") == 0.1 / 3);
  CHECK(group.at("betas") == nlohmann::json{0.9, 0.999});
  CHECK(group.at("parameters").at(0) == "scale");
}

TEST_CASE("parameter groups keep their own options including changed learning rates") {
  const auto make = [](sample& module) {
    auto learned = module.learned();
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{learned[0]});
    groups.emplace_back(std::vector<at::Tensor>(learned.begin() + 1, learned.end()),
                        std::make_unique<optim::SGDOptions>(0.5));
    return optim::SGD{groups, optim::SGDOptions(0.1).momentum(0.9)};
  };
  sample module{1};
  auto optimizer = make(module);
  optimizer.param_groups()[1].options().set_lr(0.125);
  train(module, optimizer, 0, 2);
  const auto state = state_of(optimizer, module, 0);
  auto resumed = make(module);
  load_state(resumed, module, 0, state);
  CHECK(resumed.param_groups()[0].options().get_lr() == 0.1);
  CHECK(resumed.param_groups()[1].options().get_lr() == 0.125);
}

TEST_CASE("optimizer state that does not fit is refused and changes nothing") {
  sample module{1};
  optim::SGD sgd{module.learned(), optim::SGDOptions(0.1).momentum(0.9)};
  train(module, sgd, 0, 2);
  const auto good = state_of(sgd, module, 0);
  const auto with = [&](auto change) {
    auto state = good;
    change(state);
    return state;
  };
  const auto first_is = [](at::Tensor tensor) {
    return [=](optimizer_state& s) { s.tensors[0] = blob_of(s.tensors[0].name, tensor); };
  };
  optim::Adam adam{module.learned()};
  CHECK_THROWS_WITH(load_state(adam, module, 0, good), Contains("of sgd, not of adam"));
  optim::LBFGS lbfgs{module.learned()};
  CHECK_THROWS_WITH(load_state(lbfgs, module, 0, good), Contains("of sgd"));
  CHECK_THROWS_WITH(load_state(sgd, module, 0, with(first_is(at::zeros({7})))),
                    Contains("scale.momentum_buffer") && Contains("another shape"));
  const auto refuses = [&](auto change) {
    CHECK_THROWS_AS(load_state(sgd, module, 0, with(change)), user_error);
  };
  refuses([](optimizer_state& s) { s.groups = "{"; });
  refuses([](optimizer_state& s) { s.groups = R"({"type":"sgd","groups":[]})"; });
  refuses([](optimizer_state& s) { s.groups = R"({"type":"sgd","groups":[{"lr":0.1}]})"; });
  refuses([](optimizer_state& s) { s.tensors[0].name = "0.unknown.momentum_buffer"; });
  refuses([](optimizer_state& s) { s.tensors[0].dtype = "F31"; });
  sample other{1};
  optim::SGD fewer{{other.scale}, optim::SGDOptions(0.1)};
  CHECK_THROWS_AS(load_state(fewer, other, 0, good), user_error);
  CHECK(same(good.tensors, state_of(sgd, module, 0).tensors));
  CHECK(good.groups == state_of(sgd, module, 0).groups);
}

TEST_CASE("a truncated optimizer archive is refused") {
  sample module{1};
  own_optimizer optimizer{module.learned()};
  train(module, optimizer, 0, 1);
  auto state = state_of(optimizer, module, 0);
  auto half = *state.tensors[0].bytes;
  half.resize(half.size() / 2);
  state.tensors[0].bytes = std::make_shared<const std::vector<std::byte>>(half);
  CHECK_THROWS_AS(load_state(optimizer, module, 0, state), user_error);
  state.tensors.clear();
  CHECK_THROWS_WITH(load_state(optimizer, module, 0, state), Contains("0.archive is missing"));
}

std::string exported(const snapshot& what) {
  std::string bytes;
  for (const auto& chunk : encode_torch_checkpoint(what))
    bytes.append(reinterpret_cast<const char*>(chunk->data()), chunk->size());
  return bytes;
}

TEST_CASE("an export omits optimizers that PyTorch does not know") {
  sample module{1};
  optim::Adam adam{module.learned()};
  own_optimizer own{module.learned()};
  train(module, adam, 0, 1);
  train(module, own, 0, 1);
  snapshot with_adam, with_own;
  for (auto [to, from] : {std::pair<snapshot*, optim::Optimizer*>{&with_adam, &adam},
                          {&with_own, static_cast<optim::Optimizer*>(&own)}}) {
    auto state = state_of(*from, module, 0);
    to->model = state_of(module);
    to->optimizer = std::move(state.tensors);
    const auto groups = nlohmann::json::parse(state.groups);
    to->state = nlohmann::json{{"optimizers", {{{"groups", groups}}}}}.dump();
  }
  CHECK_THAT(exported(with_adam), Contains("optimizer_states") && Contains("net.1.running_mean"));
  CHECK_THAT(exported(with_own), !Contains("optimizer_states") && Contains("state_dict"));
}

TEST_CASE("an export that cannot be made names the tensor") {
  snapshot what;
  what.model = {blob_of("net.1.weight", at::zeros({2}))};
  what.model[0].shape = {3};
  CHECK_THROWS_WITH(exported(what), Contains("net.1.weight"));
  what.model.clear();
  what.state = R"({"optimizers": [{}]})";
  CHECK_THROWS_AS(exported(what), user_error);
  what.state = "{";
  CHECK_THROWS_AS(exported(what), user_error);
  what.state.clear();
  CHECK_FALSE(exported(what).empty());
}

}  // namespace
}  // namespace troupe
