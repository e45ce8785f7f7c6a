// The jobs of the service: a folder per job, found again after a restart.
//
//   FOLDER/jobs/NAME/job.json       the request, and whether a client has stopped the job
//                    journal.jsonl  events and metrics
//                    result.json    written last, by rename: how the job ended
//                    checkpoints/
//   FOLDER/removed/   jobs that a client has removed, until their files are deleted
#pragma once

#include "apps/service/job_spec.hpp"
#include "apps/service/journal.hpp"

#include <troupe/session.hpp>
#include <troupe/trainer.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace service {

/// A request that cannot be met. `status` is that of HTTP.
struct refused : std::runtime_error {
  refused(unsigned s, const std::string& why) : std::runtime_error(why), status(s) {}
  unsigned status;
};

/// One job. For the loop's thread.
struct kept_job {
  explicit kept_job(std::filesystem::path at)
      : folder(std::move(at)), events((folder / "journal.jsonl").string()) {}

  const std::filesystem::path folder;
  nlohmann::json request;
  journal events;
  troupe::job_handle held;
  nlohmann::json result;     ///< an object once the job has ended
  bool running = false;      ///< from the start on until the outcome is known
  bool waits = false;        ///< after a restart of the service: for its turn to be resumed
  bool stop_wanted = false;  ///< by a client: not resumed after a restart
  bool abort_wanted = false;
  std::optional<std::int32_t> ranks_wanted{};  ///< asked for before the run had started
  /// Set when the run ends: the session's outcome, and whether the journal has all events of the
  /// run.
  std::optional<troupe::job_outcome> outcome;
  bool recorded = false;
};
using kept_job_ptr = std::shared_ptr<kept_job>;

/// For the loop's thread. No call waits for a job, a checkpoint or a rank: jobs are started on a
/// thread of their own, because a start reads checkpoints, and folders are deleted on another one.
class job_book {
public:
  /// Finds the jobs in `folder`, and locks it. Throws troupe::user_error: another service has it,
  /// or it cannot be written.
  job_book(boost::asio::io_context& loop, std::filesystem::path folder, std::size_t jobs_max);
  ~job_book();
  job_book(const job_book&) = delete;
  job_book& operator=(const job_book&) = delete;

  /// Resumes the jobs that had not ended when an earlier service ended; those above the limit when
  /// others end.
  void resume_all();
  /// No job is started any more; those that run stop with a checkpoint, and a later service resumes
  /// them. `ended` is called when none is left. A second call aborts them.
  void drain(std::function<void()> ended);
  bool draining() const { return draining_; }

  /// Throw `refused`, or troupe::user_error for what is wrong with the request.
  kept_job& start(const nlohmann::json& request);
  void resume(const std::string& name);
  void stop(const std::string& name, bool now);
  void scale(const std::string& name, std::int32_t ranks);
  /// Forgets a job that does not run, and deletes its folder. The name is free at once.
  void remove(const std::string& name);
  kept_job_ptr find(const std::string& name) const;
  const std::map<std::string, kept_job_ptr>& all() const { return all_; }
  std::size_t running() const;
  /// Folders of jobs whose job.json is missing or damaged, or whose files cannot be read: they are
  /// left as they are.
  const std::vector<std::string>& left_out() const { return left_out_; }

private:
  void resume_waiting();
  void launch(const kept_job_ptr& one);
  void started(const kept_job_ptr& one, const troupe::job_handle& held);
  static void record_result(kept_job& one);
  void ended_if_recorded(const kept_job_ptr& one);
  boost::asio::awaitable<void> record(kept_job_ptr one,
                                      std::shared_ptr<troupe::event_stream> events);
  void check_room() const;
  void delete_later(std::filesystem::path folder);
  std::string fresh_name() const;

  boost::asio::io_context& loop_;
  const std::filesystem::path folder_;
  const std::size_t jobs_max_;
  int lock_ = -1;
  boost::asio::thread_pool starter_{1};
  boost::asio::thread_pool deleter_{1};
  troupe::session session_;
  std::map<std::string, kept_job_ptr> all_;
  std::vector<std::string> left_out_;
  bool draining_ = false;
  bool aborting_ = false;  // asked to drain twice
  std::function<void()> drained_;
};

/// `running`, `finished`, `stopped`, `failed`, `waiting` or `interrupted`.
std::string state_of(const kept_job& one);
/// A job as the API shows it.
nlohmann::ordered_json as_json(const std::string& name, const kept_job& one);

}  // namespace service
