#include "backends/simulated/modular_learner.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "backends/learner/state_transfer.hpp"
#include "backends/simulated/answered_hooks.hpp"
#include "backends/simulated/modular_arithmetic.hpp"
#include "troupe/failure.hpp"

namespace troupe {

using namespace modular;

namespace {

class modular_learner final : public learner {
public:
  modular_learner(const learner_context& context, const modular_recipe& recipe)
      : context_(context), recipe_(recipe), options_(recipe.options()) {
    state_ = initial(options_.width, context.options.seed);
    // Only rank 0's weights count; the others receive them by broadcast.
    if (context.rank != 0) std::ranges::fill(state_.weights, 7);
  }

  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    world_ = std::move(world);
    generation_ = generation.value();
    reducing_ = pending_ = nullptr;
    transfer_.reset();
    stage_ = stage::idle;
  }

  void keep_point() override { kept_ = state_; }

  void pass(std::span<const hook> hooks, std::uint32_t& handled) override {
    const bool applied = options_.at_hook && (!options_.faults_due || options_.faults_due());
    for (; handled < hooks.size() && !answers(hooks[handled]); ++handled) {
      const auto& h = hooks[handled];
      if (applied) options_.at_hook(context_, h);
      if (const auto* x = h.get_if<hooks::backward>()) backward(*x);
      if (h.is<hooks::optimizer_zero_grad>()) gradient_.assign(options_.width, 0);
    }
  }

  hook_outcome on(const hook& h, const closure& inner) override {
    std::uint32_t passed = 0;
    pass({&h, 1}, passed);
    if (passed > 0) return {};
    if (options_.at_hook) options_.at_hook(context_, h);
    if (const auto* x = h.get_if<hooks::optimizer_step>()) return step(*x, inner);
    if (const auto* x = h.get_if<hooks::process_dataloader>()) return lengths(x->at.stage);
    if (const auto* x = h.get_if<hooks::save_checkpoint>()) return save(*x);
    if (const auto* x = h.get_if<hooks::load_checkpoint>()) return load(*x);
    if (const auto* x = h.get_if<hooks::barrier>()) return meet(x->label);
    if (h.is<hooks::model_to_device>()) return broadcast_weights();
    if (h.is<hooks::rewind>()) return rewind();
    if (const auto* x = h.get_if<hooks::restore_state>()) return restore(*x);
    if (const auto* x = h.get_if<hooks::teardown>(); x && x->orderly) return meet("teardown");
    if (calls_collectives(h)) return call_collective(h);
    return {};
  }

  value result() override {
    value_list all;
    for (const auto w : state_.weights) all.items.emplace_back(static_cast<std::int64_t>(w));
    return all;
  }

private:
  enum class stage : std::uint8_t { idle, reducing, spreading };

  bool calls_collectives(const hook& h) const {
    return options_.collectives && h.is<hooks::on_train_epoch_start, hooks::on_train_batch_start,
                                        hooks::on_train_batch_end, hooks::on_train_epoch_end>();
  }
  bool answers(const hook& h) const { return is_answered(h) || calls_collectives(h); }

  data_layout layout() const {
    return {options_.samples, context_.world, context_.options.batch_size};
  }
  data_layout layout(std::int64_t epoch) const {
    return epoch == resumed_.epoch ? layout().resumed(resumed_.batch, resumed_.cursor) : layout();
  }

  hook_outcome lengths(troupe::stage s) const {
    hook_outcome out;
    auto data = layout();
    if (s != troupe::stage::train) data.size = 0;
    out.loaders.push_back({s, 0, data.batches(), data.size, data.ranks * data.batch_size});
    return out;
  }

  // Returns false when the lane has to call again. Throws errors.
  static bool done(const work_ptr& what) {
    if (what->poll().status == work_status::pending) return false;
    what->wait();
    return true;
  }
  static hook_outcome waits() {
    hook_outcome out;
    out.verdict = run_verdict::waits;
    return out;
  }

  hook_outcome meet(const char* label) {
    if (!pending_) pending_ = world_->barrier(label);
    if (!done(pending_)) return waits();
    pending_ = nullptr;
    return {};
  }
  hook_outcome meet(const std::string& label) { return meet(label.c_str()); }

  // What a user's hooks may call: a barrier, a gather, a vote and a sum.
  hook_outcome call_collective(const hook& h) {
    if (h.is<hooks::on_train_epoch_start>()) return meet("epoch");
    const auto ranks = context_.world;
    if (h.is<hooks::on_train_batch_end>()) {
      expect(world_->decide(context_.rank == 0, decision::any), "a vote");
      return {};
    }
    if (!pending_) {
      sent_.assign(1, context_.rank + 1);
      received_values_.assign(static_cast<std::size_t>(ranks), 0);
      const buffer mine{sent_.data(), 1, dtype::i64},
          all{received_values_.data(), received_values_.size(), dtype::i64};
      pending_ = h.is<hooks::on_train_batch_start>() ? world_->all_gather(mine, all)
                                                     : world_->all_reduce(mine, reduction::sum);
    }
    if (!done(pending_)) return waits();
    pending_ = nullptr;
    if (h.is<hooks::on_train_epoch_end>()) {
      expect(sent_.front() == std::int64_t{ranks} * (ranks + 1) / 2, "a sum");
      return {};
    }
    for (std::int32_t r = 0; r < ranks; ++r)
      expect(received_values_[static_cast<std::size_t>(r)] == r + 1, "a gather");
    return {};
  }
  static void expect(bool right, const char* what) {
    if (!right) throw internal_error(std::string{what} + " in a hook has another result");
  }

  hook_outcome broadcast_weights() {
    if (!pending_)
      pending_ = world_->broadcast({state_.weights.data(), state_.weights.size(), dtype::i64}, 0);
    if (!done(pending_)) return waits();
    pending_ = nullptr;
    return {};
  }

  void backward(const hooks::backward& h) {
    if (!order_ || order_epoch_ != h.at.epoch) {
      order_ = recipe_.order_of(context_.options.seed, h.at.epoch);
      order_epoch_ = h.at.epoch;
    }
    const auto mine = layout(h.at.epoch).of_rank(h.at.batch, context_.rank);
    add_piece(gradient_, state_.weights, *order_, mine,
              noise_key(context_.options.seed, h.at.epoch, h.at.batch, context_.rank));
    if (context_.rank == 0) statistic_ = add(statistic_, statistic_of(*order_, mine));
    if (state_.is_nan() || (options_.poisons && options_.poisons(context_, h.at))) nan_ = true;
    if (!h.synchronize()) return;
    limbs_.resize(2 * options_.width);
    for (std::size_t i = 0; i < options_.width; ++i) split(gradient_[i], &limbs_[2 * i]);
    if (std::exchange(nan_, false)) limbs_[1] += nan_limb;
    reducing_ = world_->all_reduce({limbs_.data(), limbs_.size(), dtype::i64}, reduction::sum);
  }

  // The closure runs once, even if the lane calls the hook several times.
  hook_outcome step(const hooks::optimizer_step& h, const closure& inner) {
    if (stage_ == stage::idle) {
      stage_ = stage::reducing;
      inner();
    }
    if (stage_ == stage::reducing && !done(reducing_)) return waits();
    const auto k = context_.options.accumulate_grad_batches;
    const auto consumed = layout(h.at.epoch).of_batches(h.at.batch / k * k, h.at.batch);
    if (stage_ == stage::reducing) {
      if (limbs_[1] < nan_limb) {
        for (std::size_t i = 0; i < options_.width; ++i) gradient_[i] = join(&limbs_[2 * i]);
        update(state_, gradient_, static_cast<std::uint64_t>(consumed.count), divisors_);
      } else {
        std::ranges::fill(state_.weights, modular_state::not_a_number);
        std::ranges::fill(state_.momentum, modular_state::not_a_number);
      }
      if (options_.buffers && context_.rank == 0)
        state_.statistic = next_statistic(state_.statistic, statistic_);
      statistic_ = 0;
      reducing_ = nullptr;
      stage_ = stage::spreading;
    }
    if (options_.buffers) {
      if (!reducing_) reducing_ = world_->broadcast({&state_.statistic, 1, dtype::i64}, 0);
      if (!done(reducing_)) return waits();
      reducing_ = nullptr;
    }
    stage_ = stage::idle;
    if (options_.stepped) report_step(h, consumed);
    if (context_.options.elastic.enabled()) keep_point();
    hook_outcome out;
    out.samples = consumed.count;
    if (options_.logs) {
      out.logged[logged_state] = logged_value(state_.digest());
      if (context_.rank == 0) out.queued.emplace_back(h.at.step + 1);
    }
    return out;
  }

  void report_step(const hooks::optimizer_step& h, piece consumed) const {
    options_.stepped({context_.job, context_.rank, generation_, h.at.step + 1, h.at.epoch, consumed,
                      state_.digest(), &state_});
  }

  std::string digest() const { return std::to_string(state_.digest()); }

  // The whole state is kept, so a rank can return from any place in a step.
  hook_outcome rewind() {
    if (!kept_) throw user_error(errc::job_failed, "the integer payload has kept no point");
    state_ = *kept_;
    std::ranges::fill(gradient_, 0);
    statistic_ = 0;
    nan_ = false;
    reducing_ = pending_ = nullptr;
    transfer_.reset();
    stage_ = stage::idle;
    hook_outcome out;
    out.state_digest = digest();
    return out;
  }

  hook_outcome restore(const hooks::restore_state& h) {
    const bool gives = std::ranges::find(h.donors, context_.rank) != h.donors.end();
    if (!transfer_) {
      std::optional<replica_state> mine;
      if (gives) mine = sent();
      transfer_ = std::make_unique<state_transfer>(world_, h.donors, std::move(mine), received_);
    }
    if (!transfer_->go_on(false)) return waits();
    if (!gives) load(transfer_->take(), h);
    transfer_.reset();
    keep_point();
    hook_outcome out;
    out.state_digest = digest();
    return out;
  }

  replica_state sent() const {
    auto all = snapshot_of(state_);
    replica_state out;
    out.digest = digest();
    out.tensors = std::move(all.model);
    out.tensors.push_back(std::move(all.optimizer.front()));
    return out;
  }

  void load(replica_state from, const hooks::restore_state& h) {
    snapshot all;
    all.optimizer.push_back(std::move(from.tensors.back()));
    from.tensors.pop_back();
    all.model = std::move(from.tensors);
    state_ = modular_state_of(all);
    if (digest() != from.digest)
      throw internal_error("the restored state of the integer payload is not the donor's");
    gradient_.assign(options_.width, 0);
    resumed_.epoch = h.at.epoch;
    resumed_.batch = h.at.batch;
    resumed_.cursor = h.cursor;
  }

  hook_outcome save(const hooks::save_checkpoint& h) const {
    hook_outcome out;
    if (context_.rank != 0) return out;
    auto state = std::make_shared<snapshot>(snapshot_of(state_));
    state->loop = h.loop;
    state->ranks = context_.world;
    state->generation = generation_;
    out.snapshot = std::move(state);
    return out;
  }

  hook_outcome load(const hooks::load_checkpoint& h) {
    if (!options_.load)
      throw internal_error("a job with the integer payload needs `load` to resume");
    const auto from = options_.load(h.path);
    state_ = modular_state_of(from);
    resumed_ = from.loop;
    hook_outcome out;
    if (h.what == hooks::load_checkpoint::part::everything) out.restored = from.loop;
    return out;
  }

  const learner_context& context_;  // kept alive by the lane
  const modular_recipe& recipe_;    // kept alive by the lane
  const modular_options& options_;
  std::shared_ptr<communicator> world_;
  std::uint64_t generation_ = 0;
  modular_state state_;
  std::vector<std::uint64_t> gradient_;
  std::vector<std::int64_t> limbs_;
  std::uint64_t statistic_ = 0;
  bool nan_ = false;    // this rank's gradient is NaN
  loop_state resumed_;  // where this run began
  inverses divisors_;
  modular_recipe::order order_;
  std::int64_t order_epoch_ = -1;
  work_ptr reducing_;
  work_ptr pending_;
  std::vector<std::int64_t> sent_, received_values_;  // by collectives in hooks
  std::optional<modular_state> kept_;                 // of the last point
  std::unique_ptr<state_transfer> transfer_;
  std::shared_ptr<partial_state> received_ = std::make_shared<partial_state>();
  stage stage_ = stage::idle;
};

std::shared_ptr<const std::vector<std::byte>> bytes_of(const std::uint64_t* from,
                                                       std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  return std::make_shared<const std::vector<std::byte>>(bytes, bytes + count * sizeof *from);
}

std::vector<std::uint64_t> numbers_of(const tensor_blob& from) {
  std::vector<std::uint64_t> numbers(from.bytes->size() / sizeof(std::uint64_t));
  std::memcpy(numbers.data(), from.bytes->data(), numbers.size() * sizeof(std::uint64_t));
  return numbers;
}

}  // namespace

std::unique_ptr<learner> modular_recipe::make(const learner_context& context) const {
  return std::make_unique<modular_learner>(context, *this);
}

modular_recipe::order modular_recipe::order_of(std::uint64_t seed, std::int64_t epoch) const {
  const std::lock_guard hold{guard_};
  for (const auto& [key, known] : orders_)
    if (key == std::pair{seed, epoch}) return known;
  if (orders_.size() >= 8) orders_.erase(orders_.begin());
  auto fresh =
      std::make_shared<const std::vector<std::int64_t>>(permutation(seed, epoch, options_.samples));
  return orders_.emplace_back(std::pair{seed, epoch}, std::move(fresh)).second;
}

modular_state modular_state_of(const snapshot& what) {
  if (what.model.size() != 2 || what.optimizer.size() != 1)
    throw user_error(errc::checkpoint, "the snapshot is not one of the integer payload");
  const auto statistic = numbers_of(what.model[1]);
  return {numbers_of(what.model[0]), numbers_of(what.optimizer[0]),
          statistic.empty() ? 0 : statistic.front()};
}

snapshot snapshot_of(const modular_state& what) {
  const auto width = static_cast<std::int64_t>(what.weights.size());
  snapshot out;
  out.model.push_back(
      {"weights", "I64", {width}, bytes_of(what.weights.data(), what.weights.size())});
  out.model.push_back({"statistic", "I64", {1}, bytes_of(&what.statistic, 1)});
  out.optimizer.push_back(
      {"0.weights.momentum", "I64", {width}, bytes_of(what.momentum.data(), what.momentum.size())});
  return out;
}

}  // namespace troupe
