#include <fmt/format.h>

#include <condition_variable>
#include <mutex>

#include "backends/torch/replication.hpp"
#include "troupe/replicated.hpp"

namespace troupe {

/// One mutex for all sub-modules of a forward, so that a wait that cannot end is seen at once.
struct copy_round::state {
  struct copy {
    /// Where it waits, and whether that wait can end; null while it computes.
    const replication_context::place* waits = nullptr;
    bool ended = false;
  };
  std::mutex lock;
  std::condition_variable changed;
  std::vector<copy> copies;
  std::chrono::nanoseconds deadline{0};
  std::int64_t failed = -1;
  std::string failure;  ///< of the copy that failed first
  std::string stuck;    ///< why no wait can end any more

  std::string where() const;
  void look_for_the_end();
  void throw_if_over() const;
};

/// One sub-module's exchange. Guarded by the round's lock.
struct replication_context::place {
  explicit place(std::string path_of, std::size_t copies)
      : path(std::move(path_of)), posted(copies), results(copies), calls(copies) {}

  bool ready(std::size_t copy) const {
    return copy == 0 ? arrived == posted.size() : results[copy].has_value();
  }

  std::string path;
  std::vector<std::any> posted;
  std::vector<std::any> results;
  std::vector<std::int64_t> calls;
  std::size_t arrived = 0;
};

std::string copy_round::state::where() const {
  std::string text;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    text += fmt::format("{}copy {} ", i > 0 ? ", " : "", i);
    if (copies[i].ended)
      text += "has ended";
    else if (const auto* at = copies[i].waits)
      text += fmt::format("waits in call {} of `{}`", at->calls[i], at->path);
    else
      text += "computes";
  }
  return text;
}

// No copy computes, and none of those that wait has what it waits for.
void copy_round::state::look_for_the_end() {
  if (!stuck.empty()) return;
  bool any = false;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].ended) continue;
    if (!copies[i].waits || copies[i].waits->ready(i)) return;
    any = true;
  }
  if (any)
    stuck = fmt::format(
        "the copies of a module wait for each other for ever ({}): each copy calls "
        "each sub-module that exchanges something equally often, in the same order",
        where());
}

void copy_round::state::throw_if_over() const {
  if (failed >= 0) end_wait_for_failed_copy(failed, failure);
  if (!stuck.empty()) throw user_error(errc::job_failed, stuck);
}

copy_round::copy_round(std::int64_t copies, std::chrono::nanoseconds deadline)
    : state_(std::make_unique<state>()) {
  state_->copies.resize(static_cast<std::size_t>(copies));
  state_->deadline = deadline;
}

copy_round::~copy_round() = default;

std::int64_t copy_round::copies() const { return static_cast<std::int64_t>(state_->copies.size()); }

void copy_round::end(std::int64_t copy, const std::string& failure) {
  const std::lock_guard held{state_->lock};
  auto& one = state_->copies.at(static_cast<std::size_t>(copy));
  if (std::exchange(one.ended, true)) return;
  if (!failure.empty() && state_->failed < 0 && state_->stuck.empty()) {
    state_->failed = copy;
    state_->failure = failure;
  }
  state_->look_for_the_end();
  state_->changed.notify_all();
}

replication_context::replication_context(std::string path, std::shared_ptr<copy_round> round)
    : path_(std::move(path)),
      round_(std::move(round)),
      place_(std::make_unique<place>(path_, static_cast<std::size_t>(round_->copies()))) {}

replication_context::~replication_context() = default;

std::any replication_context::exchange_any(
    std::int64_t copy, std::any mine,
    const std::function<std::vector<std::any>(std::vector<std::any>)>& combine) {
  const auto i = static_cast<std::size_t>(copy);
  auto& round = *round_->state_;
  auto& here = *place_;
  std::unique_lock held{round.lock};
  ++here.calls.at(i);
  here.posted[i] = std::move(mine);
  ++here.arrived;
  round.copies[i].waits = &here;
  round.look_for_the_end();
  round.changed.notify_all();
  const bool in_time = round.changed.wait_for(held, round.deadline, [&] {
    return here.ready(i) || round.failed >= 0 || !round.stuck.empty();
  });
  if (!in_time && round.stuck.empty()) {
    round.stuck = fmt::format(
        "copies did not arrive within {} ms ({}): let all copies run at the "
        "same time, or set a longer deadline",
        round.deadline / std::chrono::milliseconds{1}, round.where());
    round.changed.notify_all();
  }
  if (!here.ready(i)) round.throw_if_over();
  round.copies[i].waits = nullptr;
  if (i > 0) return std::exchange(here.results[i], {});
  here.arrived = 0;
  auto posted = std::exchange(here.posted, std::vector<std::any>(here.posted.size()));
  held.unlock();
  auto results = combine(std::move(posted));
  if (results.size() != here.posted.size())
    throw internal_error("an exchange of copies has one result for each copy");
  held.lock();
  for (std::size_t other = 1; other < results.size(); ++other)
    here.results[other] = std::move(results[other]);
  round.changed.notify_all();
  return std::move(results[0]);
}

}  // namespace troupe
