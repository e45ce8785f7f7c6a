#include "apps/testing/field_run.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <stdexcept>

#include "actors/time_knob.hpp"
#include "apps/testing/field_oracles.hpp"
#include "backends/simulated/disk_checkpoints.hpp"
#include "backends/simulated/simulated_storage.hpp"

namespace troupe::testing {

namespace {

constexpr const char* folder = "run";

// Hooks that a throw may strike, in the order of a run.
const std::vector<std::string_view>& throwing_hooks() {
  static const std::vector<std::string_view> all{"training_step",
                                                 "setup",
                                                 "on_train_batch_start",
                                                 "backward",
                                                 "optimizer_step",
                                                 "on_train_batch_end",
                                                 "on_train_start",
                                                 "on_train_epoch_start",
                                                 "on_train_epoch_end",
                                                 "save_checkpoint",
                                                 "load_checkpoint",
                                                 "on_fit_start",
                                                 "on_fit_end",
                                                 "post_dispatch",
                                                 "teardown",
                                                 "on_exception",
                                                 "barrier",
                                                 "model_to_device",
                                                 "optimizer_zero_grad",
                                                 "configure_model"};
  return all;
}

struct armed_throw {
  std::int32_t rank = 0;
  std::string_view hook;
  bool memory = false;
  std::string text;
};

class field_run {
public:
  field_run(const field_job& what, const run_plan& plan, choices from, field_reference& reference)
      : job_(what),
        plan_(plan),
        world_(std::move(from), plan.world),
        stage_(world_, ground_of(plan)),
        disk_(std::make_shared<simulated_storage>(
            world_.later_of(0), [this](const storage_op&) { return storage_cost(); },
            [this](const storage_op&) { return storage_fault_now(); })),
        io_(disk_checkpoints([this]() -> const simulated_disk& { return disk_->disk(); })),
        trained_(plan.payload ? plan.payload->of(what) : nullptr),
        oracles_(what, reference, trained_.get(), report_, world_),
        recipe_(trained_ ? foreign_recipe() : field_payload()) {
    report_.seed = world_.draws().seed();
    stage_.use({disk_, io_});
    stage_.listen([this](const seen::lifecycle& what) {
      if (what.event == "checkpoint_written") written(what.step, what.details.at("path"));
    });
    for (const auto& make : plan.guests) {
      guests_.push_back(make());
      recipe_ = guests_.back()->recipe(recipe_);
    }
    exist_ = draw_swarm(world_.draws(), plan.faults);
    if (exist_.has(fault::rare_paths)) world_.marks().draw_rare();
    const auto hooks_a_step = std::chrono::milliseconds{1};
    span_ = (plan.around.compute * 3 / 2 + hooks_a_step) * what.steps + what.detect;
    events_ = static_cast<std::uint64_t>((what.steps * 10 + 40) * what.ranks);
  }

  run_report go();

private:
  enum class ending { finished, again, stuck };
  static surroundings ground_of(const run_plan& plan) {
    auto around = plan.around;
    around.lane_threads = plan.payload && plan.payload->waits();
    return around;
  }
  recipe_ptr field_payload();
  recipe_ptr foreign_recipe();
  ending attempt(std::uint32_t number);
  ending judge();
  std::string newest_good();
  void run_attempt(nanoseconds limit);
  void strike_due();
  void carry_out(const strike& s);
  void carry_out_on(const strike& s, rank_life& life);
  void heal_later(nanoseconds after, std::function<void()> how) {
    world_.at(0, after, std::move(how));
  }
  void stepped(const field_step& s);
  void written(std::int64_t step, const std::string& path);
  complain_fn complain() {
    ++report_.checks;
    return [this](violation v) { oracles_.violate(std::move(v)); };
  }
  void maybe_throw(const learner_context& context, const hook& h);
  bool poison(const learner_context& context);
  void program_leaves();
  void drain();
  void try_until_finished();
  void hear_marks();
  nanoseconds storage_cost();
  storage_fault storage_fault_now();
  // Of a rank, or of the supervisor (-1).
  template <class Text>
  void note_fault(std::int32_t rank, Text text) {
    const auto* life = rank < 0 ? nullptr : stage_.life_of(rank);
    world_.note(-1, static_cast<std::int32_t>(life ? life->place : stage_.home()),
                [&] { return "fault: " + text(); });
  }
  void note_step(const field_step& s) {
    for (const auto& life : stage_.lives())
      if (life.job == s.job && life.rank == s.rank)
        world_.note(static_cast<std::int32_t>(life.place), static_cast<std::int32_t>(life.place),
                    [&] { return "step " + std::to_string(s.step); });
  }
  void mark(const std::string& what) { ++report_.marks[what]; }
  nanoseconds length(std::uint64_t amount) const {
    return job_.detect * static_cast<std::int64_t>(amount * amount + 1) / 24;
  }

  const field_job& job_;
  const run_plan& plan_;
  run_report report_;
  world world_;
  rehearsal stage_;
  std::shared_ptr<simulated_storage> disk_;
  std::shared_ptr<const checkpoint_io> io_;
  std::shared_ptr<payload_job> trained_;  // null: the field payload
  field_oracles oracles_;
  recipe_ptr recipe_;
  std::vector<std::unique_ptr<guest>> guests_;
  fault_set exist_;
  nanoseconds span_{0};
  std::uint64_t events_ = 0;
  attempt_faults now_;
  attempt_facts facts_;
  std::vector<armed_throw> armed_;
  std::vector<std::int32_t> poisoned_;  // ranks whose next gradient is NaN
  std::vector<strike> left_;            // not struck yet
  std::uint64_t began_events_ = 0;
  std::int64_t began_ = 0;
  std::uint64_t rare_faults_before_ = 0;  // this attempt
  bool storage_lied_ = false;             // what it said was durable may not be
  std::string durable_;                   // the last checkpoint that was announced as durable
  std::int64_t durable_step_ = 0;
};

recipe_ptr field_run::field_payload() {
  field_options payload;
  payload.samples = job_.samples;
  payload.width = job_.width;
  payload.buffers = job_.buffers;
  payload.load = [this](const std::string& path) { return io_->read(path); };
  payload.stepped = [this](const field_step& s) { stepped(s); };
  payload.at_hook = [this](const learner_context& c, const hook& h) {
    if (!armed_.empty()) maybe_throw(c, h);
  };
  payload.poisons = [this](const learner_context& c, const position&) {
    return !poisoned_.empty() && poison(c);
  };
  return std::make_shared<field_recipe>(std::move(payload));
}

recipe_ptr field_run::foreign_recipe() {
  payload_ground ground;
  ground.checkpoints = io_;
  ground.stepped = [this](const learner_context& who, std::int64_t steps, std::uint64_t digest) {
    field_step s;
    s.job = who.job;
    s.rank = who.rank;
    s.step = steps;
    s.digest = digest;
    stepped(s);
  };
  ground.at_hook = [this](const learner_context& c, const hook& h) {
    if (!armed_.empty()) maybe_throw(c, h);
  };
  return trained_->recipe(std::move(ground));
}

nanoseconds field_run::storage_cost() {
  return std::chrono::microseconds{200} + world_.lateness(0, std::chrono::microseconds{500});
}

storage_fault field_run::storage_fault_now() {
  const auto f = draw_storage_fault(world_.draws(), now_);
  if (f.what == storage_fault::kind::none) return f;
  const auto which = static_cast<fault>(static_cast<std::size_t>(fault::storage_error) +
                                        static_cast<std::size_t>(f.what) - 1);
  ++report_.faults[static_cast<std::size_t>(which)];
  facts_.storage.add(which);
  if (which == fault::storage_lost_sync || which == fault::storage_torn ||
      which == fault::storage_bit_flip)
    storage_lied_ = true;
  world_.note(-1, static_cast<std::int32_t>(stage_.home()),
              [&] { return "fault: " + std::string{to_string(which)}; });
  return f;
}

void field_run::stepped(const field_step& s) {
  world_.state_is(s.digest + static_cast<std::uint64_t>(s.rank));
  if (world_.recording()) note_step(s);
  if (s.job != stage_.running()) mark("a rank of an ended run stepped");
  for (const auto& g : guests_) g->stepped(s, complain());
  if (!s.state || !s.state->is_nan()) return oracles_.stepped(s);
  oracles_.stepped_to_nan(s);
  // As a user would who looks at what was trained.
  constexpr const char* text = "the weights are not finite";
  if (s.job == stage_.running())
    facts_.thrown.push_back({s.rank, "optimizer_step", s.step, "std::domain_error", text});
  throw std::domain_error{text};
}

void field_run::written(std::int64_t step, const std::string& path) {
  durable_ = path;
  durable_step_ = step;
  try {
    const auto there = io_->read(path);
    oracles_.written(step, path, &there, storage_lied_);
  } catch (const user_error&) {
    oracles_.written(step, path, nullptr, storage_lied_);
  }
}

bool field_run::poison(const learner_context& context) {
  if (context.job != stage_.running() || std::erase(poisoned_, context.rank) == 0) return false;
  ++report_.faults[static_cast<std::size_t>(fault::not_a_number)];
  facts_.struck.push_back(fault::not_a_number);
  world_.note(0, -1, [&] { return "NaN in a gradient of rank " + std::to_string(context.rank); });
  return true;
}

void field_run::maybe_throw(const learner_context& context, const hook& h) {
  if (context.job != stage_.running()) return;
  const auto found = std::ranges::find_if(
      armed_, [&](const armed_throw& a) { return a.rank == context.rank && a.hook == name(h); });
  if (found == armed_.end()) return;
  const auto what = *found;
  armed_.erase(found);
  const auto kind = what.memory ? fault::out_of_memory : fault::throw_in_hook;
  ++report_.faults[static_cast<std::size_t>(kind)];
  facts_.struck.push_back(kind);
  facts_.thrown.push_back({what.rank, std::string{what.hook}, where(h).step,
                           what.memory ? "std::bad_alloc" : "std::domain_error",
                           what.memory ? "std::bad_alloc" : what.text});
  note_fault(what.rank,
             [&] { return std::string{to_string(kind)} + " in " + std::string{what.hook}; });
  if (what.memory) throw std::bad_alloc{};
  throw std::domain_error{what.text};
}

// --- striking ------------------------------------------------------------------------------------

void field_run::strike_due() {
  const auto events = world_.events() - began_events_;
  const auto time = static_cast<std::uint64_t>(world_.time().count() - began_);
  for (std::size_t i = 0; i < left_.size();) {
    const auto& s = left_[i];
    if (s.moment > (s.by_event ? events : time)) {
      ++i;
      continue;
    }
    const auto what = s;
    left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(i));
    carry_out(what);
  }
}

void field_run::carry_out(const strike& s) {
  const auto home = stage_.home();
  const auto struck = [&] {
    ++report_.faults[static_cast<std::size_t>(s.what)];
    facts_.struck.push_back(s.what);
    note_fault(s.what == fault::crash_supervisor || s.what == fault::power_loss ||
                       s.what == fault::stop || s.what == fault::abort
                   ? -1
                   : s.rank,
               [&] { return std::string{to_string(s.what)}; });
  };
  switch (s.what) {
    case fault::crash_supervisor:
    case fault::power_loss:
      struck();
      if (s.what == fault::power_loss)
        disk_->crash(s.amount, [&](std::size_t i) { return (s.where >> (i % 32) & 1) != 0; });
      else
        disk_->kill(s.amount);
      return stage_.crash_program();
    case fault::stop:
      struck();
      return caf::anon_send(stage_.supervisor(), request_stop{stop_reason::caller});
    case fault::abort:
      struck();
      return caf::anon_send(stage_.supervisor(), request_abort{"the operator aborted"});
    case fault::not_a_number: poisoned_.push_back(s.rank); return;
    case fault::throw_in_hook:
    case fault::out_of_memory: {
      const auto& hooks = throwing_hooks();
      armed_.push_back({s.rank, hooks[s.where % hooks.size()], s.what == fault::out_of_memory,
                        "injected " + std::to_string(s.where)});
      return;
    }
    default: break;
  }
  auto* life = stage_.life_of(s.rank);
  if (!life || !world_.alive(life->place) || !world_.alive(home)) return;
  struck();
  facts_.ranks.push_back(s.rank);
  carry_out_on(s, *life);
}

void field_run::carry_out_on(const strike& s, rank_life& life) {
  const auto lasts = length(s.amount);
  const auto rank = s.rank;
  switch (s.what) {
    case fault::crash_rank: stage_.crash(rank, false); break;
    case fault::crash_host: {
      const auto host = world_.host_of(life.place);
      for (std::int32_t r = 0; r < job_.ranks; ++r)
        if (auto* other = stage_.life_of(r); other && world_.host_of(other->place) == host) {
          facts_.ranks.push_back(r);
          stage_.crash(r, true);
        }
      break;
    }
    case fault::pause: world_.pause(life.place, world_.time() + lasts); break;
    case fault::slow:
      life.slow_per_cent =
          s.amount >= 12 ? 1'000'000 : static_cast<std::int64_t>(200 + 400 * s.amount);
      break;
    case fault::cut:
    case fault::one_way_cut:
      if (!life.link) break;
      life.link->cut(s.what == fault::cut || s.where % 2 == 0,
                     s.what == fault::cut || s.where % 2 == 1);
      heal_later(lasts, [link = life.link] { link->cut(false, false); });
      break;
    case fault::data_cut:
      stage_.fabric().cut(rank, true);
      heal_later(lasts * 2, [this, rank] { stage_.fabric().cut(rank, false); });
      break;
    case fault::skew:
      world_.skew(life.place,
                  (s.where % 2 == 0 ? 20 : -20) * static_cast<std::int32_t>(s.amount + 1));
      break;
    case fault::late_timers:
      world_.late_timers(life.place,
                         std::chrono::milliseconds{20} * static_cast<std::int64_t>(s.amount + 1));
      break;
    default: break;
  }
}

// --- attempts ------------------------------------------------------------------------------------

std::string field_run::newest_good() {
  try {
    const auto found = io_->latest(folder);
    if (!found.refused.empty()) mark("a damaged checkpoint was passed over");
    return found.path;
  } catch (const user_error&) {
    return {};
  }
}

void field_run::run_attempt(nanoseconds limit) {
  began_ = world_.time().count();
  began_events_ = world_.events();
  while (!stage_.ended() && world_.alive(stage_.home())) {
    if (!left_.empty()) strike_due();
    if (!world_.step() || world_.time().count() - began_ > limit.count() ||
        world_.events() - began_events_ > plan_.events_limit)
      return;
  }
}

field_run::ending field_run::attempt(std::uint32_t number) {
  const bool healed = number + 2 >= plan_.attempts;
  for (std::int32_t r = 0; r < job_.ranks; ++r) stage_.fabric().cut(r, false);
  now_ = healed ? attempt_faults{}
                : draw_faults(world_.draws(), plan_.faults, exist_, number, job_.ranks, span_,
                              events_);
  facts_ = {};
  world_.marks().let_rare(now_.rare_paths);
  rare_faults_before_ = world_.marks().rare_faults_taken();
  facts_.lossy = now_.path.lose_per_million > 0 || now_.path.reorder_per_million > 0;
  left_ = now_.strikes;
  armed_.clear();
  poisoned_.clear();
  const auto resume = newest_good();
  std::int64_t from = 0;
  if (!resume.empty()) {
    const auto state = io_->read(resume);
    from = state.loop.steps;
    oracles_.resumed(state);
    mark("resumed from a checkpoint");
  } else if (number > 0) {
    mark("began again from nothing");
  }
  if (from < durable_step_ && !storage_lied_)
    oracles_.violate({"what is durable stays", durable_ + " is gone", from});
  job what;
  what.options = job_.options();
  what.recipe = recipe_;
  what.run_folder = folder;
  what.resume = resume;
  stage_.begin(std::move(what), now_.path);
  oracles_.attempt_begins(stage_.running(), from);
  for (const auto& g : guests_) g->begins(world_, stage_);
  run_attempt(span_ * 20 + job_.hook_limit * 10 + std::chrono::seconds{60});
  ++report_.attempts;
  return judge();
}

field_run::ending field_run::judge() {
  facts_.rare = world_.marks().rare_faults_taken() > rare_faults_before_;
  if (!stage_.ended() && world_.alive(stage_.home())) {
    oracles_.violate(
        {"an attempt ends in time",
         world_.idle() ? "nothing is left to do, and the job has not ended" : "it goes on and on"});
    return ending::stuck;
  }
  if (!stage_.ended() || !world_.alive(stage_.home())) {
    mark("the program was killed");
    program_leaves();
    return ending::again;
  }
  const auto outcome = *stage_.outcome();
  const auto limits = derive(job_.options().time);
  facts_.took = world_.time() - nanoseconds{began_};
  facts_.expected = span_ * job_.accumulate * 2 + limits.detect * 2 + limits.settle + limits.close +
                    limits.teardown + std::chrono::seconds{1};
  oracles_.ended(outcome, facts_);
  for (const auto& g : guests_) g->ended(outcome, complain());
  if (!outcome.survivors.empty()) mark("an ending with survivors");
  if (outcome.status == job_outcome::ending::stopped) mark("stopped at a step");
  program_leaves();
  if (outcome.status != job_outcome::ending::finished) return ending::again;
  report_.finished = true;
  oracles_.finished(outcome);
  report_.weights_digest = oracles_.final_digest();
  return ending::finished;
}

// The program writes its result and leaves: what it still had in hand goes with it.
void field_run::program_leaves() {
  now_ = {};
  world_.marks().let_rare(false);
  disk_->kill(0);
  stage_.crash_program();
}

// What code under test said by itself, and what paths did.
void field_run::hear_marks() {
  const auto& book = world_.marks();
  report_.product = book.counts();
  const auto count = [&](fault f) -> auto& { return report_.faults[static_cast<std::size_t>(f)]; };
  count(fault::rare_paths) = book.rare_taken();
  count(fault::lose) = stage_.path().lost;
  count(fault::repeat) = stage_.path().repeated;
  count(fault::reorder) = stage_.path().reordered;
  if (const auto broken = book.first_broken())
    oracles_.violate({"invariants of the product hold",
                      std::string{product_marks[static_cast<std::size_t>(*broken)].text}});
}

void field_run::drain() {
  now_ = {};
  armed_.clear();
  poisoned_.clear();
  for (std::int32_t r = 0; r < job_.ranks; ++r) stage_.fabric().cut(r, false);
  std::uint64_t steps = 0;
  while (steps < plan_.events_limit && world_.step()) ++steps;
  oracles_.drained(world_.actors(), stage_.fabric().handles());
}

void field_run::try_until_finished() {
  auto last = ending::again;
  for (std::uint32_t n = 0; n < plan_.attempts && last == ending::again; ++n) last = attempt(n);
  if (last == ending::again)
    oracles_.violate({"a healed job finishes", "not in " + std::to_string(plan_.attempts) +
                                                   " attempts, the last two "
                                                   "without a fault"});
  if (last != ending::stuck) drain();
}

run_report field_run::go() {
  try {
    try_until_finished();
  } catch (const reached_outside& e) {
    oracles_.violate({"only ports reach outside", e.what()});
  }
  hear_marks();
  const auto& path = stage_.path();
  report_.faults[static_cast<std::size_t>(fault::lose)] += path.lost;
  report_.faults[static_cast<std::size_t>(fault::repeat)] += path.repeated;
  report_.faults[static_cast<std::size_t>(fault::reorder)] += path.reordered;
  report_.events = world_.events();
  report_.deliveries = world_.deliveries();
  report_.virtual_time = world_.time();
  report_.hashes = world_.hashes();
  if (plan_.world.record) {
    report_.taken = world_.draws().taken();
    report_.notes = world_.notes();
    report_.trail = world_.trail();
    report_.places = world_.names();
  }
  return std::move(report_);
}

}  // namespace

run_report run_field(const field_job& what, const run_plan& plan, choices from,
                     field_reference& reference) {
  return field_run{what, plan, std::move(from), reference}.go();
}

}  // namespace troupe::testing
