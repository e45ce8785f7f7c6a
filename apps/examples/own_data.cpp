// Data of one's own: a dataset makes its samples when they are asked for, and a transform changes
// each of them anew in every epoch.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <iostream>
#include <troupe/data.hpp>
#include <troupe/trainer.hpp>

#include "apps/examples/classifier_recipe.hpp"

/// Pictures with one white line; its place is the label.
class lines : public troupe::dataset {
public:
  explicit lines(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  // Several threads call this at the same time.
  troupe::value get(std::span<const std::int64_t> indices) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    auto pictures = at::zeros({count, 1, 28, 28});
    auto labels = at::zeros({count}, at::kLong);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto label = indices[static_cast<std::size_t>(i)] % 10;
      pictures[i][0][2 * label + 4].fill_(1);
      labels[i] = label;
    }
    return troupe::value_tuple{{troupe::boxed(pictures), troupe::boxed(labels)}};
  }

private:
  std::int64_t size_;
};

/// The same with noise, which depends on seed, epoch and sample only.
troupe::dataset_ptr noisy(troupe::dataset_ptr plain) {
  return troupe::transformed(std::move(plain), [](troupe::value sample, std::uint64_t) {
    return troupe::map_tensors(sample, [](const at::Tensor& x) {
      return x.is_floating_point() ? x + 0.3 * at::randn(x.sizes()) : x;
    });
  });
}

int main() {
  const auto data = troupe::make_data({.name = "lines",
                                       .train = noisy(std::make_shared<lines>(1000)),
                                       .test = {noisy(std::make_shared<lines>(200))},
                                       .train_loading = {.batch_size = 16, .num_workers = 2}});
  const auto recipe = classifier_on(data);
  troupe::trainer trainer{{.ranks = 2, .max_epochs = 3}};
  const auto fitted = trainer.run(troupe::stage::train, recipe);
  fitted.rethrow();
  const auto tested = trainer.run(troupe::stage::test, recipe);
  tested.rethrow();
  std::cout << "samples " << fitted.loop.samples << ", test accuracy "
            << tested.last.at("test/accuracy") << '\n';
}
