#include "apps/service/job_book.hpp"

#include "apps/command_line/descriptors.hpp"
#include "apps/service/models.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

namespace service {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;
using troupe::job_outcome;

namespace {

// By rename, so that a crash leaves the old file or the new one.
void write_file(const fs::path& path, const json& what) {
  const auto fresh = path.string() + ".new";
  std::ofstream out{fresh};
  out << what.dump(2, ' ', false, json::error_handler_t::replace) << '\n';
  out.close();
  if (!out)
    throw refused(507, fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
  std::error_code error;
  fs::rename(fresh, path, error);
  if (error) throw refused(507, fmt::format("cannot write {}: {}", path.string(), error.message()));
}

// Null for what is no file. Throws `refused`: it is there and cannot be opened.
json read_file(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return nullptr;
  std::ifstream in{path};
  if (!in)
    throw refused(507, fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  return json::parse(in, nullptr, false);
}

void save(const kept_job& one, bool stop_wanted) {
  write_file(one.folder / "job.json", {{"request", one.request}, {"stop_wanted", stop_wanted}});
}

bool is_job_file(const json& what) {
  if (!what.is_object()) return false;
  const auto stopped = what.find("stop_wanted");
  return what.value("request", json{}).is_object() &&
         (stopped == what.end() || stopped->is_boolean());
}

// How a job ended, as `result_of` writes it.
bool is_result_file(const json& what) {
  if (!what.is_object()) return false;
  const auto status = what.find("status");
  return status != what.end() &&
         (*status == "finished" || *status == "stopped" || *status == "failed");
}

constexpr const char* asked_twice = "the service was asked twice to end";

bool has_checkpoint(const fs::path& run) {
  std::error_code none;
  for (const auto& one : fs::directory_iterator{run / "checkpoints", none})
    if (one.path().filename().string().starts_with("step-")) return true;
  return false;
}

// Null for what is not known.
json known(std::int64_t number) { return number < 0 ? json(nullptr) : json(number); }
json known(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

// The journal of a job that is to run.
void open_journal(kept_job& one) {
  try {
    one.events.open();
  } catch (const std::system_error& error) {
    throw refused(507, fmt::format("cannot write {}", error.what()));
  }
}

json failure_json(const troupe::failure& what) {
  return {{"kind", to_string(what.kind)}, {"type", what.type},        {"what", what.what},
          {"rank", known(what.rank)},     {"hook", known(what.hook)}, {"step", known(what.step)}};
}

// Not written down: the next service tries again.
void fail(kept_job& one, const std::string& why) {
  troupe::failure what;
  what.what = why;
  one.result = {{"status", "failed"}, {"failure", failure_json(what)}};
  one.events.wake();
}

json result_of(const job_outcome& outcome) {
  json all{{"status", to_string(outcome.status)},
           {"steps", outcome.loop.steps},
           {"epochs", outcome.loop.epoch},
           {"samples", outcome.loop.samples},
           {"generations", outcome.generation},
           {"restarts", outcome.restarts},
           {"metrics", outcome.last},
           {"last_checkpoint", known(outcome.last_checkpoint)},
           {"waiting_share", outcome.waiting_shares},
           {"weights_digest", known(outcome.weights ? outcome.weights->weights_digest : "")},
           {"failure", nullptr}};
  if (outcome.failed_with) all["failure"] = failure_json(outcome.failed_with->record);
  return all;
}

// What the journal keeps of an event; null: nothing.
json line_of(const troupe::observation& what) {
  if (const auto* logged = std::get_if<troupe::seen::metrics>(&what))
    return {{"kind", "metrics"},
            {"step", logged->at.step},
            {"epoch", logged->at.epoch},
            {"values", logged->logged}};
  const auto* life = std::get_if<troupe::seen::lifecycle>(&what);
  if (!life) return nullptr;
  json line{{"kind", "lifecycle"},       {"event", to_string(life->event)},
            {"rank", known(life->rank)}, {"generation", life->generation},
            {"step", known(life->step)}, {"details", life->details}};
  if (life->cause) line["failure"] = failure_json(*life->cause);
  return line;
}

int locked(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder / "jobs", error);
  const auto path = (folder / "lock").string();
  const int file = error ? -1 : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0)
    throw troupe::user_error(troupe::errc::bad_configuration,
                             fmt::format("{}: the folder cannot be written; choose another with "
                                         "--folder",
                                         folder.string()));
  if (troupe::program::lock_alone(file)) return file;
  ::close(file);
  throw troupe::user_error(
      troupe::errc::bad_configuration,
      fmt::format("another service runs in {}: choose another folder with --folder",
                  folder.string()));
}

}  // namespace

job_book::job_book(asio::io_context& loop, fs::path folder, std::size_t jobs_max)
    : loop_(loop),
      folder_(fs::absolute(folder).lexically_normal()),
      jobs_max_(jobs_max),
      lock_(locked(folder_)),
      session_(loop.get_executor()) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator{folder_ / "removed", none})
    delete_later(entry.path());
  for (const auto& entry : fs::directory_iterator{folder_ / "jobs"}) {
    const auto name = entry.path().filename().string();
    if (!entry.is_directory() || !is_job_name(name)) continue;
    json saved, result;
    try {
      saved = read_file(entry.path() / "job.json");
      result = read_file(entry.path() / "result.json");
    } catch (const refused&) {  // a job whose end is not known is not run again
      saved = nullptr;
    }
    if (!is_job_file(saved)) {
      left_out_.push_back(entry.path().string());
      continue;
    }
    auto one = std::make_shared<kept_job>(entry.path());
    one->request = saved["request"];
    one->stop_wanted = saved.value("stop_wanted", false);
    if (is_result_file(result))
      one->result = std::move(result);
    else if (one->stop_wanted) {
      one->result = {{"status", "stopped"}, {"failure", nullptr}};
      record_result(*one);
    }
    all_[name] = std::move(one);
  }
}

job_book::~job_book() {
  deleter_.stop();  // the next service deletes the rest
  starter_.join();
  deleter_.join();
  if (lock_ >= 0) ::close(lock_);
}

void job_book::resume_all() {
  for (const auto& [name, one] : all_) one->waits = one->result.is_null() && !one->running;
  resume_waiting();
}

// In the order of their names.
void job_book::resume_waiting() {
  for (const auto& [name, one] : all_) {
    if (draining_ || running() >= jobs_max_) return;
    if (!std::exchange(one->waits, false)) continue;
    if (!fs::exists(one->folder)) {
      fail(*one, fmt::format("the folder of the job is gone: {}", one->folder.string()));
      continue;
    }
    try {
      open_journal(*one);
    } catch (const refused& error) {
      fail(*one, error.what());
      continue;
    }
    one->events.add("service", {{"event", "resumed"}});
    launch(one);
  }
}

std::size_t job_book::running() const {
  std::size_t count = 0;
  for (const auto& [name, one] : all_) count += one->running;
  return count;
}

void job_book::check_room() const {
  if (draining_) throw refused(503, "the service is shutting down: start the job again later");
  if (running() >= jobs_max_)
    throw refused(
        429, fmt::format("{} jobs run, which is the limit (--jobs): stop one, or wait", running()));
}

std::string job_book::fresh_name() const {
  for (std::size_t n = all_.size() + 1;; ++n)
    if (auto name = fmt::format("job-{}", n);
        !all_.contains(name) && !fs::exists(folder_ / "jobs" / name))
      return name;
}

kept_job& job_book::start(const json& request) {
  job_of(request);  // throws what is wrong with it
  check_room();
  const auto name = request.value("name", fresh_name());
  if (all_.contains(name))
    throw refused(409, fmt::format("there is a job \"{}\": choose another name", name));
  const auto folder = folder_ / "jobs" / name;
  if (fs::exists(folder))  // its checkpoints would be taken for those of the new job
    throw refused(409, fmt::format("{} holds files that are no job of this service: choose another "
                                   "name, or move the folder away",
                                   folder.string()));
  std::error_code full;
  fs::create_directories(folder, full);
  if (full) throw refused(507, fmt::format("cannot make {}: {}", folder.string(), full.message()));
  auto one = std::make_shared<kept_job>(folder);
  one->request = request;
  try {
    save(*one, false);
    open_journal(*one);
  } catch (const refused&) {  // the name stays free
    std::error_code none;
    fs::remove_all(folder, none);
    throw;
  }
  all_[name] = one;
  one->events.add("service", {{"event", "started"}});
  launch(one);
  return *one;
}

void job_book::resume(const std::string& name) {
  const auto one = find(name);
  if (one->running) throw refused(409, fmt::format("the job \"{}\" runs", name));
  if (one->result.is_object() && one->result.value("status", "") == "finished")
    throw refused(409, fmt::format("the job \"{}\" has finished: start another one", name));
  check_room();
  if (!fs::exists(one->folder))
    throw refused(409, fmt::format("the folder of the job \"{}\" is gone: remove the job", name));
  save(*one, false);
  open_journal(*one);
  fs::remove(one->folder / "result.json");
  one->result = nullptr;
  one->stop_wanted = one->abort_wanted = one->waits = false;
  one->events.add("service", {{"event", "resumed"}});
  launch(one);
}

void job_book::launch(const kept_job_ptr& one) {
  one->running = true;
  one->recorded = false;
  one->outcome.reset();
  one->ranks_wanted.reset();
  one->held = {};
  auto events = std::make_shared<troupe::event_stream>(loop_.get_executor());
  asio::co_spawn(loop_, record(one, events), asio::detached);
  // Finding the newest checkpoint reads and verifies it, which may take long.
  asio::post(starter_, [this, one, events, request = one->request] {
    const auto done = [this, one](const job_outcome& outcome) {
      one->outcome = outcome;
      ended_if_recorded(one);
    };
    troupe::job job;
    try {
      job = job_of(request);
      job.recipe = recipe_of(learning_of(request));
    } catch (const std::exception& error) {
      job_outcome failed;
      failed.failed_with = troupe::without_exception(troupe::describe(error));
      events->end();
      return asio::post(loop_, [done, failed] { done(failed); });
    }
    job.run_folder = one->folder.string();
    if (has_checkpoint(one->folder)) job.resume = "latest";
    job.events = events;
    job.started = [this, one](const troupe::job_handle& held) {
      asio::post(loop_, [this, one, held] { started(one, held); });
    };
    session_.async_fit(std::move(job), asio::bind_executor(loop_.get_executor(), done));
  });
}

void job_book::started(const kept_job_ptr& one, const troupe::job_handle& held) {
  one->held = held;
  if (!one->running) return;
  if (one->abort_wanted) return held.abort("a client of the service ended the job at once");
  if (one->stop_wanted) return held.stop();
  if (aborting_) return held.abort(asked_twice);
  if (draining_) return held.stop(troupe::stop_reason::terminate);
  if (one->ranks_wanted) held.scale(*one->ranks_wanted);
}

void job_book::record_result(kept_job& one) {
  try {
    write_file(one.folder / "result.json", one.result);
  } catch (const refused& error) {
    one.events.add("service", {{"event", "trouble"}, {"what", error.what()}});
  }
}

void job_book::ended_if_recorded(const kept_job_ptr& one) {
  if (!one->recorded || !one->outcome) return;
  const auto outcome = *std::exchange(one->outcome, std::nullopt);
  one->running = false;
  // A job that the service itself has stopped goes on with the next service.
  const bool ended_by_us =
      outcome.status == job_outcome::ending::stopped ||
      (outcome.failed_with && outcome.failed_with->record.kind == troupe::failure_kind::aborted);
  if (!draining_ || one->stop_wanted || !ended_by_us) {
    one->result = result_of(outcome);
    record_result(*one);
  }
  one->events.add("service", {{"event", "ended"}, {"status", to_string(outcome.status)}});
  one->events.close();
  resume_waiting();
  if (drained_ && running() == 0) std::exchange(drained_, nullptr)();
}

asio::awaitable<void> job_book::record(kept_job_ptr one,
                                       std::shared_ptr<troupe::event_stream> events) {
  while (const auto event = co_await events->async_next(asio::use_awaitable)) {
    const auto line = line_of(*event);
    if (!line.is_null()) one->events.add(line["kind"], line);
  }
  one->recorded = true;
  ended_if_recorded(one);
}

void job_book::drain(std::function<void()> all_ended) {
  const bool again = aborting_ = std::exchange(draining_, true);
  drained_ = std::move(all_ended);
  for (const auto& [name, one] : all_)
    if (one->running)
      again ? one->held.abort(asked_twice) : one->held.stop(troupe::stop_reason::terminate);
  if (running() == 0) std::exchange(drained_, nullptr)();
}

void job_book::stop(const std::string& name, bool now) {
  const auto one = find(name);
  if (!one->running && !one->waits)
    throw refused(409, fmt::format("the job \"{}\" does not run", name));
  one->stop_wanted = true;
  one->abort_wanted = one->abort_wanted || now;
  try {
    save(*one, true);
  } catch (const refused& error) {  // a full disk does not keep the job from its end
    one->events.add("service", {{"event", "trouble"}, {"what", error.what()}});
  }
  one->events.add("service", {{"event", "stop"}, {"now", now}});
  if (std::exchange(one->waits, false)) {
    one->result = {{"status", "stopped"}, {"failure", nullptr}};
    return record_result(*one);
  }
  now ? one->held.abort("a client of the service ended the job at once") : one->held.stop();
}

void job_book::scale(const std::string& name, std::int32_t ranks) {
  const auto one = find(name);
  if (!one->running) throw refused(409, fmt::format("the job \"{}\" does not run", name));
  const auto options = job_of(one->request).options;
  if (options.placement != troupe::placement_kind::processes)
    throw refused(409, "the ranks are threads: start the job with options.placement processes");
  if (!options.elastic.enabled())
    throw refused(409, "the job has no restarts: start it with options.max_restarts above 0");
  if (ranks > options.ranks)
    throw refused(409, fmt::format("{} ranks are more than the options.ranks of the job, {}", ranks,
                                   options.ranks));
  one->events.add("service", {{"event", "scale"}, {"ranks", ranks}});
  one->ranks_wanted = ranks;
  one->held.scale(ranks);
}

void job_book::remove(const std::string& name) {
  const auto one = find(name);
  if (one->running)
    throw refused(409,
                  fmt::format("the job \"{}\" runs: stop it, and remove it after its end", name));
  // A rename removes the job as a whole. To delete its checkpoints may take long.
  const auto aside = folder_ / "removed";
  auto fresh = aside / name;
  std::error_code error;
  fs::create_directories(aside, error);
  for (int n = 2; fs::exists(fresh, error); ++n) fresh = aside / fmt::format("{}.{}", name, n);
  error.clear();
  fs::rename(one->folder, fresh, error);
  if (error && fs::exists(one->folder))
    throw refused(507, fmt::format("cannot remove {}: {}", one->folder.string(), error.message()));
  all_.erase(name);
  one->waits = false;
  one->events.wake();
  delete_later(fresh);
}

// If the service is killed meanwhile, or a file cannot be removed, the folder stays. The next
// service removes it when it starts.
void job_book::delete_later(fs::path folder) {
  asio::post(deleter_, [folder = std::move(folder)] {
    std::error_code none;
    fs::remove_all(folder, none);
  });
}

kept_job_ptr job_book::find(const std::string& name) const {
  const auto found = all_.find(name);
  if (found == all_.end()) throw refused(404, fmt::format("there is no job \"{}\"", name));
  return found->second;
}

std::string state_of(const kept_job& one) {
  if (!one.running && one.result.is_object()) return one.result.value("status", "failed");
  return one.running ? "running" : one.waits ? "waiting" : "interrupted";
}

ordered_json as_json(const std::string& name, const kept_job& one) {
  return {{"name", name},
          {"state", state_of(one)},
          {"request", one.request},
          {"status",
           one.held ? ordered_json::parse(to_json(one.held.status())) : ordered_json(nullptr)},
          {"events", one.events.newest()},
          {"result", one.result}};
}

}  // namespace service
