#include "apps/bench/control.hpp"

#include "actors/fit_machine.hpp"
#include "backends/learner/run_handler.hpp"
#include "troupe/session.hpp"

#include <fmt/format.h>
#include <boost/asio/system_executor.hpp>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <utility>

namespace troupe::program {

namespace {

double processor_now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// What the ranks of a run report to the bench. The last rank throws in step `throw_at`.
struct notes {
  std::int64_t warm = 0;
  std::int64_t last = 0;
  std::int64_t throw_at = undefined;
  std::function<std::int64_t()> allocations;
  std::atomic<double> thrown{0};
  double wall[2] = {};  // rank 0's, at `warm` and `last`
  double processor[2] = {};
  std::int64_t allocated[2] = {};
};

/// Endless data, one optimizer; the hooks do only what the protocol needs.
class idle_learner final : public learner {
public:
  idle_learner(const learner_context& about, std::shared_ptr<notes> into)
      : about_(about), notes_(std::move(into)) {}

  void bind(std::shared_ptr<communicator> world, generation_id) override {
    world_ = std::move(world);
  }

  hook_outcome on(const hook& h, const closure& inner) override {
    hook_outcome outcome;
    if (const auto* step = h.get_if<hooks::optimizer_step>()) {
      inner();
      outcome.samples = 1;
      look(step->at.step);
    } else if (const auto* loader = h.get_if<hooks::process_dataloader>()) {
      constexpr std::int64_t without_end = std::int64_t{1} << 40;
      outcome.loaders.push_back({loader->at.stage, 0, without_end, without_end});
    } else if (h.is<hooks::setup_optimizers>()) {
      outcome.optimizers = optimizer_facts{};
    } else if (const auto* down = h.get_if<hooks::teardown>()) {
      if (down->orderly && world_) world_->barrier("teardown")->wait();
    }
    return outcome;
  }

private:
  void look(std::int64_t step) {
    if (step == notes_->throw_at && about_.rank == about_.world - 1) {
      notes_->thrown = bench_now();
      throw injected_fault("the bench's own");
    }
    if (about_.rank != 0 || (step != notes_->warm && step != notes_->last)) return;
    const auto i = step == notes_->last ? 1 : 0;
    if (notes_->allocations) notes_->allocated[i] = notes_->allocations();
    notes_->processor[i] = processor_now();
    notes_->wall[i] = bench_now();
  }

  learner_context about_;
  std::shared_ptr<notes> notes_;
  std::shared_ptr<communicator> world_;
};

class idle_recipe final : public learner_recipe {
public:
  explicit idle_recipe(std::shared_ptr<notes> into) : notes_(std::move(into)) {}
  std::unique_ptr<learner> make(const learner_context& about) const override {
    return std::make_unique<idle_learner>(about, notes_);
  }

private:
  std::shared_ptr<notes> notes_;
};

trainer_options idle_options(std::int32_t ranks, std::int64_t steps) {
  trainer_options options;
  options.ranks = ranks;
  options.max_steps = steps;
  options.max_epochs = -1;
  options.limit_val_batches = std::int64_t{0};
  options.num_sanity_val_steps = 0;
  options.checkpoint.enabled = false;
  return options;
}

job idle_job(std::int32_t ranks, std::int64_t steps, std::shared_ptr<notes> into) {
  job what;
  what.options = idle_options(ranks, steps);
  what.recipe = std::make_shared<idle_recipe>(std::move(into));
  return what;
}

constexpr double micro = 1e6;

void whole_steps(const control_question& what, session& front, control_figures& figures) {
  std::vector<double> wall, processor, allocated;
  for (int round = 0; round < what.rounds; ++round) {
    auto seen = std::make_shared<notes>();
    seen->warm = what.steps / 10;
    seen->last = seen->warm + what.steps;
    seen->allocations = what.allocations;
    front.run(idle_job(what.ranks, seen->last + 1, seen)).rethrow();
    const auto steps = static_cast<double>(what.steps);
    wall.push_back(micro * (seen->wall[1] - seen->wall[0]) / steps);
    processor.push_back(micro * (seen->processor[1] - seen->processor[0]) / steps / what.ranks);
    allocated.push_back(static_cast<double>(seen->allocated[1] - seen->allocated[0]) / steps /
                        what.ranks);
  }
  figures.step = summary(wall);
  figures.processor = summary(processor);
  if (what.allocations) figures.allocations = summary(allocated).median;
}

// Measures the processor time of one rank's fit machine and of its lane's loop over the hooks, each
// alone and without threads.
void parts(const control_question& what, control_figures& figures) {
  const auto seen = std::make_shared<notes>();
  seen->warm = seen->last = undefined;
  learner_context about;
  about.options = idle_options(1, what.steps + 1);
  idle_learner learner(about, seen);
  std::vector<double> machine_times, hook_times;
  for (int round = 0; round < what.rounds; ++round) {
    run_handler handler(about, {});
    fit_machine machine(make_plan(about.options, stage::train));
    double in_machine = 0, in_hooks = 0;
    auto mark = processor_now();
    auto todo = machine.on(fit_events::begin{});
    while (!machine.finished()) {
      hook_run run;
      for (auto& a : todo)
        if (auto* out = std::get_if<fit_actions::run>(&a)) run.hooks = std::move(out->hooks);
      if (const auto now = processor_now(); true) in_machine += now - std::exchange(mark, now);
      figures.hook_count = std::max<std::int64_t>(figures.hook_count, std::ssize(run.hooks));
      auto answer = handler.handle(learner, run);
      if (const auto now = processor_now(); true) in_hooks += now - std::exchange(mark, now);
      todo = machine.on(fit_events::ran{answer.handled, std::move(answer.outcome)});
    }
    machine_times.push_back(micro * in_machine / static_cast<double>(what.steps));
    hook_times.push_back(micro * in_hooks / static_cast<double>(what.steps));
  }
  figures.machine = summary(machine_times);
  figures.hooks = summary(hook_times);
}

void throws(const control_question& what, session& front, control_figures& figures) {
  std::vector<double> took;
  for (int i = 0; i < what.throws; ++i) {
    auto seen = std::make_shared<notes>();
    seen->warm = seen->last = undefined;
    seen->throw_at = 50;
    const auto outcome = front.run(idle_job(what.ranks, 1'000'000, seen));
    took.push_back(micro * (bench_now() - seen->thrown));
    if (outcome.ok() || outcome.failed_with->record.what != "the bench's own")
      throw internal_error("bench control: the job did not fail with the bench's exception");
  }
  figures.throw_to_caller = summary(took);
  if (!took.empty()) figures.throw_to_caller_worst = *std::ranges::max_element(took);
}

}  // namespace

namespace {

void check(const control_question& what) {
  if (what.ranks < 1 || what.steps < 10 || what.rounds < 1)
    throw user_error(errc::bad_usage,
                     fmt::format("{} ranks, {} steps, {} rounds: at least 1, 10 and 1 are needed",
                                 what.ranks, what.steps, what.rounds));
}

}  // namespace

control_figures bench_hooks(const control_question& what) {
  check(what);
  control_figures figures;
  parts(what, figures);
  return figures;
}

control_figures bench_control(const control_question& what) {
  check(what);
  session front{boost::asio::system_executor{}};
  control_figures figures;
  parts(what, figures);
  whole_steps(what, front, figures);
  figures.messages =
      std::max(0.0, figures.processor.median - figures.machine.median - figures.hooks.median);
  throws(what, front, figures);
  return figures;
}

}  // namespace troupe::program
