#include "apps/testing/exhaustive/checkpoint_search.hpp"

#include <fmt/format.h>

#include <deque>
#include <unordered_set>
#include <utility>

#include "apps/testing/exhaustive/checkpoint_state.hpp"
#include "troupe/detail/stable_hash.hpp"
#include "troupe/failure.hpp"

namespace troupe::testing {

namespace {

void check(const checkpoint_search& o) {
  const auto refuse = [](std::string what) {
    throw user_error(errc::bad_usage, "search of checkpoints: " + std::move(what));
  };
  constexpr std::int64_t most = 6;
  if (o.steps < 1 || o.steps > most) refuse(fmt::format("{} steps; it takes 1 to 6", o.steps));
  if (o.past < 0 || o.past > most) refuse(fmt::format("{} steps before; it takes 0 to 6", o.past));
  if (o.resumed < 0 || o.resumed > o.past)
    refuse(fmt::format("it cannot go on from step {} of {}", o.resumed, o.past));
}

class disk_search {
public:
  explicit disk_search(const checkpoint_search& options) : options_(options) {}

  checkpoint_search_report run() {
    add(checkpoint_state{options_, 2, disk_of_the_past(), options_.resumed,
                         fmt::format("a run begins from step {}", options_.resumed)});
    while (!open_.empty() && !stopped()) {
      const auto now = std::move(open_.front());
      open_.pop_front();
      visit(now);
    }
    report_.complete = !stopped();
    return std::move(report_);
  }

private:
  bool stopped() const { return report_.violation || report_.states > options_.states_max; }

  bool holds(const checkpoint_state& w) {
    if (w.wrong().empty()) return true;
    if (!report_.violation) report_.violation = w.wrong() + "\n" + w.way();
    return false;
  }

  simulated_disk disk_of_the_past() {
    checkpoint_search all;
    all.keep_last = static_cast<std::int32_t>(options_.past);
    simulated_disk disk;
    for (std::int64_t step = 0; step < options_.past && !report_.violation; ++step) {
      checkpoint_state run{all, 1, std::move(disk), step, "an earlier run"};
      run.take_next_step();
      while (run.next_operation()) run.make(checkpoint_move::answer);
      run.check_next_step();
      holds(run);
      disk = run.disk();
    }
    return disk;
  }

  void add(checkpoint_state w) {
    if (!holds(w) || !visited_.insert(w.digest()).second) return;
    ++report_.states;
    open_.push_back(std::move(w));
  }

  void visit(const checkpoint_state& now) {
    auto late = now;
    late.receive_late();
    if (!holds(late)) return;
    if (options_.crashes && crashed_.insert(now.crash_digest()).second)
      crash(now, 256,
            [&](const simulated_disk& left, std::uint64_t alike, bool killed,
                const std::string& how) {
              look(now, left, how);
              if (!report_.violation && resumed_.insert(alike).second)
                resume(now, left, killed, how);
            });
    if (report_.violation) return;
    now.moves(moves_);
    if (moves_.empty()) {
      ++report_.ends;
      late.check_end();
      holds(late);
      return;
    }
    for (const auto move : moves_) {
      auto next = now;
      next.make(move);
      add(std::move(next));
      if (report_.violation) return;
    }
  }

  // Kills the program after each call of the operation in flight, or removes power there with each
  // subset of the changes that are not durable, or `subsets` drawn ones. `seen(disk, alike, killed,
  // how)`: `alike` is equal for disks between which no run can find a difference.
  template <class Seen>
  void crash(const checkpoint_state& now, std::uint64_t subsets, Seen seen) {
    const auto operation = now.next_operation();
    bool all_done = false;
    for (std::size_t calls = 0; !all_done && !report_.violation; ++calls) {
      auto disk = now.disk();
      all_done = !operation || disk.perform_part(*operation, calls);
      const auto where = operation ? fmt::format(" after {} calls of what is in flight", calls)
                                   : std::string{" while nothing is in flight"};
      stable_hasher lost;
      const bool drawn = disk.pending() >= 64 || std::uint64_t{1} << disk.pending() > subsets;
      const auto count = drawn ? subsets : std::uint64_t{1} << disk.pending();
      for (std::uint64_t i = 0; i < count && !report_.violation; ++i) {
        const auto left =
            disk.after_power_loss(drawn && i > 0 ? stable_hasher{}.add(i).digest() : i);
        const auto alike = left.digest();
        lost.add(alike);
        seen(left, alike, false, "power is lost" + where);
      }
      // Disks with different pending changes are alike only if every possible loss was looked at.
      if (drawn) lost.add(now.crash_digest()).add(calls);
      seen(disk, lost.add(disk.digest()).digest(), true, "the program is killed" + where);
    }
  }

  void look(checkpoint_state seen, const simulated_disk& left, const std::string& how) {
    ++report_.crashes;
    seen.look_at(left, how);
    holds(seen);
  }

  // A new run removes what the crash left and writes its first checkpoint. After a killed program,
  // part of the checkpoint that it resumes from is not durable, and power may still be lost.
  void resume(const checkpoint_state& before, const simulated_disk& left, bool killed,
              const std::string& how) {
    ++report_.resumes;
    const auto from = resolved(left);
    checkpoint_state next{options_, before.run() + 1, left, from ? from->step : 0,
                          from ? "a new run goes on from " + to_string(*from) : "a new run begins"};
    next.take_next_step();
    while (next.next_operation() && holds(next) && !report_.violation) {
      if (killed)
        crash(next, 16,
              [&](const simulated_disk& again, std::uint64_t, bool, const std::string& at) {
                const auto of = resolved(again);
                const bool newest = next.has_written() || (of && of->run == next.run());
                look(newest ? next : before, again, "then " + at);
              });
      next.make(checkpoint_move::answer);
    }
    next.check_next_step();
    if (!holds(next) || report_.violation)
      *report_.violation += fmt::format("\nbehind this:\n{}\n  {}", before.way(), how);
  }

  const checkpoint_search& options_;
  checkpoint_search_report report_;
  std::unordered_set<std::uint64_t> visited_, crashed_, resumed_;
  std::deque<checkpoint_state> open_;
  std::vector<checkpoint_move> moves_;
};

}  // namespace

checkpoint_search_report search_checkpoints(const checkpoint_search& options) {
  check(options);
  return disk_search{options}.run();
}

}  // namespace troupe::testing
