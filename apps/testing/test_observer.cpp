#include "apps/testing/test_observer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

#include "apps/testing/job_run.hpp"
#include "backends/telemetry/metrics_once.hpp"

namespace troupe::testing {

namespace {

constexpr const char* thrown_text = "an observer's own";
constexpr int received_before_throw = 5;
constexpr std::size_t small_queue = 48;
constexpr auto paused_for = std::chrono::milliseconds{1500};
constexpr auto dies_after = std::chrono::milliseconds{100};

// The hooks that one rank handled, and how many of them the observer has received.
struct handled_hooks {
  struct one {
    std::string_view name;
    position at;
    bool received = false;
  };
  std::vector<one> handled;
  std::size_t next = 0;
  std::uint64_t received = 0;
};

// The facts of one attempt, shared by its observer, its trace and the extension.
struct attempt_notes {
  std::map<std::int32_t, handled_hooks> ranks;
  std::vector<seen::lifecycle> announced;
  std::size_t lifecycle = 0;  // received
  std::vector<seen::metrics> rows;
  std::map<std::int64_t, double> logged;  // by step
  std::int64_t began_at = 0;              // steps
  int observations = 0;
  int flushed = 0;
  std::uint64_t dropped = 0;
  bool thrown = false;
  bool moved = false;  // a rank may have ended in one process after it began in another
  std::vector<std::string> wrong;

  void object(std::string what) {
    if (wrong.empty()) wrong.push_back(std::move(what));
  }
};

bool same(const seen::lifecycle& a, const seen::lifecycle& b) {
  return a.event == b.event && a.rank == b.rank && a.generation == b.generation &&
         a.step == b.step && a.details == b.details;
}

class row_keeper final : public observer {
public:
  explicit row_keeper(std::shared_ptr<attempt_notes> notes) : notes_(std::move(notes)) {}
  void on(const observation& what) override {
    notes_->rows.push_back(std::get<seen::metrics>(what));
  }

private:
  std::shared_ptr<attempt_notes> notes_;
};

class listener final : public observer {
public:
  listener(std::shared_ptr<attempt_notes> notes, test_observer how)
      : notes_(std::move(notes)), how_(how), rows_(std::make_unique<row_keeper>(notes_)) {}

  bool wants_hooks() const override { return true; }
  void on(const observation& what) override {
    auto& n = *notes_;
    if (n.flushed > 0) n.object("it received something after its flush");
    if (n.thrown) n.object("it received something after its exception");
    if (const auto* x = std::get_if<seen::hook>(&what)) receive(*x);
    if (const auto* x = std::get_if<seen::lifecycle>(&what)) receive(*x);
    if (std::holds_alternative<seen::metrics>(what)) rows_.on(what);
    if (how_ != test_observer::throws || ++n.observations < received_before_throw) return;
    n.thrown = true;
    throw std::runtime_error(thrown_text);
  }
  void finish(std::uint64_t dropped) override {
    ++notes_->flushed;
    notes_->dropped = dropped;
  }

private:
  void receive(const seen::hook& what) {
    auto& rank = notes_->ranks[what.rank];
    const auto hook = name(what.what);
    const auto at = where(what.what);
    const auto first = notes_->moved ? 0 : rank.next;
    const auto found = std::find_if(
        rank.handled.begin() + static_cast<std::ptrdiff_t>(first), rank.handled.end(),
        [&](const auto& one) { return !one.received && one.name == hook && one.at == at; });
    if (found == rank.handled.end())
      return notes_->object(
          fmt::format("{} of rank {} at step {} was not handled then", hook, what.rank, at.step));
    found->received = true;
    rank.next = static_cast<std::size_t>(found - rank.handled.begin()) + 1;
    ++rank.received;
  }
  void receive(const seen::lifecycle& what) {
    auto& n = *notes_;
    if (n.lifecycle >= n.announced.size() || !same(what, n.announced[n.lifecycle]))
      n.object(fmt::format("lifecycle event {} is out of order", to_string(what.event)));
    ++n.lifecycle;
  }

  std::shared_ptr<attempt_notes> notes_;
  test_observer how_;
  metrics_once rows_;
};

class observer_extension final : public extension {
public:
  observer_extension(test_observer how, bool logs) : how_(how), logs_(logs) {}

  void prepares(simulation& in, simulated_job& sim_job, job& what) override {
    notes_ = std::make_shared<attempt_notes>();
    const auto notes = notes_;
    if (what.resume)
      notes->began_at =
          step_of_checkpoint_folder(std::filesystem::path{*what.resume}.filename().string());
    what.trace = [notes](std::int32_t rank, const hook& h) {
      notes->ranks[rank].handled.push_back({name(h), where(h)});
    };
    what.observers.push_back(
        [notes, how = how_] { return std::make_unique<listener>(notes, how); });
    sim_job.observations =
        how_ == test_observer::slow ? small_queue : observation_queue::limit_default;
    sim_job.before_start = [notes](supervisor_setup& setup) {
      setup.announced = [notes, also = std::move(setup.announced)](const seen::lifecycle& life) {
        notes->announced.push_back(life);
        // A process may have asked to leave before the failure that closes the generation.
        notes->moved = notes->moved || life.event == lifecycle_kind::generation_closing;
        if (also) also(life);
      };
    };
    sim_job.observer_came = [this, &in](simulation::node_id where) {
      if (how_ == test_observer::slow) in.pause(where, in.time() + paused_for);
      if (how_ == test_observer::dead) in.at(0, dies_after, [&in, where] { in.crash(where); });
    };
  }
  void stepped(const finished_step& what, const complain_fn& complain) override {
    // A step that ends in NaN fails, and is done again.
    if (what.state && !what.state->is_nan()) notes_->logged[what.step] = logged_value(what.digest);
    report(complain);
  }
  void ended(const job_outcome& outcome, const complain_fn& complain) override {
    look_at_end(outcome);
    report(complain);
    if (logs_) look_at_queue(outcome, complain);
    if (logs_ && was_flushed(outcome)) look_at_rows(outcome.loop.steps, complain);
  }

private:
  void report(const complain_fn& complain) {
    for (auto& text : std::exchange(notes_->wrong, {})) complain({observer_oracle, text});
  }

  void look_at_end(const job_outcome& outcome) {
    auto& n = *notes_;
    const auto late =
        std::ranges::count_if(outcome.late, [](const failure& f) { return f.hook == "observer"; });
    if (!was_flushed(outcome)) return;
    if (late != (n.thrown ? 1 : 0)) n.object(fmt::format("{} exceptions were reported", late));
    if (n.thrown) return;
    if (n.flushed != 1) n.object(fmt::format("it was flushed {} times", n.flushed));
    // Announcements after that, such as a late stop, may or may not be received.
    const auto last =
        std::ranges::find(n.announced, lifecycle_kind::job_ended, &seen::lifecycle::event);
    const auto must = std::min<std::size_t>(last - n.announced.begin() + 1, n.announced.size());
    if (n.lifecycle < must)
      n.object(fmt::format("of {} lifecycle events it did not receive {}", must,
                           to_string(n.announced[n.lifecycle].event)));
    // After a restart, losses are not checked: a dead rank's unsent observations are lost.
    if (outcome.status == job_outcome::ending::finished && outcome.survivors.empty() &&
        outcome.late.empty() && outcome.restarts == 0)
      look_at_losses();
  }

  // If it was abandoned, another oracle checks why.
  bool was_flushed(const job_outcome& outcome) const {
    return how_ != test_observer::dead &&
           std::ranges::find(outcome.survivors, "observer: still flushing") ==
               outcome.survivors.end();
  }

  void look_at_rows(std::int64_t committed, const complain_fn& complain) const {
    if (how_ == test_observer::throws) return;
    auto next = notes_->began_at + 1;
    for (const auto& row : notes_->rows) {
      const auto value = row.logged.at(logged_state);
      if (row.at.step != next)
        return complain({rows_oracle, fmt::format("the row of step {} comes after that of step {}",
                                                  row.at.step, next - 1)});
      if (value != notes_->logged.at(next))
        return complain({rows_oracle, "the row has another value", next});
      ++next;
    }
    if (next <= committed)
      complain({rows_oracle, fmt::format("the rows from step {} on are missing", next), committed});
  }

  // A rank 0 that was lost may have taken values along.
  void look_at_queue(const job_outcome& outcome, const complain_fn& complain) const {
    auto last = notes_->began_at;
    for (const auto& one : outcome.queue) {
      const auto step = *one.get_if<std::int64_t>();
      if (step <= last || (outcome.restarts == 0 && step != last + 1))
        return complain({queue_oracle, fmt::format("the value of step {} comes after that of step "
                                                   "{}",
                                                   step, last)});
      last = step;
    }
    if (outcome.ok() && outcome.restarts == 0 && last != outcome.loop.steps)
      complain({queue_oracle, "the last value is missing", outcome.loop.steps});
  }

  void look_at_losses() {
    std::uint64_t missing = 0;
    for (const auto& [rank, of] : notes_->ranks) missing += of.handled.size() - of.received;
    if (missing > notes_->dropped)
      notes_->object(
          fmt::format("{} hooks were dropped, but {} are counted", missing, notes_->dropped));
  }

  const test_observer how_;
  const bool logs_;
  std::shared_ptr<attempt_notes> notes_;
};

}  // namespace

std::string_view to_string(test_observer w) {
  switch (w) {
    case test_observer::none: return "none";
    case test_observer::receives: return "receives";
    case test_observer::slow: return "slow";
    case test_observer::throws: return "throws";
    case test_observer::dead: return "dead";
  }
  return "?";
}

extension_fn observed_by(test_observer how, bool logs) {
  return [how, logs] { return std::make_unique<observer_extension>(how, logs); };
}

}  // namespace troupe::testing
