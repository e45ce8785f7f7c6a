#include "apps/testing/tensors/tensor_states.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/checkpoint/digest.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/reference_executor.hpp"
#include "troupe/detail/optimizer_state.hpp"
#include "troupe/module.hpp"

namespace troupe::testing {

namespace {

using bytes_ptr = std::shared_ptr<const std::vector<std::byte>>;

template <class Float>
bytes_ptr with_equal_nans(const bytes_ptr& held) {
  std::shared_ptr<std::vector<std::byte>> copy;
  Float x{};
  for (std::size_t at = 0; at + sizeof x <= held->size(); at += sizeof x) {
    std::memcpy(&x, held->data() + at, sizeof x);
    if (x == x) continue;
    if (!copy) copy = std::make_shared<std::vector<std::byte>>(*held);
    x = std::numeric_limits<Float>::quiet_NaN();
    std::memcpy(copy->data() + at, &x, sizeof x);
  }
  return copy ? copy : held;
}

void make_nans_equal(blobs& state) {
  for (auto& blob : state)
    if (blob.dtype == "F32")
      blob.bytes = with_equal_nans<float>(blob.bytes);
    else if (blob.dtype == "F64")
      blob.bytes = with_equal_nans<double>(blob.bytes);
}

std::int64_t size_of_element(const tensor_blob& blob) {
  std::int64_t elements = 1;
  for (const auto extent : blob.shape) elements *= extent;
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(blob.bytes->size()) / std::max<std::int64_t>(1, elements));
}

std::shared_ptr<torch::optim::Optimizer> only_one_of(const optimizers& all) {
  const bool one = all.all().size() == 1;
  if (!one || std::ranges::any_of(all.all()[0].schedulers, &scheduler::plateau))
    throw user_error(errc::bad_configuration,
                     "the serial reference follows one optimizer, without a plateau scheduler: set "
                     "tensors_options::reference to false");
  return all.all()[0].optimizer;
}

// The parts of a reference run that the serial executor does not have.
class shards_of {
public:
  shards_of(const tensor_job& what, const poisons& applied)
      : job_(what),
        poisons_(applied),
        layout_{what.data->train()->size(), what.options.ranks, what.options.batch_size} {
    all_.models.resize(1), all_.optimizers.resize(1), all_.digests.resize(1);
  }

  std::shared_ptr<module> make() {
    auto made = job_.make_module();
    made->setup(stage::train);
    made->configure_model();
    shards_.push_back(made.get());
    return made;
  }

  std::shared_ptr<torch::optim::Optimizer> optimizer() {
    optimizers_ = shards_[0]->configure_optimizers();
    return only_one_of(optimizers_);
  }

  at::Tensor loss(const torch::nn::Module& of, value held, std::int64_t batch) {
    const auto found = std::ranges::find(shards_, &of);
    const auto rank = static_cast<std::int32_t>(found - shards_.begin());
    auto& mine = **found;
    held = mine.on_before_batch_transfer(std::move(held), 0);
    held = job_.data->on_before_batch_transfer(std::move(held), 0);
    held = job_.data->on_after_batch_transfer(std::move(held), 0);
    held = mine.on_after_batch_transfer(std::move(held), 0);
    const troupe::batch samples{std::move(held), layout_.of_rank(batch, rank).count};
    auto made = mine.training_step(samples, batch);
    if (poisons_.contains({rank, steps_, batch})) made = spoilt(made);
    return mine.training_step_end(std::move(made)).loss();
  }

  void stepped(const torch::optim::Optimizer& optimizer) {
    ++steps_;
    all_.models.push_back(state_of(*shards_[0]));
    all_.optimizers.push_back(state_of(optimizer, *shards_[0], 0).tensors);
    all_.digests.push_back(digest_of(all_.models.back()));
    move_schedulers(schedule::interval::step);
  }

  void move_schedulers(schedule::interval after) {
    for (auto& one : optimizers_.all()[0].schedulers)
      if (one.when().every == after) one.step(std::nullopt);
  }

  tensor_states states() && { return std::move(all_); }

private:
  const tensor_job& job_;
  const poisons& poisons_;
  const data_layout layout_;
  std::vector<module*> shards_;
  optimizers optimizers_;
  std::int64_t steps_ = 0;
  tensor_states all_;
};

}  // namespace

std::uint64_t digest_of(blobs state) {
  make_nans_equal(state);
  return std::stoull(weights_digest(state).substr(0, 16), nullptr, 16);
}

std::optional<difference> first_difference(blobs is, blobs should) {
  make_nans_equal(is), make_nans_equal(should);
  for (std::size_t i = 0; i < std::max(is.size(), should.size()); ++i) {
    if (i >= is.size() || i >= should.size() || is[i].name != should[i].name)
      return difference{i < should.size() ? should[i].name : is[i].name, -1};
    const auto& a = *is[i].bytes;
    const auto& b = *should[i].bytes;
    if (a == b && is[i].dtype == should[i].dtype && is[i].shape == should[i].shape) continue;
    const auto byte = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    return difference{should[i].name, byte / size_of_element(should[i])};
  }
  return std::nullopt;
}

step_output spoilt(const step_output& from) {
  auto loss = boxed(from.loss() * std::numeric_limits<double>::quiet_NaN());
  const auto* map = from.get().get_if<value_map>();
  if (!map) return loss;
  auto copy = *map;
  copy.items["loss"] = std::move(loss);
  return copy;
}

tensor_states reference_states(const tensor_job& what, const poisons& applied) {
  shards_of shards{what, applied};
  reference_run run;
  run.make_module = [&] { return shards.make(); };
  run.make_optimizer = [&](const torch::nn::Module&) { return shards.optimizer(); };
  run.loss = [&](const torch::nn::Module& of, const value& held, std::int64_t batch) {
    return shards.loss(of, held, batch);
  };
  run.data = what.data->train();
  run.seed = what.options.seed;
  run.shards = what.options.ranks;
  run.batch_size = what.options.batch_size;
  run.accumulate_grad_batches = what.options.accumulate_grad_batches;
  run.max_epochs = std::numeric_limits<std::int64_t>::max();
  run.max_steps = what.options.max_steps;
  run.after_step = [&](const torch::optim::Optimizer& o, std::int64_t) { shards.stepped(o); };
  run.after_epoch = [&] { shards.move_schedulers(schedule::interval::epoch); };
  execute(run);
  return std::move(shards).states();
}

}  // namespace troupe::testing
