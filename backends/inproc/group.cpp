#include "backends/inproc/group.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::inproc {

namespace {

// Operations that one rank may be ahead of another. Training is ahead by the buckets of one step.
constexpr std::size_t window_max = 4096;

std::vector<called> calls_of(const channel& in, const operation& what) {
  std::vector<called> calls;
  for (std::size_t i = 0; i < in.members.size(); ++i)
    if (what.seats()[i].arrived) calls.push_back({in.members[i], what.seats()[i].call});
  return calls;
}

}  // namespace

std::size_t channel::member(std::int32_t rank) const { return place_among(members, rank); }

std::shared_ptr<operation> channel::renewed() {
  if (!spare) return std::make_shared<operation>(members.size());
  spare->renew();
  return std::move(spare);
}

/// Says from outside that a rank is inside of wait(), as long as it lives.
class marked_as_waiting {
public:
  explicit marked_as_waiting(std::atomic<bool>& flag) : flag_(flag) {
    flag_.store(true, std::memory_order_relaxed);
  }
  ~marked_as_waiting() { flag_.store(false, std::memory_order_relaxed); }
  marked_as_waiting(const marked_as_waiting&) = delete;
  marked_as_waiting& operator=(const marked_as_waiting&) = delete;

private:
  std::atomic<bool>& flag_;
};

/// One rank's view of an operation.
class group::waiting final : public work {
public:
  waiting(std::shared_ptr<group> of, std::shared_ptr<channel> in, std::size_t member,
          std::chrono::nanoseconds deadline)
      : group_(std::move(of)), in_(std::move(in)), member_(member), deadline_(deadline) {}
  ~waiting() override {
    if (operation_) operation_->leave();
  }
  waiting(const waiting&) = delete;
  waiting& operator=(const waiting&) = delete;
  void attach(std::shared_ptr<operation> to) {
    operation_ = std::move(to);
    // Whoever completed it waits for nobody, and is the one that the others wait for.
    if (deadline_.count() > 0 && operation_->status() == work_status::pending)
      until_ = bell::clock::now() + deadline_;
  }
  const operation& what() const { return *operation_; }

  work_result poll() override {
    if (operation_->status() == work_status::pending) look_at_clock();
    const auto status = operation_->status();
    if (status == work_status::ok || status == work_status::pending) return {status, {}, {}};
    if (status == work_status::aborted) return {status, group_->why(), {}};
    return {status, operation_->text(), operation_->missing()};
  }

  void wait() override {
    const marked_as_waiting mark{group_->at_rank(in_->members[member_]).waits};
    for (;;) {
      const auto seen = in_->changes.now();
      if (operation_->status() != work_status::pending) break;
      if (operation_->wants_help()) {
        group_->work_off(*in_, *operation_, member_);
        continue;
      }
      if (group_->help(*in_, member_)) continue;
      if (look_at_clock()) continue;
      const bool limited = until_ && !met_.load(std::memory_order_relaxed);
      in_->changes.wait(seen, group_->may_spin(), limited ? until_ : std::nullopt,
                        [this] { return operation_->status() != work_status::pending; });
    }
    if (operation_->status() == work_status::ok) return;
    // Unwinding frees what the operation was given: nobody may still be writing there.
    group_->settle();
    raise(poll());
  }

private:
  bool look_at_clock() {
    if (!until_ || met_.load(std::memory_order_relaxed) || bell::clock::now() < *until_)
      return false;
    if (!group_->expire(*in_, *operation_, deadline_)) met_.store(true, std::memory_order_relaxed);
    return true;
  }

  const std::shared_ptr<group> group_;
  const std::shared_ptr<channel> in_;
  const std::size_t member_;
  const std::chrono::nanoseconds deadline_;
  std::optional<bell::clock::time_point> until_;
  std::shared_ptr<operation> operation_;
  std::atomic<bool> met_{false};  // everybody arrived: the deadline is over
};

std::shared_ptr<channel> group::among(const std::vector<std::int32_t>& members) {
  const std::lock_guard hold{mutex_};
  for (const auto& known : channels_)
    if (known->members == members) return known;
  auto fresh = std::make_shared<channel>(members);
  for (const auto rank : departed_)
    if (std::binary_search(members.begin(), members.end(), rank)) fresh->departed = rank;
  channels_.push_back(fresh);
  return fresh;
}

work_ptr group::submit(const std::shared_ptr<channel>& in, std::size_t member, seat with,
                       std::chrono::nanoseconds deadline) {
  auto result = std::make_shared<waiting>(shared_from_this(), in, member, deadline);
  auto [at, last, abort_with] = arrive(*in, member, std::move(with));
  if (!abort_with.empty()) abort(abort_with);
  if (!at) return ended({work_status::aborted, why(), {}});
  if (last) run(*in, *at, member);
  result->attach(std::move(at));
  return result;
}

bool group::decide(const std::shared_ptr<channel>& in, std::size_t member, seat with,
                   std::chrono::nanoseconds deadline) {
  const auto agreed = submit(in, member, std::move(with), deadline);
  agreed->wait();
  return static_cast<const waiting&>(*agreed).what().verdict();
}

group::arrival group::arrive(channel& in, std::size_t member, seat with) {
  const std::lock_guard hold{in.mutex};
  const auto number = in.submitted[member];
  if (number - in.first >= window_max && !aborted())
    throw internal_error(fmt::format("{}: {} operations in flight already, the most there may be",
                                     describe(with.call), window_max));
  if (aborted()) {
    ++in.submitted[member];
    return {in.disagreed && in.disagreed_at == number ? in.disagreed : nullptr, false, {}};
  }
  if (in.departed >= 0)
    return {nullptr, false,
            fmt::format("{} can not be met: rank {} has closed its communicator",
                        describe(with.call), in.departed)};
  if (number - in.first == in.window.size()) in.window.push_back(in.renewed());
  ++in.submitted[member];
  auto at = in.window[number - in.first];
  const auto root = with.call.root;
  if (!at->arrive(member, std::move(with))) {
    auto text = disagreement(number, calls_of(in, *at));
    in.disagreed = at;
    in.disagreed_at = number;
    at->end(work_status::mismatch, text, {});
    return {std::move(at), false, std::move(text)};
  }
  if (!at->complete()) return {std::move(at), false, {}};
  at->cut(root < 0 ? 0 : in.member(root));
  complete(in, at);
  return {std::move(at), true, {}};
}

// Everybody is there: it makes room for the next, and the one before it may serve again.
void group::complete(channel& in, const std::shared_ptr<operation>& what) {
  in.window.erase(in.window.begin());
  ++in.first;
  auto before = std::exchange(in.latest, what);
  if (before && before->forgotten()) in.spare = std::move(before);
  if (what->slices_total() > 1) in.help_wanted.store(true, std::memory_order_release);
}

// The next operation of a channel can not start before this returns: its last member is here.
void group::run(channel& in, operation& what, std::size_t member) {
  if (what.slices_total() > 1) in.changes.ring();
  if (what.slices_total() > 0)
    work_off(in, what, member);
  else if (what.end(work_status::ok))
    in.changes.ring_sleepers();
  if (what.slices_total() > 1) in.help_wanted.store(false, std::memory_order_release);
  for (std::uint32_t turn = 0; what.status() == work_status::pending; ++turn) pause_briefly(turn);
}

bool group::help(channel& in, std::size_t member) {
  if (!in.help_wanted.load(std::memory_order_acquire)) return false;
  std::shared_ptr<operation> at;
  {
    const std::lock_guard hold{in.mutex};
    at = in.latest;
    at->enter();
  }
  const bool wanted = at->wants_help();
  if (wanted) work_off(in, *at, member);
  at->leave();
  return wanted;
}

void group::work_off(channel& in, operation& what, std::size_t member) {
  bool last = false;
  auto& touching = at_rank(in.members[member]).touching;
  touching.fetch_add(1, std::memory_order_seq_cst);
  try {
    last = what.work_off(aborted_, member);
  } catch (const std::exception& error) {
    touching.fetch_sub(1, std::memory_order_seq_cst);
    abort(error.what());  // a slice that is never done must not be waited for
    return;
  }
  touching.fetch_sub(1, std::memory_order_seq_cst);
  if (last && what.end(work_status::ok)) in.changes.ring_sleepers();
}

bool group::expire(channel& in, operation& what, std::chrono::nanoseconds deadline) {
  std::string text;
  {
    const std::lock_guard hold{in.mutex};
    if (what.complete()) return false;
    std::vector<std::int32_t> missing;
    const seat* arrived = nullptr;
    for (std::size_t i = 0; i < in.members.size(); ++i) {
      if (what.seats()[i].arrived)
        arrived = &what.seats()[i];
      else
        missing.push_back(in.members[i]);
    }
    text = missed(arrived->call, deadline, missing);
    if (!what.end(work_status::timed_out, text, std::move(missing))) return true;
  }
  abort(text);
  return true;
}

void group::abort(std::string_view why) noexcept {
  const std::lock_guard hold{mutex_};
  if (aborted()) return;
  try {
    why_ = why;
  } catch (...) {
    why_.clear();  // no memory for the reason; the abort itself needs none
  }
  aborted_.store(true, std::memory_order_seq_cst);
  for (const auto& in : channels_) {
    {
      const std::lock_guard hold_channel{in->mutex};
      for (const auto& pending : in->window) pending->end(work_status::aborted);
      if (in->latest) in->latest->end(work_status::aborted);
      in->window.clear();
    }
    in->changes.ring();
  }
}

bool group::quiescent() const noexcept {
  if (aborted()) return !touched();
  const std::lock_guard hold{mutex_};
  return std::all_of(channels_.begin(), channels_.end(), [](const auto& in) {
    const std::lock_guard hold_channel{in->mutex};
    return in->window.empty() && (!in->latest || in->latest->status() != work_status::pending);
  });
}

void group::depart(std::int32_t rank) noexcept {
  std::string reason;
  {
    const std::lock_guard hold{mutex_};
    departed_.push_back(rank);
    for (const auto& in : channels_) {
      const std::lock_guard hold_channel{in->mutex};
      if (!std::binary_search(in->members.begin(), in->members.end(), rank)) continue;
      in->departed = rank;
      const operation* open = nullptr;
      if (in->latest && in->latest->status() == work_status::pending) open = in->latest.get();
      if (!in->window.empty()) open = in->window.front().get();
      if (open && reason.empty()) {
        const auto calls = calls_of(*in, *open);
        reason = fmt::format("rank {} closed its communicator while {} was in flight", rank,
                             describe(calls.front().call));
      }
    }
  }
  if (!reason.empty()) abort(reason);
  if (aborted()) settle();
}

std::string group::why() const {
  const std::lock_guard hold{mutex_};
  return why_;
}

bool group::touched() const noexcept {
  return std::any_of(presence_.begin(), presence_.end(), [](const presence& one) {
    return one.touching.load(std::memory_order_seq_cst) != 0;
  });
}

void group::settle() const noexcept {
  for (std::uint32_t turn = 0; touched(); ++turn) pause_briefly(turn);
}

}  // namespace troupe::inproc
