// The processes in which the ranks of a job live, for the supervisor that starts them and for the
// proxies of the ranks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actors/time_knob.hpp"
#include "backends/launcher.hpp"
#include "backends/remote_trace.hpp"
#include "messages/interfaces.hpp"
#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

namespace troupe {

/// One process, and the link to it. Thread-safe.
class job_process {
public:
  virtual ~job_process() = default;

  /// A rank lives there from now on: `sink.received` gets its messages, and `sink.ended` is called
  /// once when the process has ended, at once if it has. Both run on a thread of the launcher and
  /// must not wait.
  virtual void add(incarnation_id rank, process_sink sink) = 0;
  /// The rank has ended there, and its sink is not called any more unless the process is ending.
  /// True: the process ends, because no other rank is to live there.
  virtual bool remove(incarnation_id rank) = 0;
  virtual void send(link_message what) = 0;
  /// Kills it. Its end counts as clean.
  virtual void kill() = 0;
  /// See rank_process::progress.
  virtual std::int64_t progress() const = 0;
  /// See rank_process::snapshot_bytes.
  virtual std::int64_t snapshot_bytes() const = 0;
  /// True once the process has sent a message. From then on orders reach it without delay.
  virtual bool ready() const = 0;
};

/// Thread-safe. Destruction kills the processes that are left.
class job_processes {
public:
  /// Throws user_error: there is no usable launcher (bad_configuration), or no usable communicator
  /// between processes with the wanted name (device), or the launcher's processes have ended but
  /// for fewer than elastic.min_ranks (membership).
  job_processes(const ports& world, job_id id, const job& what);
  ~job_processes();

  /// Starts process `number`, a new one; a `spare` loads what ranks of the job will need.
  /// `supervisor` is sent process_changed when the process is ready, when a spare is warm, and when
  /// the process wants to leave, or has ended, the reason why it could not be started included.
  void start(std::int32_t number, bool spare, const supervisor_actor& supervisor);
  /// No further rank is started there: the process ends with the last of its ranks, and is killed
  /// when that takes long. A child that never had one is killed at once.
  void end(std::int32_t number);
  /// The process `number`, which `start` has started.
  std::shared_ptr<job_process> at(std::int32_t number) const;

  /// Where the ranks of the job find each other.
  const rendezvous_info& meets() const;
  /// Where hooks of the processes are traced.
  const std::shared_ptr<trace_queue>& trace() const { return trace_; }
  /// rank_launcher::placed.
  std::optional<placed_processes> placed() const;

private:
  class one;

  job_id id_;
  std::int32_t world_;
  deadlines limits_;
  std::shared_ptr<entropy> random_;
  std::shared_ptr<rank_launcher> launcher_;
  std::shared_ptr<const rendezvous> place_;
  rendezvous_info meets_;  // of place_, as descriptors_
  std::vector<int> descriptors_;
  recipe_ptr recipe_;
  warm_up needs_;
  std::shared_ptr<trace_queue> trace_;
  mutable std::mutex guard_;
  std::map<std::int32_t, std::shared_ptr<one>> all_;  // that have not been ended by the supervisor
};

}  // namespace troupe
