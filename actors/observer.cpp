#include "actors/observer.hpp"

namespace troupe {

namespace {

struct observer_state {
  static constexpr const char* name = "observer";

  std::unique_ptr<observer> inner;
  std::shared_ptr<observation_queue> queue;
  caf::actor_addr supervisor;  // weak: the supervisor outlives its observers by protocol

  // An observer that throws receives nothing more; the job goes on.
  template <class F>
  void guarded(F f) {
    if (!inner) return;
    try {
      f(*inner);
    } catch (...) {
      auto why = describe(std::current_exception());
      why.hook = "observer";
      if (auto to = caf::actor_cast<supervisor_actor>(supervisor))
        caf::anon_send(to, flushed{"observer", {std::move(why)}});
      inner.reset();
    }
  }

  void notify_inner() {
    for (const auto& what : queue->take()) guarded([&](observer& o) { o.on(*what); });
  }

  void end() {
    notify_inner();
    guarded([&](observer& o) { o.finish(queue->dropped().all()); });
    inner.reset();
  }
};

using observer_pointer = observer_actor::stateful_pointer<observer_state>;

void flush_and_quit(observer_pointer self) {
  self->state.end();
  self->quit();
}

template <caf::spawn_options Options>
listed_observer spawn_with(std::size_t limit, caf::actor_system& system,
                           actor_error_handler trouble, const observer_factory& make,
                           supervisor_actor supervisor) {
  auto inner = make();
  if (!inner)
    throw user_error(errc::bad_usage,
                     "an observer factory made no observer: return one, or leave the factory out");
  auto queue = std::make_shared<observation_queue>(inner->wants_hooks(), limit);
  auto shared = std::make_shared<std::unique_ptr<observer>>(std::move(inner));
  auto weak = supervisor.address();
  auto actor = seam::spawn<observer_actor, observer_state, Options>(
      system, std::move(trouble),
      [=](observer_pointer self) -> seam::one_way_handlers<observer_actor> {
        self->state.inner = std::move(*shared);
        self->state.queue = queue;
        self->state.supervisor = weak;
        return {
            [=](tick) { self->state.notify_inner(); },
            [=](flush) { flush_and_quit(self); },
        };
      });
  return {std::move(queue), std::move(actor)};
}

}  // namespace

bool observer_list::wants_hooks() const {
  for (const auto& m : members_)
    if (m.queue->wants_hooks()) return true;
  return false;
}

void observer_list::notify(observation what) const {
  if (members_.empty()) return;
  const bool detail = is_detail(what);
  const auto shared = std::make_shared<const observation>(std::move(what));
  std::unique_lock<std::mutex> lock;
  if (gate_) lock = std::unique_lock{gate_->guard};
  if (gate_ && gate_->closed) return;
  for (const auto& m : members_) {
    if (detail && !m.queue->wants_hooks()) continue;
    if (m.queue->push(shared)) caf::anon_send(m.actor, tick{});
  }
}

observer_list observer_list::for_sender() const {
  auto of_sender = *this;
  of_sender.gate_ = std::make_shared<gate>();
  return of_sender;
}

void observer_list::close() const {
  if (!gate_) return;
  const std::lock_guard lock(gate_->guard);
  gate_->closed = true;
}

void observer_list::add_dropped(const dropped_observations& elsewhere) const {
  for (const auto& m : members_) m.queue->add_dropped(elsewhere);
}

listed_observer spawn_observer(caf::actor_system& system, actor_error_handler trouble,
                               const observer_factory& make, supervisor_actor supervisor) {
  return spawn_observer_with_queue(observation_queue::limit_default, system, std::move(trouble),
                                   make, std::move(supervisor));
}

listed_observer spawn_observer_on_thread(caf::actor_system& system, actor_error_handler trouble,
                                         const observer_factory& make,
                                         supervisor_actor supervisor) {
  return spawn_with<caf::detached>(observation_queue::limit_default, system, std::move(trouble),
                                   make, std::move(supervisor));
}

listed_observer spawn_observer_with_queue(std::size_t limit, caf::actor_system& system,
                                          actor_error_handler trouble, const observer_factory& make,
                                          supervisor_actor supervisor) {
  return spawn_with<caf::no_spawn_options>(limit, system, std::move(trouble), make,
                                           std::move(supervisor));
}

}  // namespace troupe
