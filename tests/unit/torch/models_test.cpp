// Goal: the models of the catalog have PyTorch's parameter names, take the images of the data sets,
// and refuse impossible options.
#include "backends/torch/models.hpp"

#include <ATen/Functions.h>

#include "backends/torch/rank_random.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using Catch::Matchers::Contains;

std::vector<std::string> keys_of(const torch::nn::Module& module) {
  std::vector<std::string> keys;
  for (const auto& parameter : module.named_parameters()) keys.push_back(parameter.key());
  return keys;
}

TEST_CASE("parameters are numbered as torch.nn.Sequential numbers them") {
  CHECK(keys_of(*make_mlp()) ==
        std::vector<std::string>{"1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"});
  CHECK(keys_of(*make_mlp({.hidden = {}})) == std::vector<std::string>{"1.weight", "1.bias"});
  CHECK(keys_of(*make_cnn()) == std::vector<std::string>{"0.weight", "0.bias", "3.weight", "3.bias",
                                                         "7.weight", "7.bias", "9.weight",
                                                         "9.bias"});
}

TEST_CASE("dropout layers take no number in a Sequential") {
  CHECK(keys_of(*make_mlp({.dropout = 0.5})) == keys_of(*make_mlp()));
  CHECK(keys_of(*make_cnn({.dropout = 0.5})) == keys_of(*make_cnn()));
}

TEST_CASE("every model of the catalog has its documented size and accepts its images") {
  CHECK(parameter_count(*find_model("mlp").make({})) == 784 * 256 + 256 + 256 * 128 + 128 + 1290);
  CHECK(parameter_count(*find_model("cnn").make({})) == 320 + 18496 + 3136 * 128 + 128 + 1290);
  for (const auto& entry : model_catalog()) {
    auto net = entry.make({});
    if (entry.reads_text)
      CHECK(net->forward(at::ones({5, 7}, at::kLong)).sizes() == at::IntArrayRef({5, 96, 7}));
    else
      CHECK(net->forward(at::rand({5, 1, 28, 28})).sizes() == at::IntArrayRef({5, 10}));
    CHECK_FALSE(entry.summary.empty());
  }
  CHECK_THROWS_WITH(find_model("mlpp"), Contains("mlp, cnn, gpt"));
  CHECK_THROWS_WITH(
      make_mlp({.hidden = {1 << 20, 1 << 20}}),
      Contains("model.hidden = [1048576, 1048576]") && Contains("at most 2147483648"));
  CHECK_THROWS_WITH(make_mlp({.hidden = {}, .features = INT64_MAX, .classes = INT64_MAX}),
                    Contains("at most 2147483648"));
}

TEST_CASE("a text model sees no character after the one that it continues") {
  auto net = make_gpt();
  const auto text = at::arange(64, at::kLong).reshape({1, 64});
  auto changed = text.clone();
  changed.slice(1, 40).fill_(5);
  const auto a = net->forward(text), b = net->forward(changed);
  CHECK(at::equal(a.slice(2, 0, 40), b.slice(2, 0, 40)));
  CHECK_FALSE(at::equal(a.slice(2, 40), b.slice(2, 40)));
  changed = text.clone();
  changed.slice(1, 0, 1).fill_(5);
  CHECK_FALSE(at::equal(a.slice(2, 63), net->forward(changed).slice(2, 63)));
  CHECK_THROWS_WITH(net->forward(at::rand({5, 1, 28, 28})), Contains("--data text"));
}

TEST_CASE("initial weights come from the current random scope") {
  const auto made = [](std::uint64_t seed) {
    rank_random random{seed};
    const random_scope scope{random};
    return make_mlp();
  };
  const auto a = made(1), b = made(1), c = made(2);
  CHECK(at::equal(a->parameters()[0], b->parameters()[0]));
  CHECK_FALSE(at::equal(a->parameters()[0], c->parameters()[0]));
}

TEST_CASE("dropout is active in training only and reproducible after a reset") {
  auto net = make_mlp({.hidden = {64}, .dropout = 0.5});
  rank_random random{1};
  const random_scope scope{random};
  const auto images = at::rand({8, 784});
  net->eval();
  CHECK(at::equal(net->forward(images), net->forward(images)));
  net->train();
  CHECK_FALSE(at::equal(net->forward(images), net->forward(images)));
  random.reset({.purpose = "training_step"});
  const auto once = net->forward(images);
  random.reset({.purpose = "training_step"});
  CHECK(at::equal(once, net->forward(images)));
}

TEST_CASE("forward does not change a model's input") {
  const auto images = at::randn({4, 1, 28, 28});
  const auto before = images.clone();
  for (const auto& entry : model_catalog())
    if (!entry.reads_text) entry.make({})->forward(images);
  CHECK(at::equal(images, before));
}

TEST_CASE("an impossible option is refused with its key") {
  CHECK_THROWS_WITH(make_mlp({.dropout = 1.0}), Contains("model.dropout is 1"));
  CHECK_THROWS_WITH(make_mlp({.dropout = -0.1}), Contains("model.dropout"));
  CHECK_THROWS_WITH(make_mlp({.hidden = {256, 0}}), Contains("model.hidden holds 0"));
  CHECK_THROWS_AS(make_cnn({.classes = 0}), user_error);
}

}  // namespace
}  // namespace troupe
