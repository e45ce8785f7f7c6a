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
using actor_error_handler = std::function<void(const caf::strong_actor_ptr& who, caught what)>;

namespace seam {

/// Sets every handler of `self`. An exception ends the actor with sec::runtime_error and its text
/// after `trouble` has heard it; an exit message ends it with its reason; errors and unknown
/// messages go to `trouble`.
void guard(caf::scheduled_actor& self, actor_error_handler trouble);

/// A message handler whose message nobody awaits an answer to.
template <class F, class Call = decltype(&F::operator())>
class one_way_handler;
template <class F, class Message>
class one_way_handler<F, void (F::*)(Message) const> {
public:
  explicit one_way_handler(F handler) : handler_(std::move(handler)) {}
  caf::delegated<void> operator()(Message m) const { return handler_(m), caf::delegated<void>{}; }

private:
  F handler_;
};

/// What an actor of interface `Handle` hears: a list of handlers that answer nobody, since our
/// messages are told and never requested (a request would wait for its timeout). Behind a plain
/// handler CAF 0.17 makes a promise of an answer for each message, to drop it.
template <class Handle>
class one_way_handlers {
public:
  template <class... F>
  one_way_handlers(F... handlers) : behaviour_{one_way_handler<F>{std::move(handlers)}...} {}
  typename Handle::behavior_type behaviour() && { return std::move(behaviour_); }

private:
  typename Handle::behavior_type behaviour_;
};

/// Spawns an event-based actor of interface `Handle` with state `State`; `init(self)` returns what
/// it hears, a `hears<Handle>`.
template <class Handle, class State, class Init>
Handle spawn(caf::actor_system& system, actor_error_handler trouble, Init init) {
  using pointer = typename Handle::template stateful_pointer<State>;
  return system.spawn([trouble = std::move(trouble), init = std::move(init)](
                          pointer self) mutable -> typename Handle::behavior_type {
    guard(*self, std::move(trouble));
    return init(self).behaviour();
  });
}

/// Releases, when it is destroyed, the calling thread's reference to an actor system. CAF 0.17
/// leaves in each thread that creates a system or spawns an actor a reference to the system's
/// logger, and the destructor of the system waits for the last of them. A program that uses CAF
/// itself loses nothing but log lines of this thread, until CAF sets the reference again.
class thread_reference_release {
public:
  thread_reference_release() = default;
  ~thread_reference_release();
  thread_reference_release(const thread_reference_release&) = delete;
  thread_reference_release& operator=(const thread_reference_release&) = delete;
};

/// Calls `on_down(address, reason text)` when a watched actor is gone, whatever the reason.
void on_down(caf::scheduled_actor& self,
             std::function<void(const caf::actor_addr& who, std::string why)> handler);

/// Sends `message` to `self` after `delay` of the system's clock, which is virtual in a simulated
/// world.
template <class Self, class Message>
void send_self_after(Self* self, std::chrono::nanoseconds delay, Message message) {
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
