#include "backends/simulated/null_learner.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "backends/simulated/answered_hooks.hpp"
#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

class null_learner final : public learner {
public:
  null_learner(const learner_context& context, const null_options& options)
      : context_(context),
        options_(options),
        layout_{options.samples, context.world, context.options.batch_size} {}

  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    world_ = std::move(world);
    generation_ = generation.value();
    reducing_ = pending_ = nullptr;
    stepping_ = false;
  }

  void keep_point() override { kept_ = steps_; }

  void pass(std::span<const hook> hooks, std::uint32_t& handled) override {
    const bool applied = options_.at_hook && (!options_.faults_due || options_.faults_due());
    for (; handled < hooks.size() && !is_answered(hooks[handled]); ++handled) {
      const auto& h = hooks[handled];
      if (applied) options_.at_hook(context_, h);
      if (const auto* x = h.get_if<hooks::backward>(); x && x->synchronize()) reduce();
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
    if (h.is<hooks::model_to_device>()) return share_weights(0);
    if (h.is<hooks::rewind>()) return rewind();
    if (const auto* x = h.get_if<hooks::restore_state>()) return restore(*x);
    if (const auto* x = h.get_if<hooks::teardown>(); x && x->orderly) return meet("teardown");
    return {};
  }

private:
  // A buffer of floats without memory.
  static buffer weightless(std::uint64_t count) {
    return {nullptr, static_cast<std::size_t>(count), dtype::f32};
  }

  hook_outcome lengths(stage s) const {
    hook_outcome out;
    auto data = layout_;
    if (s != stage::train) data.size = 0;
    out.loaders.push_back({s, 0, data.batches(), data.size, data.ranks * data.batch_size});
    return out;
  }

  // The position in the data is the whole state of a null learner.
  static std::uint64_t whereabouts(const position& at) {
    return mix(mix(static_cast<std::uint64_t>(at.epoch)) + static_cast<std::uint64_t>(at.batch));
  }

  // Operations of one group end in order, so waiting for the last one is enough.
  void reduce() {
    each_bucket(options_, [this](std::uint64_t count) {
      reducing_ = world_->all_reduce(weightless(count), reduction::sum);
    });
  }

  // Returns false when the lane has to call again. Throws errors.
  static bool done(work_ptr& what) {
    if (!what) return true;
    if (what->poll().status == work_status::pending) return false;
    std::exchange(what, nullptr)->wait();
    return true;
  }
  static hook_outcome waits() {
    hook_outcome out;
    out.verdict = run_verdict::waits;
    return out;
  }

  hook_outcome step(const hooks::optimizer_step& h, const closure& inner) {
    if (!std::exchange(stepping_, true)) inner();
    if (!done(reducing_)) return waits();
    stepping_ = false;
    const auto k = context_.options.accumulate_grad_batches;
    hook_outcome out;
    const auto layout =
        h.at.epoch == resumed_.epoch ? layout_.resumed(resumed_.batch, resumed_.cursor) : layout_;
    out.samples = layout.samples(h.at.batch / k * k, h.at.batch);
    if (options_.stepped) options_.stepped(context_, h.at.step + 1, whereabouts(h.at));
    steps_ = h.at.step + 1;
    if (context_.options.elastic.enabled()) keep_point();
    return out;
  }

  hook_outcome meet(const std::string& label) {
    if (!pending_) pending_ = world_->barrier(label);
    return done(pending_) ? hook_outcome{} : waits();
  }

  hook_outcome share_weights(std::int32_t root) {
    if (!pending_)
      pending_ = world_->broadcast(weightless(options_.gradient_bytes / sizeof(float)), root);
    return done(pending_) ? hook_outcome{} : waits();
  }

  hook_outcome rewind() {
    if (!kept_) throw user_error(errc::job_failed, "the null payload has kept no point");
    steps_ = *kept_;
    reducing_ = pending_ = nullptr;
    stepping_ = false;
    return at_point();
  }

  // The state of a null learner is known to all ranks; its transfer costs the time of its size.
  hook_outcome restore(const hooks::restore_state& h) {
    auto out = share_weights(h.donors.front());
    if (out.verdict == run_verdict::waits) return out;
    if (std::ranges::find(h.donors, context_.rank) == h.donors.end()) {
      resumed_.epoch = h.at.epoch;
      resumed_.batch = h.at.batch;
      resumed_.cursor = h.cursor;
    }
    steps_ = h.at.step;
    keep_point();
    return at_point();
  }

  hook_outcome at_point() const {
    hook_outcome out;
    out.state_digest = std::to_string(steps_);
    return out;
  }

  hook_outcome save(const hooks::save_checkpoint& h) const {
    hook_outcome out;
    if (context_.rank != 0) return out;
    auto state = std::make_shared<snapshot>();
    state->loop = h.loop;
    state->ranks = context_.world;
    state->generation = generation_;
    out.snapshot = std::move(state);
    return out;
  }

  hook_outcome load(const hooks::load_checkpoint& h) {
    if (!options_.load) throw internal_error("a job with the null payload needs `load` to resume");
    hook_outcome out;
    const auto from = options_.load(h.path);
    resumed_ = from.loop;
    steps_ = from.loop.steps;
    if (h.what == hooks::load_checkpoint::part::everything) out.restored = from.loop;
    return out;
  }

  const learner_context& context_;  // kept alive by the lane
  const null_options& options_;     // kept alive by the recipe
  const data_layout layout_;
  std::shared_ptr<communicator> world_;
  std::uint64_t generation_ = 0;
  work_ptr reducing_;
  work_ptr pending_;
  loop_state resumed_;  // where this run began
  std::int64_t steps_ = 0;
  std::optional<std::int64_t> kept_;  // the steps of the last point
  bool stepping_ = false;
};

}  // namespace

std::unique_ptr<learner> null_recipe::make(const learner_context& context) const {
  return std::make_unique<null_learner>(context, options_);
}

}  // namespace troupe
