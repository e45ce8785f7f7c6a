// The seam to CAF of the simulated world: an actor system whose scheduler and clock are the
// world's. What another version of CAF would need differently is here and nowhere else of
// apps/testing.
#pragma once

#include <caf/actor_clock.hpp>
#include <caf/actor_system.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/resumable.hpp>
#include <caf/type_nr.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <typeinfo>

#include "actors/spawn.hpp"

namespace troupe::testing {

/// Whether the message is one value of that type: what CAF's match_elements answers, at a third of
/// its instructions, for those who ask it of every message.
template <class T>
bool holds(const caf::message& what) {
  if constexpr (caf::type_nr<T>::value != 0)
    return what.type_token() == caf::make_type_token<T>();
  else
    return what.type_token() == caf::make_type_token<T>() && *what.type(0).second == typeid(T);
}

/// The name of the type of its first value: of our own types all have one type token.
inline std::string_view type_name(const caf::message& what) {
  if (what.empty()) return {};
  const auto [number, type] = what.type(0);  // a number: one of CAF's own
  return number == 0 ? type->name() : caf::numbered_type_names[number - 1];
}

/// Of that name: the same on every machine. Remembered, for those who ask it of every message.
std::uint64_t type_digest(const caf::message& what);

/// What an actor system asks of its world. Called by the world's one thread.
class virtual_host {
public:
  virtual ~virtual_host() = default;
  /// An actor has something to do. The world owns the reference until `run_one` took it.
  virtual void runnable(caf::resumable* job) = 0;
  /// A message is to reach `receiver` at `due` of virtual time.
  virtual void timer(std::int64_t due, caf::strong_actor_ptr receiver,
                     caf::mailbox_element_ptr what) = 0;
  virtual std::int64_t now() const = 0;
  /// The system ends and runs what is still runnable itself.
  virtual std::deque<caf::resumable*> take_jobs() = 0;
};

/// An actor system under virtual time and somebody else's schedule.
class virtual_system {
public:
  explicit virtual_system(virtual_host& host);
  ~virtual_system();
  caf::actor_system& system() { return *system_; }

  /// Lets a runnable actor handle one message; it comes back through `runnable` when there are
  /// more.
  void run_one(caf::resumable* job);
  /// Gives the reference back without running anything.
  static void drop(caf::resumable* job);
  /// The actor a job is, as the number that `id_of` gives; 0 when it is none.
  static caf::actor_id id_of(caf::resumable* job);
  /// Actors that have not ended.
  std::size_t running() const;
  /// Number that the next actor gets.
  caf::actor_id next_id() const;
  static bool lives(const caf::strong_actor_ptr& who);
  /// Ends an actor as a crash would: nothing of it runs again but the destructor of its state.
  static void destroy(const caf::strong_actor_ptr& who);

private:
  class config;
  class unit;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<unit> unit_;
  caf::actor_id newest_ = 0;  // when something ran last
};

/// A handle that stands for an actor elsewhere. Whatever is sent to it goes to `sent`; it goes down
/// when it is told to.
class link_handle : public caf::monitorable_actor {
public:
  using sent_fn = std::function<void(caf::mailbox_element_ptr what)>;
  link_handle(caf::actor_config& config, sent_fn sent);
  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override;
  void go_down(caf::error why);
  /// What is sent from now on goes nowhere.
  void forget() { sent_ = nullptr; }

  /// A fresh one in `system`; `of` finds it in what `make` returned.
  static caf::strong_actor_ptr make(caf::actor_system& system, sent_fn sent);
  static link_handle& of(const caf::strong_actor_ptr& made);

private:
  sent_fn sent_;
};

}  // namespace troupe::testing
