// The seam between simulation and CAF: an actor system whose scheduler and clock belong to the
// simulation. All code in apps/testing that depends on CAF's version is here.
#pragma once

#include <caf/actor_clock.hpp>
#include <caf/actor_system.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/resumable.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "actors/spawn.hpp"

namespace troupe::testing {

/// Interface of the simulation to its actor system. Called on the simulation's only thread.
class virtual_host {
public:
  virtual ~virtual_host() = default;
  /// An actor has work. The host owns the reference until `run_one` takes it.
  virtual void runnable(caf::resumable* job) = 0;
  /// Delivers a message to `receiver` at `due` of virtual time.
  virtual void timer(std::int64_t due, caf::strong_actor_ptr receiver,
                     caf::mailbox_element_ptr what) = 0;
  virtual std::int64_t now() const = 0;
  /// The system shuts down and runs the remaining jobs itself.
  virtual std::deque<caf::resumable*> take_jobs() = 0;
};

/// An actor system with virtual time and an external scheduler.
class virtual_system {
public:
  explicit virtual_system(virtual_host& host);
  ~virtual_system();
  caf::actor_system& system() { return *system_; }

  /// Lets a runnable actor handle one message. The actor is reported by `runnable` again if it has
  /// more.
  void run_one(caf::resumable* job);
  /// Releases the reference without running anything.
  static void drop(caf::resumable* job);
  /// The id of the actor that this resumable is; 0 if it is not an actor.
  static caf::actor_id id_of(caf::resumable* job);
  /// The actor itself; `id_of` is not 0.
  static caf::strong_actor_ptr actor_of(caf::resumable* job);
  /// Actors that have not ended.
  std::size_t running() const;
  /// The number that the next actor gets.
  caf::actor_id next_id() const;
  static bool lives(const caf::strong_actor_ptr& who);
  /// Ends an actor as a crash would: only the destructor of its state runs.
  static void destroy(const caf::strong_actor_ptr& who);

private:
  class config;
  class unit;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<unit> unit_;
  caf::actor_id newest_ = 0;  // at the last spawn that was seen
};

/// A handle that represents an actor elsewhere. Messages sent to it go to `sent`; `go_down` ends
/// it.
class link_handle : public caf::monitorable_actor {
public:
  using sent_fn = std::function<void(caf::mailbox_element_ptr what)>;
  link_handle(caf::actor_config& config, sent_fn sent);
  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override;
  void go_down(caf::error why);
  /// Messages are dropped from now on.
  void forget() { sent_ = nullptr; }

  /// Makes one in `system`; `of` returns the object that a pointer refers to.
  static caf::strong_actor_ptr make(caf::actor_system& system, sent_fn sent);
  static link_handle& of(const caf::strong_actor_ptr& made);

private:
  sent_fn sent_;
};

}  // namespace troupe::testing
