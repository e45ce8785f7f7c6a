// The only way to spawn an actor of Troupe. It sets the exception, down, exit, error and default
// handlers, so that CAF neither prints nor drops a message or an error silently. What differs
// between CAF 0.17 and 1.x is named here and in messages/interfaces.hpp only.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/delegated.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "messages/interfaces.hpp"

namespace troupe {

/// Receives what an actor cannot report itself: the exception that ended it, or a message that it
/// has no handler for.
using actor_error_handler = std::function<void(const caf::strong_actor_ptr& who, caught what)>;

namespace seam {

/// Sets every handler of `self`. An exception goes to `trouble` and then ends the actor with
/// sec::runtime_error and the exception's text. An exit message ends the actor with its reason.
/// Errors and unknown messages go to `trouble`.
void guard(caf::scheduled_actor& self, actor_error_handler trouble);

/// Handler of a one-way message.
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

/// The behaviour of an actor of interface `Handle`: one handler per message, none of which replies.
/// All messages of Troupe are one-way. After a plain handler CAF 0.17 would create a response
/// promise for each message, only to drop it.
template <class Handle>
class one_way_handlers {
public:
  template <class... F>
  one_way_handlers(F... handlers) : behaviour_{one_way_handler<F>{std::move(handlers)}...} {}
  typename Handle::behavior_type behaviour() && { return std::move(behaviour_); }

private:
  typename Handle::behavior_type behaviour_;
};

/// Spawns an event-based actor of interface `Handle` with state `State`; `init(self)` returns its
/// handlers, a `one_way_handlers<Handle>`. With caf::detached the actor has a thread of its own.
template <class Handle, class State, caf::spawn_options Options = caf::no_spawn_options, class Init>
Handle spawn(caf::actor_system& system, actor_error_handler trouble, Init init) {
  using pointer = typename Handle::template stateful_pointer<State>;
  return system.spawn<Options>([trouble = std::move(trouble), init = std::move(init)](
                                   pointer self) mutable -> typename Handle::behavior_type {
    guard(*self, std::move(trouble));
    return init(self).behaviour();
  });
}

/// Its destructor releases the calling thread's reference to an actor system. CAF 0.17 leaves a
/// reference to the system's logger in each thread that creates a system or spawns an actor, and
/// the destructor of the system waits for the last of them. A program that uses CAF itself loses
/// only log lines of this thread, until CAF sets the reference again.
class thread_reference_release {
public:
  thread_reference_release() = default;
  ~thread_reference_release();
  thread_reference_release(const thread_reference_release&) = delete;
  thread_reference_release& operator=(const thread_reference_release&) = delete;
};

/// Calls `handler(address, reason text)` when an actor that `self` monitors has ended, for whatever
/// reason. The text of an exception is as it was thrown, and of an orderly end empty.
void on_down(caf::scheduled_actor& self,
             std::function<void(const caf::actor_addr& who, std::string why)> handler);

/// Ends `self`, with this reason text for the actors that monitor it.
void quit(caf::scheduled_actor& self, const std::string& why);

/// Sends `message` to `self` after `delay` of the system's clock, which is virtual in a simulation.
template <class Self, class Message>
void send_self_after(Self* self, std::chrono::nanoseconds delay, Message message) {
  self->delayed_send(self, delay, std::move(message));
}

/// A configuration that reads no file and no environment and registers Troupe's message types.
class system_config : public caf::actor_system_config {
public:
  /// `threads` 0: CAF's test scheduler, which the simulator drives in one thread under virtual
  /// time. Then message types are not registered by name, because messages are never serialised and
  /// a simulation creates an actor system every millisecond.
  explicit system_config(std::size_t threads);
};

}  // namespace seam
}  // namespace troupe
