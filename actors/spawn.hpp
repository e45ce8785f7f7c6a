// The one way an actor of ours comes to life: with its exception, down, exit, error and default
// handlers set, so that CAF neither prints nor drops anything behind our back. What differs between
// CAF 0.17 and 1.x when spawning, sending later and watching is named here and in messages/seam.hpp
// only.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/all.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "messages/interfaces.hpp"

namespace troupe {

/// Hears what an actor could not say itself: the exception that ended it, a message it does not
/// know.
using actor_trouble = std::function<void(const caf::strong_actor_ptr& who, caught what)>;

namespace seam {

/// Sets every handler of `self`. An exception ends the actor with sec::runtime_error and its text
/// after `trouble` has heard it; an exit message ends it with its reason; errors and unknown
/// messages go to `trouble`.
void guard(caf::scheduled_actor& self, actor_trouble trouble);

/// Spawns an event-based actor of interface `Handle` with state `State`; `init(self)` returns its
/// behaviour.
template <class Handle, class State, class Init>
Handle spawn(caf::actor_system& system, actor_trouble trouble, Init init) {
  using pointer = typename Handle::template stateful_pointer<State>;
  return system.spawn([trouble = std::move(trouble), init = std::move(init)](
                          pointer self) mutable -> typename Handle::behavior_type {
    guard(*self, std::move(trouble));
    return init(self);
  });
}

/// Calls `on_down(address, reason text)` when a watched actor is gone, whatever the reason.
void on_down(caf::scheduled_actor& self,
             std::function<void(const caf::actor_addr& who, std::string why)> handler);

/// Sends `message` to `self` after `delay` of the system's clock, which is virtual in a simulated
/// world.
template <class Self, class Message>
void tell_self_after(Self* self, std::chrono::nanoseconds delay, Message message) {
  self->delayed_send(self, delay, std::move(message));
}

/// A configuration that reads no file and no environment, with our message types known.
class system_config : public caf::actor_system_config {
public:
  /// `threads` 0: CAF's test scheduler, driven by hand in one thread under virtual time. Its
  /// messages stay objects, so their types need no names: a simulated run makes a system of its own
  /// every millisecond.
  explicit system_config(std::size_t threads);
};

}  // namespace seam
}  // namespace troupe
