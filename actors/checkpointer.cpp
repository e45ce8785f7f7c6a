#include "actors/checkpointer.hpp"

#include "actors/checkpoint_machine.hpp"
#include "backends/checkpoint_facts.hpp"
#include "backends/storage_path.hpp"
#include "troupe/detail/coverage.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace troupe {

namespace {

// One operation of the storage, which may be a user's own. Keeps the checkpointer alive until the
// answer, and never longer than it lives. The first answer counts. If every copy of `done` is
// destroyed without a call, the operation has failed.
class awaited_operation {
public:
  // `then` is called after a success, on the thread that answers. It returns why it failed.
  awaited_operation(std::uint64_t number, std::string path, checkpointer_actor who,
                    std::function<std::string()> then)
      : number_(number), path_(std::move(path)), who_(std::move(who)), then_(std::move(then)) {}
  ~awaited_operation() {
    fail(
        "the storage has dropped an operation without an answer: storage::submit must see to it "
        "that `done` is called");
  }
  awaited_operation(const awaited_operation&) = delete;
  awaited_operation& operator=(const awaited_operation&) = delete;

  void answer(storage_result result) {
    const auto to = take();
    if (!to) return;
    if (!result.error && then_) {
      result.text = then_();
      if (!result.text.empty()) result.error = std::make_error_code(std::errc::io_error);
    }
    if (!result.error)
      result.text.clear();
    else if (result.text.empty())
      result.text = fmt::format("{}: {}", path_, result.error.message());
    caf::anon_send(
        to, storage_answered{number_, std::make_shared<const storage_answer>(std::move(result))});
  }
  void fail(std::string why) {
    storage_result result;
    result.error = std::make_error_code(std::errc::io_error);
    result.text = std::move(why);
    answer(std::move(result));
  }
  // An answer that comes later has no receiver.
  checkpointer_actor take() {
    const std::lock_guard lock{guard_};
    return std::exchange(who_, nullptr);
  }

private:
  const std::uint64_t number_;
  const std::string path_;
  std::mutex guard_;
  checkpointer_actor who_;
  const std::function<std::string()> then_;
};

// Whether the run goes on from a checkpoint of its own folder, and from which.
std::optional<std::int64_t> resumed_step(const job& what, const std::string& folder) {
  if (!what.resume) return std::nullopt;
  auto path = std::filesystem::path{*what.resume}.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const auto step = step_of_checkpoint_folder(path.filename().string());
  if (step < 0 || path.parent_path() != std::filesystem::path{folder}.lexically_normal())
    return std::nullopt;
  return step;
}

// Why `part`, which may be a user's own, has failed. Called where its exception is caught.
std::string reason_of(std::string_view part) {
  try {
    throw;
  } catch (const std::exception& error) {
    if (const std::string text = error.what(); !text.empty()) return text;
    return fmt::format("{} failed and gave no reason", part);
  } catch (...) {
    const auto record = describe(std::current_exception());
    return fmt::format("{} threw {}: {}", part, record.type, record.what);
  }
}

std::string reason_of_format() { return reason_of("its checkpoint IO"); }

// What the format keeps elsewhere goes with its folder. Returns why it did not.
std::string remove_in_format(const checkpoint_io& io, const std::string& folder) {
  try {
    io.remove(folder);
    return {};
  } catch (...) {
    return fmt::format("{}: the checkpoint IO has not removed it: {}", folder, reason_of_format());
  }
}

struct checkpointer_state {
  static constexpr const char* name = "checkpointer";

  checkpointer_actor::pointer self = nullptr;
  job_id mine;
  std::shared_ptr<const checkpoint_io> io;
  std::shared_ptr<storage> files;
  caf::actor_addr supervisor;  // weak: the supervisor holds its checkpointer
  checkpoint_policy policy;
  std::optional<checkpoint_machine> machine;
  std::map<std::uint64_t, snapshot_ptr> held;  // by ticket
  std::uint64_t tickets = 0;
  std::uint64_t generation = 0;       // of the newest snapshot
  std::vector<checkpoint_file> open;  // the files of the one being written
  std::uint64_t open_ticket = 0;
  std::string retiring;          // a folder that is not kept, or the one of a leftover
  std::set<std::string> listed;  // names in the run's folder of checkpoints, at the start
  std::weak_ptr<awaited_operation> waiting;  // the newest one
  std::shared_ptr<const void> claim;         // on the folder

  ~checkpointer_state() {
    if (const auto last = waiting.lock()) last->take();
  }

  void offer(const write_checkpoint& m);
  void answered(const storage_answered& m);
  void feed(const checkpointing::event& e);
  void report(checkpoint_report what);
  storage_op port_operation(const checkpointing::operation& what) const;
  std::string left_of(const checkpointing::operation& what) const;

  void carry_out(const checkpointing::open& a);
  void carry_out(const checkpointing::drop& a);
  void carry_out(const checkpointing::store& a);
  void carry_out(const checkpointing::written& a);
  void carry_out(const checkpointing::found& a);
  void carry_out(const checkpointing::failed& a);
  void carry_out(const checkpointing::flushed& a);
};

void checkpointer_state::feed(const checkpointing::event& e) {
  for (const auto& a : machine->on(e)) std::visit([this](const auto& what) { carry_out(what); }, a);
}

void checkpointer_state::offer(const write_checkpoint& m) {
  if (sometimes(m.at.job != mine, coverage_point::snapshot_of_other_job)) return;
  if (!m.what) throw internal_error("checkpointer: a snapshot that is none");
  const auto monitor = monitored_by(policy.monitor, m.what->loop);
  generation = std::max(generation, m.at.generation.value());
  held[++tickets] = m.what;
  feed(checkpointing::offered{tickets, m.what->loop.steps, m.at.generation, m.must,
                              monitor.has_value(), monitor.value_or(0), m.skipped});
}

void checkpointer_state::carry_out(const checkpointing::open& a) {
  checkpointing::opened e;
  open_ticket = a.ticket;
  try {
    if (rare(coverage_point::checkpoint_refused))
      throw user_error(errc::checkpoint, "it was refused");
    open = files_of(*io, *held.at(a.ticket));
    for (const auto& file : open) e.files.push_back(file.name);
  } catch (...) {
    e.why = reason_of_format();
  }
  feed(e);
}

void checkpointer_state::carry_out(const checkpointing::drop& a) {
  held.erase(a.ticket);
  if (a.ticket == open_ticket) open.clear();
}

storage_op checkpointer_state::port_operation(const checkpointing::operation& what) const {
  return std::visit(
      [this](const auto& x) -> storage_op {
        if constexpr (std::is_same_v<decltype(x), const checkpointing::write_file&>)
          return storage_ops::write{x.path, open.at(x.file).chunks};
        else
          return x;
      },
      what);
}

// A leftover `.step-N.tmp` is what a crash or a failed write left of `step-N`. Empty: of none, or
// of one that is there.
std::string checkpointer_state::left_of(const checkpointing::operation& what) const {
  const auto* removes = std::get_if<storage_ops::remove>(&what);
  if (!removes) return {};
  const std::filesystem::path hidden{removes->path};
  auto name = hidden.stem().string();
  name.erase(0, 1);
  const auto step = step_of_checkpoint_folder(name);
  const auto written = std::ranges::find(machine->kept(), step, &kept_checkpoint::step);
  if (step < 0 || listed.contains(name) || written != machine->kept().end()) return {};
  return (hidden.parent_path() / name).string();
}

void checkpointer_state::carry_out(const checkpointing::store& a) {
  using checkpointing::phase;
  const auto now_in = machine->phase();
  const bool retires = now_in == phase::retiring;
  if (const auto* renames = std::get_if<storage_ops::rename>(&a.what); renames && retires)
    retiring = renames->from;
  const bool clears = now_in == phase::sweeping || now_in == phase::undoing;
  if (clears) retiring = left_of(a.what);
  std::function<std::string()> then;
  if ((retires || clears) && !retiring.empty() &&
      std::holds_alternative<storage_ops::remove>(a.what)) {
    listed.erase(std::filesystem::path{retiring}.filename().string());
    then = [io = io, folder = retiring] { return remove_in_format(*io, folder); };
  }
  auto op = port_operation(a.what);
  auto now = std::make_shared<awaited_operation>(a.number, storage_path(op),
                                                 checkpointer_actor{self}, std::move(then));
  waiting = now;
  try {
    files->submit(std::move(op), [now](storage_result result) { now->answer(std::move(result)); });
  } catch (...) {
    now->fail("storage::submit: " + reason_of("it"));
  }
}

void checkpointer_state::answered(const storage_answered& m) {
  checkpointing::answered e;
  e.number = m.id;
  e.text = m.what->text;
  e.missing = m.what->error == std::errc::no_such_file_or_directory;
  e.names = m.what->names;
  if (machine->phase() == checkpointing::phase::listing) listed = {e.names.begin(), e.names.end()};
  if (m.what->bytes) {
    try {
      const auto monitor = monitored_by(policy.monitor, io->facts(*m.what->bytes, "manifest").loop);
      e.has_monitor = monitor.has_value();
      e.monitor = monitor.value_or(0);
    } catch (...) {
      e.text = reason_of_format();
    }
  }
  feed(e);
}

void checkpointer_state::report(checkpoint_report what) {
  if (const auto to = caf::actor_cast<supervisor_actor>(supervisor)) self->send(to, what);
}

void checkpointer_state::carry_out(const checkpointing::written& a) {
  report({a.step, a.path, a.best, nullptr, a.behind, a.skipped, false, held.at(open_ticket)->loop});
}

void checkpointer_state::carry_out(const checkpointing::found& a) {
  report({undefined, {}, a.best, nullptr});
}

void checkpointer_state::carry_out(const checkpointing::failed& a) {
  auto why = std::make_shared<caught>();
  why->original = std::make_exception_ptr(user_error(errc::checkpoint, a.text));
  why->record = describe(why->original);
  const bool removal = a.what == checkpointing::failure_of::removal;
  why->record.hook = removal ? "remove_checkpoint" : "save_checkpoint";
  why->record.step = a.step;
  why->record.generation = generation;
  checkpoint_report what;
  what.step = a.step;
  what.why = std::move(why);
  what.fatal = a.what == checkpointing::failure_of::folder;
  report(std::move(what));
}

void checkpointer_state::carry_out(const checkpointing::flushed& a) {
  if (const auto to = caf::actor_cast<supervisor_actor>(supervisor))
    self->send(to, flushed{"checkpointer", {}, a.lost});
  self->quit();
}

using checkpointer_pointer = checkpointer_actor::stateful_pointer<checkpointer_state>;

}  // namespace

spawn_checkpointer_fn checkpointers(std::shared_ptr<const checkpoint_io> io,
                                    std::shared_ptr<const void> claim) {
  return [io = std::move(io), claim = std::move(claim)](
             caf::actor_system& system, actor_error_handler trouble, job_id id, const job& what,
             std::shared_ptr<storage> files, supervisor_actor supervisor) mutable {
    auto of_first = std::make_shared<std::shared_ptr<const void>>(std::exchange(claim, nullptr));
    const auto folder = (std::filesystem::path{what.run_folder} / checkpoints_folder).string();
    checkpoint_machine::settings settings{what.options.checkpoint, folder, io->commit_file(),
                                          resumed_step(what, folder)};
    return seam::spawn<checkpointer_actor, checkpointer_state>(
        system, std::move(trouble),
        [=, weak = supervisor.address(), of_first = std::move(of_first)](
            checkpointer_pointer self) -> seam::one_way_handlers<checkpointer_actor> {
          auto& s = self->state;
          s.self = self;
          s.mine = id;
          s.io = io;
          s.files = files;
          s.supervisor = weak;
          s.policy = settings.policy;
          s.claim = std::move(*of_first);
          s.machine.emplace(settings);
          s.feed(checkpointing::begin{});
          return {
              [&s](const write_checkpoint& m) { s.offer(m); },
              [&s](const step_committed& m) {
                s.feed(checkpointing::committed{m.at.generation, m.at.step.value()});
              },
              [&s](const storage_answered& m) { s.answered(m); },
              [&s](const flush&) { s.feed(checkpointing::flush{}); },
          };
        });
  };
}

}  // namespace troupe
