// The work of the thread that drives a channel, from an operation's arrival to its end.
#include "backends/shm/channel.hpp"
#include "backends/shm/member.hpp"

#include <xxhash.h>

#include <algorithm>

namespace troupe::shm {

namespace {

// Up to this size each member reads the whole input of all others: a second rendezvous would cost
// more than it saves in reading.
constexpr std::size_t together_max = std::size_t{8} << 10;
// An abort is seen after as many slices of work on registered buffers: 256 KiB.
constexpr std::size_t slices_at_once = 4;

// Layout of the atomics for work on registered buffers. The number distinguishes a value of this
// operation from one that the operation three before left there.
constexpr std::uint64_t number_mask = 0xffff;
constexpr unsigned count_bits = 24;
constexpr std::uint64_t count_mask = (std::uint64_t{1} << count_bits) - 1;
constexpr unsigned claim_shift = 2 * count_bits;
constexpr unsigned done_shift = 47;

struct claim {
  std::uint64_t front = 0;
  std::uint64_t end = 0;
};
claim claimed_of(std::uint64_t word, std::uint64_t number) {
  if (word >> claim_shift != (number & number_mask)) return {};
  return {word & count_mask, word >> count_bits & count_mask};
}
std::uint64_t done_of(std::uint64_t word, std::uint64_t number) {
  word &= ~closed;
  if (word >> done_shift != (number & number_mask)) return 0;
  return word & ((std::uint64_t{1} << done_shift) - 1);
}

wire_call to_wire(const submission& what, std::optional<std::size_t> place) {
  const auto& call = what.call;
  wire_call wire;
  wire.what = static_cast<std::uint8_t>(call.what);
  wire.type = static_cast<std::uint8_t>(call.type);
  wire.operation = static_cast<std::uint8_t>(call.operation);
  wire.all = call.all;
  wire.yes = what.yes;
  wire.registered = place.has_value();
  wire.place = place.value_or(0);
  wire.root = call.root;
  wire.count = call.count;
  if (!call.label.empty()) {
    wire.label_hash = XXH3_64bits(call.label.data(), call.label.size());
    wire.label_length = static_cast<std::uint32_t>(call.label.size());
    wire.label_bytes = static_cast<std::uint16_t>(std::min(call.label.size(), label_max));
  }
  return wire;
}

bool same(const wire_call& a, const wire_call& b) {
  return a.what == b.what && a.type == b.type && a.operation == b.operation && a.all == b.all &&
         a.root == b.root && a.count == b.count && a.label_hash == b.label_hash &&
         a.label_length == b.label_length;
}

std::uint64_t steps_of(const std::atomic<std::uint64_t>& word) {
  return word.load(std::memory_order_seq_cst) & ~closed;
}

}  // namespace

bool channel::advance() {
  for (;;) {
    if (!head_) {
      std::shared_ptr<operation> next;
      {
        const std::lock_guard hold{mutex_};
        if (queue_.empty()) return false;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      begin(std::move(next));
    } else if (step() == outcome::blocked) {
      return true;
    }
  }
}

// Arrives: publishes this rank's call for all members to read, with the data if it is small.
void channel::begin(std::shared_ptr<operation> next) {
  head_ = std::move(next);
  at_ = met_ = 0;
  if (member_.aborted()) return finish(verdict_of_abort());
  const auto bytes = bytes_to_fill();
  planned_ = bytes <= std::min(together_max, member_.memory().layout().slot_bytes());
  cut(form::together);
  std::optional<std::size_t> place;
  if (!planned_ && head_->what.call.what == collective_kind::all_reduce)
    place = member_.place(head_->what.out, bytes);
  auto& mine = post_of(self_, base_);
  mine.call = to_wire(head_->what, place);
  const auto& label = head_->what.call.label;
  auto& shown = seat_of(self_).labels[base_ % slot_sets];
  std::copy_n(label.begin(), mine.call.label_bytes, shown.begin());
  if ((planned_ && bytes != 0 && !do_stage(schedule_.at(0), true)) || !publish()) {
    end_closed();
    return;
  }
  at_ = 1;
}

channel::outcome channel::step() {
  if (const auto met = meet(); met != outcome::moved) return met;
  if (!planned_) plan();
  if (schedule_.how == form::in_place) return reduce_in_place();
  // After the last rendezvous nothing can keep the operation from ending well, on any rank.
  if (at_ == schedule_.steps()) return complete();
  if (!do_stage(schedule_.at(at_), true) || !publish()) return end_closed();
  ++at_;
  met_ = 0;
  return outcome::moved;
}

// Moves on once all members have published the step before this one and submitted the same call.
channel::outcome channel::meet() {
  const auto need = base_ + at_;
  const auto& mine = post_of(self_, base_).call;
  for (; met_ < members_.size(); ++met_) {
    const auto& theirs = post_of(met_, need - 1);
    const auto word = theirs.published.load(std::memory_order_seq_cst);
    if ((word & ~closed) < need) {
      if (word & closed) return end_closed();
      break;
    }
    if (at_ == 1 && !same(mine, theirs.call)) return refuse();
  }
  if (met_ == members_.size()) return outcome::moved;
  // Members after the first missing one may have published a call that differs.
  for (auto m = met_ + 1; at_ == 1 && m < members_.size(); ++m)
    if (reached(m, need) && !same(mine, post_of(m, base_).call)) return refuse();
  return outcome::blocked;
}

bool channel::agree() const {
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (!same(post_of(self_, base_).call, post_of(m, base_).call)) return false;
  return true;
}

channel::outcome channel::refuse() {
  std::vector<called> calls;
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (reached(m, base_ + 1)) calls.push_back({members_[m], call_of(m)});
  auto reason = collectives::disagreed(index_, head_->number, calls);
  member_.abort(reason);
  auto verdict = verdict_of_abort();
  if (verdict.status != work_status::mismatch) verdict = {reason.status, reason.text, {}};
  finish(std::move(verdict));
  return outcome::ended;
}

void channel::plan() {
  planned_ = true;
  if (head_->what.call.what != collective_kind::all_reduce) return cut(form::direct);
  bool registered = true;
  for (std::size_t m = 0; m < members_.size(); ++m)
    registered = registered && post_of(m, base_).call.registered != 0;
  if (registered) ++in_place_;
  cut(registered ? form::in_place : form::slices);
}

// False if the group was aborted, or is now because the work failed.
bool channel::do_stage(const stage& what, bool unless_aborted) noexcept {
  try {
    const collectives::touching here{member_.touched()};
    const auto may = [&](const std::optional<std::uint64_t>& chunk) {
      return chunk && !(unless_aborted && member_.aborted());
    };
    if (may(what.fill)) fill(*what.fill);
    if (may(what.reduce)) reduce(*what.reduce);
    if (may(what.drain)) drain(*what.drain);
    return !(unless_aborted && member_.aborted());
  } catch (const std::exception& error) {
    member_.abort(error.what());
    return false;
  }
}

bool channel::publish() {
  auto& word = post_of(self_, base_ + at_).published;
  auto was = word.load(std::memory_order_relaxed);
  if ((was & closed) || !word.compare_exchange_strong(was, base_ + at_ + 1)) return false;
  member_.wake(members_);
  return true;
}

// The ranks that are here share all slices, so no rank waits for one that is late.
channel::outcome channel::reduce_in_place() {
  auto& work = shared();
  while (take_share(work)) {
  }
  const auto done = work.done.load(std::memory_order_seq_cst);
  if (done_of(done, in_place_) == slices_.total()) return complete();
  return (done & closed) || member_.aborted() ? end_closed() : outcome::blocked;
}

// Claims a quarter of an equal share of the slices that are left, and does it: small shares balance
// slow and late members. Members with an even place begin at the front, the others at the end, so
// that two members find their slices of the previous operation in their own caches.
bool channel::take_share(shared_work& work) noexcept {
  auto word = work.claimed.load(std::memory_order_relaxed);
  claim was;
  std::uint64_t share = 0;
  const bool forward = self_ % 2 == 0;
  std::uint64_t next = 0;
  do {
    was = claimed_of(word, in_place_);
    const auto left = slices_.total() - was.front - was.end;
    if (left == 0) return false;
    share = std::max<std::uint64_t>(left / (members_.size() * 4), 1);
    const auto front = was.front + (forward ? share : 0);
    const auto end = was.end + (forward ? 0 : share);
    next = (in_place_ & number_mask) << claim_shift | end << count_bits | front;
  } while (!work.claimed.compare_exchange_weak(word, next));
  const auto first = forward ? was.front : slices_.total() - was.end - share;
  for (std::uint64_t i = 0; i < share;) {
    const collectives::touching here{member_.touched()};
    if (member_.aborted()) return false;
    const auto run = slices_.run(first + i, std::min<std::size_t>(share - i, slices_at_once));
    try {
      reduce_between(run);
    } catch (const std::exception& error) {
      member_.abort(error.what());  // ranks must not wait for a slice that is never done
      return false;
    }
    i += slices_.length(run);
  }
  auto done = work.done.load(std::memory_order_relaxed);
  std::uint64_t now = 0;
  do {
    if (done & closed) return false;
    now = done_of(done, in_place_) + share;
  } while (!work.done.compare_exchange_weak(done, (in_place_ & number_mask) << done_shift | now));
  if (now == slices_.total()) member_.wake(members_);
  return true;
}

channel::outcome channel::complete() {
  const auto& call = head_->what.call;
  if (call.what == collective_kind::decide) {
    std::size_t yes = 0;
    for (std::size_t m = 0; m < members_.size(); ++m) yes += post_of(m, base_).call.yes;
    head_->verdict = call.all ? yes == members_.size() : yes != 0;
  }
  if (schedule_.how != form::in_place && !do_stage(schedule_.at(schedule_.steps()), false)) {
    finish(verdict_of_abort());
    return outcome::ended;
  }
  base_ += schedule_.steps();
  finish({work_status::ok, {}, {}});
  return outcome::ended;
}

// How the operation ended depends only on the steps that all members published before the closing,
// so each member finds the same.
channel::outcome channel::end_closed() {
  member_.close_words(index_);
  if (at_ == 1 && !planned_ && all_reached(base_ + 1) && agree()) plan();
  if (planned_ && at_ != 0) {
    const bool whole =
        schedule_.how == form::in_place
            ? done_of(shared().done.load(), in_place_) == slices_.total()
            : at_ == schedule_.steps() && all_reached(base_ + at_) && (at_ != 1 || agree());
    if (whole) return complete();
  }
  finish(verdict_of_abort());
  return outcome::ended;
}

void channel::finish(work_result how) {
  auto ended = std::move(head_);
  // Before the lane can see the end: it may submit the next operation at once.
  open_.fetch_sub(1, std::memory_order_seq_cst);
  ended->how.end(std::move(how));
  notify_waiters();
}

work_result channel::verdict_of_abort() const {
  return member_.why().result_of(index_, head_->number, member_.rank());
}

std::uint64_t channel::position() const {
  if (planned_ && schedule_.how == form::in_place)
    return base_ + at_ + done_of(shared().done.load(), in_place_);
  return base_ + at_;
}

// The condition that the driving thread polls while it waits.
bool channel::may_advance() const noexcept {
  if (!head_) return true;
  if (met_ < members_.size()) {
    const auto word = post_of(met_, base_ + at_ - 1).published.load(std::memory_order_seq_cst);
    return (word & ~closed) >= base_ + at_ || (word & closed) != 0;
  }
  const auto done = shared().done.load(std::memory_order_seq_cst);
  return (done & closed) != 0 || done_of(done, in_place_) == slices_.total();
}

seat_block& channel::seat_of(std::size_t m) const {
  return member_.memory().seat(index_, members_[m]);
}

post& channel::post_of(std::size_t m, std::uint64_t step) const {
  return seat_of(m).posts[step % slot_sets];
}

shared_work& channel::shared() const {
  return member_.memory().channel(index_).work[in_place_ % slot_sets];
}

bool channel::reached(std::size_t m, std::uint64_t step) const {
  return steps_of(post_of(m, step - 1).published) >= step;
}

std::uint64_t channel::last_published(std::size_t m) const noexcept {
  std::uint64_t last = 0;
  for (const auto& one : seat_of(m).posts) last = std::max(last, steps_of(one.published));
  return last;
}

bool channel::all_reached(std::uint64_t step) const {
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (!reached(m, step)) return false;
  return true;
}

collective_call channel::call_of(std::size_t m) const {
  const auto& wire = post_of(m, base_).call;
  const auto shown = std::min<std::size_t>(wire.label_bytes, label_max);
  collective_call call;
  call.what = static_cast<collective_kind>(wire.what);
  call.type = static_cast<dtype>(wire.type);
  call.operation = static_cast<reduction>(wire.operation);
  call.count = wire.count;
  call.root = wire.root;
  call.all = wire.all != 0;
  call.label.assign(seat_of(m).labels[base_ % slot_sets].data(), shown);
  if (wire.label_length > shown) call.label += "...";
  return call;
}

}  // namespace troupe::shm
