#include "backends/inproc/group.hpp"

#include <algorithm>
#include <utility>

namespace troupe::inproc {

using collectives::touching;

namespace {

std::vector<called> calls_of(const channel& in, const operation& what) {
  std::vector<called> calls;
  for (std::size_t i = 0; i < in.members.size(); ++i)
    if (what.arrived(i)) calls.push_back({in.members[i], what.seats()[i].call});
  return calls;
}

}  // namespace

/// One rank's view of an operation at which it arrived.
class group::waiting final : public work {
public:
  waiting(place_ptr at, std::uint64_t number, std::chrono::nanoseconds deadline)
      : at_(std::move(at)), number_(number), deadline_(deadline) {
    if (deadline_.count() > 0) until_ = bell::clock::now() + deadline_;
  }
  waiting(const waiting&) = delete;
  waiting& operator=(const waiting&) = delete;

  work_result poll() override {
    auto& in = *at_->in;
    if (!in.over(number_)) look_at_clock();
    const auto status = in.status(number_);
    if (status != work_status::aborted) return {status, {}, {}};
    return at_->of->verdict(*at_, number_, true);
  }

  void wait() override {
    auto& in = *at_->in;
    auto& of = *at_->of;
    const collectives::lane_waits mark{at_->self.waits};
    const bool spin = of.may_spin() && !in.shares_core(at_->member);
    for (;;) {
      const auto seen = in.changes.now();
      if (in.over(number_)) break;
      if (of.help(*at_) || look_at_clock()) continue;
      const bool limited = until_ && !met_.load(std::memory_order_relaxed);
      in.changes.wait(seen, spin, limited ? until_ : std::nullopt,
                      [&] { return in.over(number_); });
    }
    if (in.status(number_) == work_status::ok) return;
    // Unwinding frees the operation's memory, so wait until no thread writes there any more.
    of.settle();
    of.raise_own(at_->self);
    raise(of.verdict(*at_, number_, true));
  }

private:
  bool look_at_clock() {
    if (!until_ || met_.load(std::memory_order_relaxed) || bell::clock::now() < *until_)
      return false;
    if (!at_->of->expire(*at_->in, number_, deadline_)) met_.store(true, std::memory_order_relaxed);
    return true;
  }

  const place_ptr at_;
  const std::uint64_t number_;
  const std::chrono::nanoseconds deadline_;
  std::optional<bell::clock::time_point> until_;
  std::atomic<bool> met_{false};  // all members arrived: the deadline is over
};

place_ptr group::among(const std::vector<std::int32_t>& members, std::int32_t rank) {
  const std::lock_guard hold{mutex_};
  const auto known = std::find_if(channels_.begin(), channels_.end(),
                                  [&](const auto& one) { return one->members == members; });
  auto in =
      known == channels_.end() ? std::make_shared<channel>(channels_.size(), members) : *known;
  if (known == channels_.end()) {
    for (const auto gone : departed_)
      if (std::binary_search(members.begin(), members.end(), gone)) in->departed = gone;
    if (aborted()) in->close();
    channels_.push_back(in);
  }
  const auto member = in->member(rank);
  auto& self = presence_[static_cast<std::size_t>(rank)];
  return std::make_shared<const place>(place{shared_from_this(), std::move(in), member, self});
}

work_ptr group::submit(const place_ptr& at, submission&& with, std::chrono::nanoseconds deadline) {
  auto& of = *at->of;
  const auto arrived = of.take_part(at, std::move(with));
  if (!arrived.at) return ended(of.verdict(*at, arrived.number, false));
  if (arrived.last && at->in->status(arrived.number) == work_status::ok) return at->done;
  return of.watch(at, arrived.number, deadline);
}

bool group::decide(const place_ptr& at, submission&& with, std::chrono::nanoseconds deadline) {
  auto& of = *at->of;
  const auto arrived = of.take_part(at, std::move(with));
  if (!arrived.at) raise(of.verdict(*at, arrived.number, false));
  if (at->in->status(arrived.number) != work_status::ok)
    of.watch(at, arrived.number, deadline)->wait();
  return arrived.at->verdict();  // stays until this rank has arrived at the second one after it
}

group::arrival group::take_part(const place_ptr& at, submission&& with) {
  at->in->spots[at->member].core.here();
  auto arrived = arrive(*at->in, at->member, std::move(with));
  if (arrived.ended_group) close();
  if (arrived.last) run(*at, *arrived.at);
  return arrived;
}

work_ptr group::watch(const place_ptr& at, std::uint64_t number,
                      std::chrono::nanoseconds deadline) {
  try {
    return std::make_shared<waiting>(at, number, deadline);
  } catch (...) {
    // The caller unwinds and frees its memory, which other ranks may use.
    abort("no memory to wait for an operation");
    settle();
    throw;
  }
}

group::arrival group::arrive(channel& in, std::size_t member, submission&& with) {
  const std::lock_guard hold{in.mutex};
  auto& own = in.own[member];
  auto& submitted = own.submitted;
  const auto number = submitted;
  if (aborted()) {
    ++submitted;
    return {nullptr, number, false, false};
  }
  collectives::check_in_flight(with.call, number - in.first);
  if (in.departed >= 0) {
    ++submitted;
    end_.abort(collectives::closed_before(with.call, in.departed));
    return {nullptr, number, false, true};
  }
  auto& at = number == in.reached ? in.open_next() : in.at(number);
  ++submitted;
  own.see(number, at);
  const auto root = with.call.root;
  if (!at.arrive(member, std::move(with))) {
    end_.abort(collectives::disagreed(in.id, number, calls_of(in, at)));
    return {&at, number, false, true};
  }
  if (!at.complete()) return {&at, number, false, false};
  at.cut(root < 0 ? 0 : in.member(root));
  ++in.first;
  if (at.slices_total() > 1) in.help_wanted.store(true, std::memory_order_release);
  return {&at, number, true, false};
}

// The channel's next operation cannot start before this returns, because this member has not
// arrived there yet.
void group::run(const place& at, operation& what) {
  auto& in = *at.in;
  const auto slices = what.slices_total();
  if (slices == 0) return finish(in, what);
  if (slices > 1) in.changes.ring();
  in.own[at.member].fetch_next(at.member);
  work_off(at, what);
  if (slices > 1) in.help_wanted.store(false, std::memory_order_release);
  for (std::uint32_t turn = 0; !in.over(what.number()); ++turn) pause_briefly(turn);
}

bool group::help(const place& at) {
  auto& in = *at.in;
  if (!in.help_wanted.load(std::memory_order_acquire)) return false;
  std::shared_ptr<operation> latest;
  {
    const std::lock_guard hold{in.mutex};
    latest = in.ring[(in.first - 1) & (in.ring.size() - 1)];
    latest->enter();
  }
  const bool wanted = latest->wants_help();
  if (wanted) work_off(at, *latest);
  latest->leave();
  return wanted;
}

void group::work_off(const place& at, operation& what) {
  bool last = false;
  try {
    const touching here{at.self.touching};
    last = what.slices_total() == 1 ? what.work_off_whole(end_.flag())
                                    : what.work_off(end_.flag(), at.member);
  } catch (const std::exception& error) {  // ranks must not wait for its slice
    const std::string_view text{error.what()};
    return fail(at.self, text.substr(0, text.find('\n')));
  } catch (...) {
    return fail(at.self, "a piece of work threw");
  }
  if (last) finish(*at.in, what);
}

void group::finish(channel& in, operation& what) {
  if (what.first().call.what == collective_kind::work_together) what.drop_body();
  if (in.end(what.number())) in.changes.ring_sleepers();
}

bool group::expire(channel& in, std::uint64_t number, std::chrono::nanoseconds deadline) {
  {
    const std::lock_guard hold{in.mutex};
    if (number < in.first) return false;
    if (aborted()) return true;
    const auto& what = in.at(number);
    std::vector<std::int32_t> missing;
    for (std::size_t i = 0; i < in.members.size(); ++i)
      if (!what.arrived(i)) missing.push_back(in.members[i]);
    end_.abort(collectives::late(in.id, number, what.first().call, deadline, std::move(missing)));
  }
  close();
  return true;
}

void group::abort(std::string_view why) noexcept {
  end_.abort(why);
  close();
}

// Each caller returns only when the channels are closed.
void group::close() noexcept {
  const std::lock_guard hold{mutex_};
  if (std::exchange(closed_, true)) return;
  for (const auto& in : channels_) {
    in->close();
    in->changes.ring();
  }
}

// Called in a catch block, on a thread that works for rank `of`. raise_own rethrows the exception
// on that rank, as the cause. The failures of the other ranks follow from the abort.
void group::fail(const presence& of, std::string_view why) noexcept {
  {
    const std::lock_guard hold{mutex_};
    if (!aborted() && !thrown_) {
      thrown_ = std::current_exception();
      thrower_ = &of;
    }
  }
  abort(why);
}

void group::raise_own(const presence& of) {
  std::exception_ptr own;
  {
    const std::lock_guard hold{mutex_};
    if (thrower_ == &of) own = std::exchange(thrown_, nullptr);
  }
  if (own) std::rethrow_exception(own);
}

bool group::quiescent() const noexcept {
  if (aborted()) return !touched();
  const std::lock_guard hold{mutex_};
  return std::all_of(channels_.begin(), channels_.end(), [](const auto& in) {
    const std::lock_guard hold_channel{in->mutex};
    return in->reached == in->ended_well();
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
      if (in->reached == in->ended_well() || !reason.empty()) continue;
      const auto open = in->reached > in->first ? in->first : in->first - 1;
      reason = collectives::closed_in_flight(rank, describe(in->at(open).first().call));
    }
  }
  if (!reason.empty()) abort(reason);
  if (aborted()) settle();
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
