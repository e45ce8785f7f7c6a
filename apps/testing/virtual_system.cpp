#include "apps/testing/virtual_system.hpp"

#include <caf/actor_registry.hpp>
#include <caf/logger.hpp>
#include <caf/make_actor.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>
#include <utility>

namespace troupe::testing {

namespace {

std::int64_t count_of(caf::actor_clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
}

// Our actors use delayed messages only; other features of the clock are errors.
class virtual_clock final : public caf::actor_clock {
public:
  explicit virtual_clock(virtual_host& host) : host_(host) {}

  time_point now() const noexcept override {
    return time_point{std::chrono::nanoseconds{host_.now()}};
  }
  duration_type difference(caf::atom_value, long, time_point t0,
                           time_point t1) const noexcept override {
    return t1 - t0;
  }
  void set_ordinary_timeout(time_point, caf::abstract_actor*, caf::atom_value,
                            std::uint64_t) override {
    refuse("receive timeouts");
  }
  void set_multi_timeout(time_point, caf::abstract_actor*, caf::atom_value,
                         std::uint64_t) override {
    refuse("stream timeouts");
  }
  void set_request_timeout(time_point t, caf::abstract_actor* self, caf::message_id id) override {
    host_.timer(count_of(t), caf::strong_actor_ptr{self->ctrl()},
                caf::make_mailbox_element(nullptr, id, {},  // of the answer that has not arrived
                                          caf::make_error(caf::sec::request_timeout)));
  }
  void cancel_ordinary_timeout(caf::abstract_actor*, caf::atom_value) override {}
  // An actor ignores a timeout that fires after the answer.
  void cancel_request_timeout(caf::abstract_actor*, caf::message_id) override {}
  void cancel_timeouts(caf::abstract_actor*) override {}
  void schedule_message(time_point t, caf::strong_actor_ptr receiver,
                        caf::mailbox_element_ptr what) override {
    host_.timer(count_of(t), std::move(receiver), std::move(what));
  }
  void schedule_message(time_point, caf::group, caf::strong_actor_ptr, caf::message) override {
    refuse("groups");
  }
  void cancel_all() override {}

private:
  [[noreturn]] static void refuse(const std::string& what) {
    throw internal_error("the simulation does not support " + what);
  }
  virtual_host& host_;
};

class virtual_unit final : public caf::execution_unit {
public:
  virtual_unit(caf::actor_system* system, virtual_host& host)
      : execution_unit(system), host_(host) {}
  void exec_later(caf::resumable* job) override { host_.runnable(job); }

  // Does the part of an actor's `resume` that handles one message. It skips queues that our actors
  // do not use and the clocks of streams: a fifth of a delivery's cost.
  void run_one(caf::resumable* job) {
    if (job->subtype() != caf::resumable::scheduled_actor) return resume(job);
    auto* self = static_cast<caf::scheduled_actor*>(job);
    auto& box = self->mailbox();
    box.fetch_more();
    for (auto message = take(box); message; message = take(box)) {
      switch (hand_over(*self, *message)) {
        case activation::dropped: continue;
        case activation::skipped: self->push_to_cache(std::move(message)); continue;
        case activation::terminated: return caf::intrusive_ptr_release(job);
        case activation::success: break;
      }
      box.flush_cache();
      return box.try_block() ? caf::intrusive_ptr_release(job) : exec_later(job);
    }
    resume(job);
  }

private:
  using activation = caf::scheduled_actor::activation_result;

  // An actor that has not started starts first. One that has ended has no message.
  activation hand_over(caf::scheduled_actor& self, caf::mailbox_element& message) {
    if (!self.getf(caf::abstract_actor::is_initialized_flag)) return self.activate(this, message);
    self.context(this);
    return self.reactivate(message);
  }

  static caf::mailbox_element_ptr take(caf::scheduled_actor::mailbox_type& box) {
    using kind = caf::scheduled_actor;
    auto& kinds = box.queue().queues();
    auto& urgent = std::get<kind::urgent_queue_index>(kinds);
    return urgent.empty() ? take_of(std::get<kind::normal_queue_index>(kinds)) : take_of(urgent);
  }
  template <class Queue>
  static caf::mailbox_element_ptr take_of(Queue& queue) {
    if (queue.empty()) return nullptr;
    queue.inc_deficit(1);
    return queue.next();
  }

  // An actor without a message: it has to start.
  void resume(caf::resumable* job) {
    switch (job->resume(this, 1)) {
      case caf::resumable::resume_later: exec_later(job); break;
      case caf::resumable::done:
      case caf::resumable::awaiting_message: caf::intrusive_ptr_release(job); break;
      case caf::resumable::shutdown_execution_unit: break;
    }
  }

  virtual_host& host_;
};

class virtual_scheduler final : public caf::scheduler::abstract_coordinator {
public:
  virtual_scheduler(caf::actor_system& system, virtual_host& host)
      : abstract_coordinator(system), host_(host), clock_(host) {}

  void enqueue(caf::resumable* job) override { host_.runnable(job); }
  caf::actor_clock& clock() noexcept override { return clock_; }
  bool detaches_utility_actors() const override { return false; }

protected:
  void start() override {}
  // CAF's own actors were asked to end.
  void stop() override {
    virtual_unit unit{&system(), host_};
    for (auto jobs = host_.take_jobs(); !jobs.empty(); jobs = host_.take_jobs())
      for (auto* job : jobs) unit.run_one(job);
  }

private:
  virtual_host& host_;
  virtual_clock clock_;
};

}  // namespace

// Systems only read it, and making one costs forty thousand instructions: each thread makes one for
// all its systems, one after the other.
class virtual_system::config : public seam::system_config {
public:
  static config& of(virtual_host& host) {
    thread_local config own;
    own.host_ = &host;
    return own;
  }

private:
  config() : seam::system_config(0) {
    module_factories.push_back([this](caf::actor_system& system) -> caf::actor_system::module* {
      return new virtual_scheduler(system, *host_);
    });
  }
  virtual_host* host_ = nullptr;  // of the system that is being made
};

class virtual_system::unit {
public:
  unit(caf::actor_system* system, virtual_host& host) : inner(system, host) {}
  virtual_unit inner;
};

virtual_system::virtual_system(virtual_host& host)
    : system_(std::make_unique<caf::actor_system>(config::of(host))),
      unit_(std::make_unique<unit>(system_.get(), host)) {
  system_->await_actors_before_shutdown(false);
}

virtual_system::~virtual_system() = default;

// CAF's log is unused, and naming its actor costs a look-up per delivery. Each spawn turns it on
// again for this thread.
void virtual_system::run_one(caf::resumable* job) {
  const auto newest = system_->latest_actor_id();
  if (std::exchange(newest_, newest) != newest) caf::logger::set_current_actor_system(nullptr);
  unit_->inner.run_one(job);
}

void virtual_system::drop(caf::resumable* job) { caf::intrusive_ptr_release(job); }

caf::actor_id virtual_system::id_of(caf::resumable* job) {
  if (job->subtype() != caf::resumable::scheduled_actor) return 0;
  return static_cast<caf::scheduled_actor*>(job)->id();
}

caf::strong_actor_ptr virtual_system::actor_of(caf::resumable* job) {
  return caf::strong_actor_ptr{static_cast<caf::scheduled_actor*>(job)->ctrl()};
}

std::size_t virtual_system::running() const { return system_->registry().running(); }

caf::actor_id virtual_system::next_id() const { return system_->latest_actor_id() + 1; }

bool virtual_system::lives(const caf::strong_actor_ptr& who) {
  return who && !who->get()->getf(caf::abstract_actor::is_cleaned_up_flag);
}

namespace {

// What an actor begins with. CAF drops it when the actor runs for the first time; it may hold
// handles of other actors, and these hold the actor.
struct beginning : caf::local_actor {
  static auto of() { return &beginning::initial_behavior_fac_; }
};

}  // namespace

void virtual_system::destroy(const caf::strong_actor_ptr& who) {
  if (!lives(who)) return;
  auto* actor = dynamic_cast<caf::scheduled_actor*>(who->get());
  if (!actor) return;
  actor->quit(caf::exit_reason::kill);
  actor->finalize();
  actor->*beginning::of() = nullptr;  // it may never have run
}

link_handle::link_handle(caf::actor_config& config, sent_fn sent)
    : monitorable_actor(config), sent_(std::move(sent)) {}

void link_handle::enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) {
  if (sent_) sent_(std::move(what));
}

void link_handle::go_down(caf::error why) {
  sent_ = nullptr;
  cleanup(std::move(why), nullptr);
}

caf::strong_actor_ptr link_handle::make(caf::actor_system& system, sent_fn sent) {
  caf::actor_config config;
  return caf::make_actor<link_handle, caf::strong_actor_ptr>(system.next_actor_id(), system.node(),
                                                             &system, config, std::move(sent));
}

link_handle& link_handle::of(const caf::strong_actor_ptr& made) {
  return static_cast<link_handle&>(*made->get());
}

}  // namespace troupe::testing
