// One job in its own simulation, controlled step by step, for tests of one interleaving. The
// program of the job can be restarted, as an operator would do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/testing/job_run.hpp"
#include "backends/simulated/simulated_storage.hpp"

namespace troupe::testing {

struct script_options {
  std::uint64_t seed = 0;
  scheduling schedule = scheduling::fifo;
  cluster_model cluster;
  /// Null: the format of the simulated disk.
  std::shared_ptr<const checkpoint_io> checkpoints;
  bool record = false;               ///< keep notes, for chart()
  bool logs = false;                 ///< modular_options::logs
  std::vector<user_coverage> marks;  ///< coverage points of the test's code
  /// With the integer payload: called at every hook, in the lane; may throw. It must not crash the
  /// node that it runs on: note the moment, and crash it when `run_until` has returned.
  std::function<void(const learner_context& who, const hook& what)> at_hook;
  /// With the integer payload: called after every step of every rank; may throw.
  std::function<void(const finished_step& what)> stepped;
};

/// A message that was held back: it has crossed the link and was not delivered.
class held_message {
public:
  bool caught() const { return what_.has_value(); }
  /// Returns the message. Throws internal_error before it was caught.
  template <class Message>
  const Message& as() const {
    return std::get<Message>(content());
  }

private:
  friend class scripted_simulation;
  const link_message& content() const;
  std::function<bool(std::int32_t rank, bool to_supervisor, const link_message& what)> wanted_;
  std::optional<link_message> what_;
  caf::strong_actor_ptr to_;
};

/// Thread-compatible. Every wait is bounded by `events_max` events and then throws internal_error.
class scripted_simulation {
public:
  static constexpr std::uint64_t events_max = 1'000'000;

  explicit scripted_simulation(script_options how = {});
  ~scripted_simulation();
  scripted_simulation(const scripted_simulation&) = delete;
  scripted_simulation& operator=(const scripted_simulation&) = delete;

  simulation& in() { return *simulation_; }
  simulated_job& sim_job() { return *sim_job_; }
  simulated_storage& files() { return *disk_; }

  // --- begin ---

  /// Starts a job with the integer payload, saved in the folder "run", which is removed first. Each
  /// call starts a new program and kills one that still runs.
  void train(const job_spec& what);
  /// The operator restarts the job from its newest good checkpoint, or from the beginning.
  void train_again();
  /// The same with other options than those of the job before.
  void train_again(const job_spec& what);
  /// Starts a job with a learner of the test.
  void begin(job what);

  // --- go on ---

  /// Runs until `there` holds (true), or until nothing is left to do or the job has ended (false).
  bool run_until(const std::function<bool()>& there);
  /// Runs to the end of the job. Throws internal_error when the job does not end.
  const job_outcome& run();
  /// Starts the job, runs it to its end, and then until nothing is left to do. `at_event` is called
  /// before each event with the number of events so far.
  const job_outcome& run(
      job what, const std::function<void(std::uint64_t, const supervisor_actor&)>& at_event = {});
  /// Runs until nothing is left to do.
  void settle();

  // --- look ---

  const supervisor_actor& supervisor() const { return sim_job_->supervisor(); }
  /// Steps that the rank has finished in the running program (integer payload only).
  std::int64_t steps_of(std::int32_t rank) const;
  /// Hits of a product's coverage point in all programs so far.
  std::uint64_t marks_hit(coverage_point which) const {
    return simulation_->marks().counts()[static_cast<std::size_t>(which)];
  }
  /// Hits of a coverage point of the test's code.
  std::uint64_t marks_hit(const user_coverage& which) const {
    return simulation_->marks().count_of(which);
  }
  /// The weights in rank 0's result, and those the integer payload must end with.
  std::vector<std::uint64_t> weights() const;
  std::vector<std::uint64_t> reference_weights();
  /// A chart of the notes so far; needs `record`.
  std::string chart() const;

  // --- act ---

  void crash(std::int32_t rank, bool host_too = false) { sim_job_->crash(rank, host_too); }
  /// Holds back the first message of this type between supervisor and rank, in either direction,
  /// for which `which` is true. The rank must be on another host than the supervisor.
  template <class Message>
  std::shared_ptr<held_message> hold(std::int32_t rank,
                                     std::function<bool(const Message&)> which = {}) {
    return hold_if([rank, which](std::int32_t r, bool, const link_message& m) {
      const auto* found = std::get_if<Message>(&m);
      return r == rank && found && (!which || which(*found));
    });
  }
  /// Delivers the held message to its addressee, or (release_to) to another supervisor, such as the
  /// one of a later program.
  void release(const std::shared_ptr<held_message>& what);
  void release_to(const std::shared_ptr<held_message>& what, const supervisor_actor& whom);

private:
  void take(const job_spec& what);
  void kill_program();
  void train_from(std::optional<std::string> checkpoint);
  std::shared_ptr<held_message> hold_if(
      std::function<bool(std::int32_t, bool, const link_message&)> wanted);

  script_options how_;
  std::unique_ptr<simulation> simulation_;
  std::unique_ptr<simulated_job> sim_job_;
  std::shared_ptr<simulated_storage> disk_;
  std::shared_ptr<const checkpoint_io> io_;
  std::vector<std::shared_ptr<held_message>> held_;
  job_spec job_;
  std::unique_ptr<modular_reference> reference_;
  std::vector<std::int64_t> steps_;
};

}  // namespace troupe::testing
