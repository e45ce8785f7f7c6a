#include "tests/support/integer_learner.hpp"

#include <cstring>
#include <utility>

namespace troupe::testing {

namespace {

std::int64_t wrapping(std::uint64_t x) { return static_cast<std::int64_t>(x); }

void add_sample(std::vector<std::int64_t>& gradient, std::int64_t sample) {
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = wrapping(static_cast<std::uint64_t>(gradient[i]) +
                           static_cast<std::uint64_t>(sample + 1) * (i + 1));
}

}  // namespace

hook_outcome integer_learner::on(const hook& h, const closure& inner) {
  if (options_.at_hook) options_.at_hook(context_, h);
  if (const auto* x = h.get_if<hooks::process_dataloader>()) return lengths(x->at.stage);
  if (const auto* x = h.get_if<hooks::optimizer_step>()) return step(*x, inner);
  if (const auto* x = h.get_if<hooks::save_checkpoint>()) return save(*x);
  if (const auto* x = h.get_if<hooks::load_checkpoint>()) return load(*x);
  if (const auto* x = h.get_if<hooks::backward>()) backward(*x);
  if (h.is<hooks::optimizer_zero_grad>()) gradient_.assign(weights_.size(), 0);
  if (const auto* x = h.get_if<hooks::barrier>()) {
    if (!pending_) pending_ = world_->barrier(x->label);
    wait_for(pending_);
    pending_ = nullptr;
  }
  if (const auto* x = h.get_if<hooks::teardown>(); x && x->orderly) {
    if (!pending_) pending_ = world_->barrier("teardown");
    wait_for(pending_);
    pending_ = nullptr;
  }
  return {};
}

hook_outcome integer_learner::lengths(stage s) const {
  hook_outcome out;
  auto data = layout();
  if (s != stage::train) data.size = options_.validation_samples;
  out.loaders.push_back({s, 0, data.batches(), data.size, data.ranks * data.batch_size});
  return out;
}

void integer_learner::backward(const hooks::backward& h) {
  const auto order = permutation(context_.options.seed, h.at.epoch, options_.samples);
  const auto mine = layout(h.at.epoch).of_rank(h.at.batch, context_.rank);
  for (auto i = mine.first; i < mine.first + mine.count; ++i)
    add_sample(gradient_, order[static_cast<std::size_t>(i)]);
  if (h.synchronize())
    reducing_ =
        world_->all_reduce({gradient_.data(), gradient_.size(), dtype::i64}, reduction::sum);
}

// The closure runs once, however often a lane that cannot wait calls this hook again.
hook_outcome integer_learner::step(const hooks::optimizer_step& h, const closure& inner) {
  if (!std::exchange(closure_ran_, true)) inner();
  wait_for(reducing_);
  closure_ran_ = false;
  reducing_ = nullptr;
  for (std::size_t i = 0; i < weights_.size(); ++i)
    weights_[i] = wrapping(static_cast<std::uint64_t>(weights_[i]) +
                           static_cast<std::uint64_t>(gradient_[i]));
  const auto k = context_.options.accumulate_grad_batches;
  hook_outcome out;
  out.samples = layout(h.at.epoch).samples(h.at.batch / k * k, h.at.batch);
  out.logged["train/loss"] = static_cast<double>(weights_[0] % 1000);
  return out;
}

void integer_learner::wait_for(const work_ptr& what) {
  if (!options_.can_wait && what->poll().status == work_status::pending) throw not_yet{};
  what->wait();
}

hook_outcome integer_learner::save(const hooks::save_checkpoint& h) const {
  auto state = std::make_shared<snapshot>();
  state->loop = h.loop;
  state->ranks = context_.world;
  const auto* bytes = reinterpret_cast<const std::byte*>(weights_.data());
  state->model.push_back({"weights",
                          "I64",
                          {static_cast<std::int64_t>(weights_.size())},
                          std::make_shared<const std::vector<std::byte>>(
                              bytes, bytes + weights_.size() * sizeof(std::int64_t))});
  hook_outcome out;
  out.snapshot = std::move(state);
  return out;
}

hook_outcome integer_learner::load(const hooks::load_checkpoint& h) {
  const auto state = options_.load(h.path);
  const auto& bytes = *state.model.at(0).bytes;
  weights_.resize(bytes.size() / sizeof(std::int64_t));
  std::memcpy(weights_.data(), bytes.data(), bytes.size());
  resumed_ = state.loop;
  hook_outcome out;
  if (h.what == hooks::load_checkpoint::part::everything) out.restored = state.loop;
  return out;
}

value integer_learner::result() {
  value_list all;
  for (const auto w : weights_) all.items.emplace_back(w);
  return all;
}

std::vector<std::int64_t> expected_integers(const integer_options& options, std::int64_t ranks,
                                            const trainer_options& run, std::int64_t steps) {
  const data_layout layout{options.samples, ranks, run.batch_size};
  std::vector<std::int64_t> weights(options.width, 0);
  std::int64_t done = 0;
  for (std::int64_t epoch = 0; done < steps; ++epoch) {
    const auto order = permutation(run.seed, epoch, options.samples);
    for (std::int64_t b = 0; b < layout.batches() && done < steps; ++b) {
      const auto taken = layout.of_batch(b);
      for (auto i = taken.first; i < taken.first + taken.count; ++i)
        add_sample(weights, order[static_cast<std::size_t>(i)]);
      const bool steps_here =
          (b + 1) % run.accumulate_grad_batches == 0 || b + 1 == layout.batches();
      done += steps_here ? 1 : 0;
    }
  }
  return weights;
}

std::vector<std::int64_t> integers_of(const value& result) {
  std::vector<std::int64_t> out;
  for (const auto& item : result.get_if<value_list>()->items)
    out.push_back(*item.get_if<std::int64_t>());
  return out;
}

}  // namespace troupe::testing
