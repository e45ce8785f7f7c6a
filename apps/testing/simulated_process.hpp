// Processes of ranks in a simulation: the adapters of the launcher port (backends/launcher.hpp) for
// job_processes and rank_host. A process is a node. Every message between it and the supervisor's
// program is packed by the codec, crosses a simulated stream and is unpacked.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/rank_process.hpp"
#include "apps/testing/simulated_stream.hpp"
#include "apps/testing/simulation.hpp"
#include "backends/launcher.hpp"

namespace troupe::testing {

class simulated_process;

/// What the simulated job does for its processes.
class process_owner {
public:
  virtual ~process_owner() = default;
  /// A process is started: its node.
  virtual simulation::node_id node_of(const process_identity& who) = 0;
  /// Keeps it until the simulation is cleared: events refer to it.
  virtual void process_begins(std::shared_ptr<simulated_process> fresh) = 0;
  /// A rank was sent to the process, and is going to live there.
  virtual void rank_comes(simulated_process& to, const rank_spec& what) = 0;
  /// The ports of that rank.
  virtual ports world_of(incarnation_id rank) = 0;
  virtual void rank_lives(incarnation_id rank, const caf::strong_actor_ptr& actor) = 0;
  /// A message has crossed the stream (`reaches_an_actor`). True: it is not to be delivered.
  virtual bool holds_back(const simulated_process& in, bool to_supervisor,
                          const link_message& what) = 0;
  /// The process has died or exited.
  virtual void process_ends(simulation::node_id node) = 0;
};

struct process_settings {
  recipe_ptr recipe;
  simulation::node_id parent = 0;  ///< of the supervisor's program
  simulated_stream::settings stream;
  std::optional<std::int32_t> placed;  ///< so many, which a launcher has started
};

class simulated_process final : public launcher_client {
public:
  simulated_process(simulation& in, process_owner& owner, process_settings how, process_start what,
                    process_sink sink);

  simulation::node_id node() const { return node_; }
  bool lives() const { return !end_; }
  /// The supervisor's program knows that it has ended, or has given it up.
  bool known_gone() const { return stream_->over(0); }

  /// It dies. `host_too`: so does its host, and only silence shows it.
  void die(bool host_too);
  /// It is asked to end (SIGTERM), and passes that on. False: it cannot yet, or has ended.
  bool leave();
  /// As rank_process::snapshot_bytes.
  std::int64_t snapshot_bytes() const { return stream_->attached(0); }
  /// Its link; the near end is the supervisor's.
  const std::shared_ptr<simulated_stream>& stream() const { return stream_; }
  /// The supervisor's program ends. `silently`: its host dies.
  void orphan(bool silently);

  // --- the supervisor's side ---

  void start();
  void post(const link_message& what);
  void release(nanoseconds grace);

  // --- its own side ---

  const process_identity& who() const override { return what_.who; }
  troupe::link& control() override { return link_; }
  const std::vector<int>& descriptors() const override { return what_.descriptors; }
  void carry(const tensor_bytes* tensors) override { tensors_ = tensors; }
  void enter(std::int32_t rank, const hook& what) noexcept override { entered_[rank] = what; }
  /// The stream calls instead.
  bool serve(std::function<void(link_message&&)>) override { return true; }
  bool has_threads() const override { return false; }

private:
  struct own_link final : troupe::link {
    explicit own_link(simulated_process& o) : owner(o) {}
    void listen(link_sink) override {}
    bool send(link_message what, keep how, std::uint64_t tag) override;
    bool withdraw(std::uint64_t tag) override { return owner.stream_->withdraw(1, tag); }
    void close() override { owner.stream_->close(1); }
    simulated_process& owner;
  };

  void begin();
  void receive(stream_message&& what);
  void settle(link_message&& what);
  void exit(bool closed);
  void end(process_end how, const char* note);
  void receive_above(stream_message&& what);
  void ended_above(stream_end how);
  void report(process_end how);
  void note(bool to_supervisor, const char* verb, const link_message& what);

  simulation& simulation_;
  process_owner& owner_;
  process_settings how_;
  process_start what_;
  process_sink sink_;  // of the supervisor's side
  const simulation::node_id node_;
  std::shared_ptr<simulated_stream> stream_;
  own_link link_{*this};
  const tensor_bytes* tensors_ = nullptr;  // of its own side
  std::map<std::int32_t, hook> entered_;   // the newest one of each rank
  incarnation_id settling_;
  rank_process_options home_;
  std::unique_ptr<rank_host> host_;  // while it runs
  std::optional<process_end> end_;   // it has ended
};

/// Whether an actor handles this message: an order, a report or a snapshot.
bool reaches_an_actor(const link_message& what);
/// Sends such a message to an actor that handles it.
void deliver(const link_message& what, const caf::strong_actor_ptr& to);

/// The launcher of one job.
std::shared_ptr<rank_launcher> simulated_launcher(simulation& in, process_owner& owner,
                                                  process_settings how);

}  // namespace troupe::testing
