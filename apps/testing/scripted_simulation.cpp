#include "apps/testing/scripted_simulation.hpp"

#include <caf/actor_cast.hpp>

#include "apps/testing/chart.hpp"
#include "backends/simulated/disk_checkpoints.hpp"
#include "troupe/failure.hpp"

namespace troupe::testing {

namespace {

constexpr const char* folder = "run";

}  // namespace

const link_message& held_message::content() const {
  if (!what_) throw internal_error("the held message was not caught yet");
  return *what_;
}

scripted_simulation::scripted_simulation(script_options how) : how_(std::move(how)) {
  simulation_options options;
  options.schedule = how_.schedule;
  options.record = how_.record;
  simulation_ = std::make_unique<simulation>(choices::of_seed(how_.seed), options);
  simulation_->marks().know(how_.marks);
  sim_job_ = std::make_unique<simulated_job>(*simulation_, how_.cluster);
  disk_ = std::make_shared<simulated_storage>(simulation_->later_of(0), [this](const storage_op&) {
    return std::chrono::microseconds{200} +
           simulation_->lateness(0, std::chrono::microseconds{500});
  });
  io_ = how_.checkpoints
            ? how_.checkpoints
            : disk_checkpoints([this]() -> const simulated_storage& { return *disk_; });
  sim_job_->use({disk_, io_});
  sim_job_->message_filter = [this](std::int32_t rank, bool to_supervisor, const link_message& what,
                                    const caf::strong_actor_ptr& to) {
    for (const auto& h : held_) {
      if (h->what_ || !h->wanted_(rank, to_supervisor, what)) continue;
      h->what_ = what;
      h->to_ = to;
      return true;
    }
    return false;
  };
}

scripted_simulation::~scripted_simulation() = default;

void scripted_simulation::kill_program() {
  if (!sim_job_->supervisor() || !simulation_->alive(sim_job_->supervisor_node())) return;
  disk_->kill(0);
  sim_job_->crash_program();
}

void scripted_simulation::begin(job what) {
  kill_program();
  sim_job_->begin(std::move(what));
}

void scripted_simulation::take(const job_spec& what) {
  job_ = what;
  reference_ = std::make_unique<modular_reference>(reference_of(what));
}

void scripted_simulation::train(const job_spec& what) {
  take(what);
  kill_program();
  if (!disk_->disk().entries().empty())
    disk_->submit(storage_ops::remove{folder}, [](const storage_result&) {});
  train_from(std::nullopt);
}

void scripted_simulation::train_again(const job_spec& what) {
  take(what);
  train_again();
}

void scripted_simulation::train_again() {
  std::optional<std::string> newest;
  try {
    newest = io_->latest(folder).path;
  } catch (const user_error&) {  // no checkpoint exists yet
  }
  train_from(std::move(newest));
}

void scripted_simulation::train_from(std::optional<std::string> checkpoint) {
  job what;
  what.options = job_.asked();
  what.run_folder = folder;
  what.resume = std::move(checkpoint);
  const auto from = what.resume ? io_->read(*what.resume).loop.steps : 0;
  steps_.assign(static_cast<std::size_t>(job_.ranks), from);
  modular_options payload;
  payload.samples = job_.samples;
  payload.width = job_.width;
  payload.buffers = job_.buffers;
  payload.logs = how_.logs;
  payload.collectives = job_.collectives;
  payload.load = [this](const std::string& path) { return io_->read(path); };
  payload.at_hook = how_.at_hook;
  payload.stepped = [this](const finished_step& s) {
    if (s.job == sim_job_->running()) steps_[static_cast<std::size_t>(s.rank)] = s.step;
    if (how_.stepped) how_.stepped(s);
  };
  what.recipe = std::make_shared<modular_recipe>(std::move(payload));
  begin(std::move(what));
}

bool scripted_simulation::run_until(const std::function<bool()>& there) {
  for (std::uint64_t n = 0; n < events_max; ++n) {
    if (there()) return true;
    if (sim_job_->ended() || !simulation_->step()) return there();
  }
  throw internal_error("the condition did not hold within 1,000,000 events");
}

const job_outcome& scripted_simulation::run() {
  run_until([] { return false; });
  if (!sim_job_->ended()) throw internal_error("nothing is left to do, and the job has not ended");
  return *sim_job_->outcome();
}

const job_outcome& scripted_simulation::run(
    job what, const std::function<void(std::uint64_t, const supervisor_actor&)>& at_event) {
  const auto before = simulation_->events();
  begin(std::move(what));
  run_until([&] {
    if (at_event) at_event(simulation_->events() - before, sim_job_->supervisor());
    return false;
  });
  run();
  settle();
  return *sim_job_->outcome();
}

void scripted_simulation::settle() {
  for (std::uint64_t n = 0; n < events_max; ++n)
    if (!simulation_->step()) return;
  throw internal_error("the simulation did not end within 1,000,000 events");
}

std::int64_t scripted_simulation::steps_of(std::int32_t rank) const {
  return steps_.at(static_cast<std::size_t>(rank));
}

std::vector<std::uint64_t> scripted_simulation::weights() const {
  std::vector<std::uint64_t> all;
  if (!sim_job_->ended()) return all;
  if (const auto* list = sim_job_->outcome()->result.get_if<value_list>())
    for (const auto& item : list->items)
      if (const auto* x = item.get_if<std::int64_t>())
        all.push_back(static_cast<std::uint64_t>(*x));
  return all;
}

std::vector<std::uint64_t> scripted_simulation::reference_weights() {
  return reference_->after(job_.steps).weights;
}

std::string scripted_simulation::chart() const {
  return text_chart(simulation_->notes(), simulation_->names());
}

std::shared_ptr<held_message> scripted_simulation::hold_if(
    std::function<bool(std::int32_t, bool, const link_message&)> wanted) {
  auto fresh = std::make_shared<held_message>();
  fresh->wanted_ = std::move(wanted);
  held_.push_back(fresh);
  return fresh;
}

void scripted_simulation::release(const std::shared_ptr<held_message>& what) {
  if (what->to_) deliver(what->content(), what->to_);
}

void scripted_simulation::release_to(const std::shared_ptr<held_message>& what,
                                     const supervisor_actor& whom) {
  deliver(what->content(), caf::actor_cast<caf::strong_actor_ptr>(whom));
}

}  // namespace troupe::testing
