// One job in a world of its own, driven by hand: what a test of one interleaving needs. The program
// that runs the job can be started again, as an operator would.
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
  path_faults path;  ///< what links do to frames
  /// Null: the simulated disk's own format.
  std::shared_ptr<const checkpoint_io> checkpoints;
  bool record = false;               ///< keep notes, for chart()
  std::vector<user_coverage> marks;  ///< of the test's own code
};

/// A message that was stopped at the door of its receiver: it has crossed the link, and nobody has
/// heard it.
class held_message {
public:
  bool caught() const { return what_.has_value(); }
  /// The message. Throws internal_error before it was caught.
  template <class Message>
  const Message& as() const {
    return content().get_as<Message>(0);
  }

private:
  friend class scripted_simulation;
  const caf::message& content() const;
  std::function<bool(std::int32_t rank, bool to_supervisor, const caf::message& what)> wanted_;
  std::optional<caf::message> what_;
  caf::strong_actor_ptr to_;
};

/// Thread-compatible. Every wait has a bound of `events_max` events, behind which it says so.
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

  /// A field job, saved in the folder "run". Each call is a new program; one that still runs is
  /// killed.
  void train(const job_spec& what);
  /// The operator starts the field job again, from its newest good checkpoint, or from nothing.
  void train_again();
  /// A job with a learner of the test's own.
  void begin(job what);

  // --- go on ---

  /// Until `there` holds (true), or nothing is left to do or the job has ended (false).
  bool run_until(const std::function<bool()>& there);
  /// To the job's end. Throws internal_error when there is none.
  const job_outcome& run();
  /// Begins the job and runs it to its end, then until nothing is left to do. `at_event` is called
  /// before each event with the number of those so far.
  const job_outcome& run(
      job what, const std::function<void(std::uint64_t, const supervisor_actor&)>& at_event = {});
  /// Until nothing is left to do at all.
  void settle();

  // --- look ---

  const supervisor_actor& supervisor() const { return sim_job_->supervisor(); }
  /// Steps that the rank has finished in the program that runs (a field job's).
  std::int64_t steps_of(std::int32_t rank) const;
  /// How often product code has said so (coverage.hpp), in all programs so far.
  std::uint64_t marks_hit(coverage_point which) const {
    return simulation_->marks().counts()[static_cast<std::size_t>(which)];
  }
  /// The same of a mark of the test's own.
  std::uint64_t marks_hit(const user_coverage& which) const {
    return simulation_->marks().count_of(which);
  }
  /// What rank 0 brought home, and what a field job must bring home.
  std::vector<std::uint64_t> weights() const;
  std::vector<std::uint64_t> reference_weights();
  /// The notes so far as a chart; needs `record`.
  std::string chart() const;

  // --- act ---

  void crash(std::int32_t rank, bool host_too = false) { sim_job_->crash(rank, host_too); }
  /// Stops the first message of this type between the supervisor and the rank, in either direction,
  /// for which `which` holds. The rank must live on a host of its own.
  template <class Message>
  std::shared_ptr<held_message> hold(std::int32_t rank,
                                     std::function<bool(const Message&)> which = {}) {
    return hold_if([rank, which](std::int32_t r, bool, const caf::message& m) {
      return r == rank && m.match_elements<Message>() && (!which || which(m.get_as<Message>(0)));
    });
  }
  /// Lets it be heard, by whom it was for, or by somebody else (a supervisor of today hears a word
  /// of yesterday).
  void release(const std::shared_ptr<held_message>& what);
  void release_to(const std::shared_ptr<held_message>& what, const supervisor_actor& whom);

private:
  std::shared_ptr<held_message> hold_if(
      std::function<bool(std::int32_t, bool, const caf::message&)> wanted);

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
