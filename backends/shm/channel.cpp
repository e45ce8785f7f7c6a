#include "backends/shm/channel.hpp"

#include "backends/shm/member.hpp"

#include <utility>

namespace troupe::shm {

/// The role of the thread that drives the channel, if it was free.
class channel::driving {
public:
  explicit driving(channel& what)
      : what_(what), mine_(!what.driven_.exchange(true, std::memory_order_seq_cst)) {}
  ~driving() {
    if (!mine_) return;
    what_.driven_.store(false, std::memory_order_seq_cst);
    what_.notify_waiters();
  }
  driving(const driving&) = delete;
  driving& operator=(const driving&) = delete;
  explicit operator bool() const { return mine_; }

private:
  channel& what_;
  const bool mine_;
};

channel::channel(member& of, std::size_t index, std::vector<std::int32_t> members)
    : member_(of),
      index_(index),
      members_(std::move(members)),
      self_(place_among(members_, of.rank())) {}

std::shared_ptr<operation> channel::submit(std::shared_ptr<channel> keep, submission what,
                                           std::chrono::nanoseconds deadline) {
  const auto number = submitted_;
  if (!member_.aborted())
    collectives::check_in_flight(what.call, open_.load(std::memory_order_relaxed));
  ++submitted_;
  member_.memory().rank(member_.rank()).core.here();
  auto next = std::make_shared<operation>(std::move(keep), std::move(what), number, deadline);
  seat_of(self_).submitted.store(number + 1, std::memory_order_seq_cst);
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (m != self_ && member_.departed(members_[m]) && seat_of(m).submitted.load() <= number)
      member_.abort(collectives::closed_before(next->what.call, member_.name_of(members_[m])));
  if (!begin_at_once(next)) {
    {
      const std::lock_guard hold{mutex_};
      queue_.push_back(next);
    }
    open_.fetch_add(1, std::memory_order_seq_cst);
    drive();
  }
  if (!idle()) member_.call_progress_thread();
  // Fast path: the last rank to arrive completes the operation here, and needs no deadline.
  if (deadline.count() > 0 && next->how.pending())
    next->until = shared_bell::clock::now() + deadline;
  return next;
}

// Bypasses the queue; only the lane adds to it, so the order is kept.
bool channel::begin_at_once(const std::shared_ptr<operation>& next) {
  const driving role{*this};
  if (!role || head_ || !queue_.empty()) return false;
  open_.fetch_add(1, std::memory_order_seq_cst);
  begin(next);
  advance();
  return true;
}

bool channel::drive() {
  for (;;) {
    bool left = false;
    {
      const driving role{*this};
      if (!role) return true;
      left = advance();
    }
    // Look again: a thread that submitted while the role was taken relies on this thread.
    if (left || idle()) return left;
  }
}

void channel::wait(operation& what) {
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  const collectives::lane_waits mark{member_.waiting};
  auto& bell = member_.bell();
  const auto spin = member_.may_spin(members_);
  while (what.how.pending()) {
    const auto seen = bell.now();
    const driving role{*this};
    if (!role) {
      blocked_.fetch_add(1, std::memory_order_seq_cst);
      bell.wait(seen, spin, std::nullopt,
                [&] { return !what.how.pending() || !driven_.load(std::memory_order_seq_cst); });
      blocked_.fetch_sub(1, std::memory_order_seq_cst);
      continue;
    }
    advance();
    if (what.how.pending() && !look_at_clock(what))
      bell.wait(seen, spin, what.until, [&] { return may_advance(); });
  }
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

void channel::poll(operation& what) {
  drive();
  if (what.deadline.count() == 0 || !what.how.pending()) return;
  const driving role{*this};
  if (role && what.how.pending() && look_at_clock(what)) advance();
}

// Rings only if there are such waiters: a driving thread that sleeps on the same bell must not wake
// itself.
void channel::notify_waiters() {
  if (blocked_.load(std::memory_order_seq_cst) != 0) member_.bell().ring();
}

// The ranks that keep `what` from ending, as far as this rank can see: those that have not
// submitted it.
std::vector<std::int32_t> channel::behind(const operation& what) const {
  std::vector<std::int32_t> late;
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (seat_of(m).submitted.load(std::memory_order_seq_cst) <= what.number)
      late.push_back(members_[m]);
  return late;
}

// In work on registered buffers all members have published the same step, and any of them may have
// claimed what is not done.
void channel::insert_late(rank_set& into) const noexcept {
  const auto here = last_published(self_);
  bool none = true;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (last_published(m) >= here) continue;
    insert(into, members_[m]);
    none = false;
  }
  if (!none) return;
  for (const auto rank : members_) insert(into, rank);
}

bool channel::look_at_clock(operation& what) {
  if (!what.until || shared_bell::clock::now() < *what.until) return false;
  auto late = behind(what);
  if (late.empty()) {  // all have submitted it: now the deadline limits the time without progress
    if (const auto here = position(); here != what.come_to) {
      what.come_to = here;
      what.until = shared_bell::clock::now() + what.deadline;
      return false;
    }
    for (std::size_t m = 0; head_ && m < members_.size(); ++m) {
      const bool works = member_.memory().rank(members_[m]).touching.load() != 0;
      const bool lags = schedule_.how == form::in_place ? works : !reached(m, base_ + at_);
      if (m != self_ && lags) late.push_back(members_[m]);
    }
    if (late.empty()) return false;
  }
  member_.abort(
      collectives::late(index_, what.number, what.what.call, what.deadline, std::move(late)));
  return true;
}

std::string channel::needed() {
  for (std::uint32_t turn = 0;; ++turn) {
    const driving role{*this};
    if (!role) {
      pause_briefly(turn);
      continue;
    }
    bool open = head_ != nullptr;
    std::string call = head_ ? describe(head_->what.call) : "an operation";
    for (std::size_t m = 0; m < members_.size(); ++m) {
      if (m == self_ || seat_of(m).submitted.load(std::memory_order_seq_cst) <= submitted_)
        continue;
      if (!open && reached(m, base_ + 1)) call = describe(call_of(m));
      open = true;
    }
    if (!open) return {};
    return collectives::closed_in_flight(member_.name_of(member_.rank()), call);
  }
}

}  // namespace troupe::shm
