#include "backends/inproc/operation.hpp"

#include "backends/collective/canonical_reduction.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace troupe::inproc {

namespace {

// Bytes of memory that a slice touches, few enough that two ranks finish together; and the slices
// between two checks for an abort, 256 KiB.
constexpr std::size_t slice_work = std::size_t{64} << 10;
constexpr std::size_t slices_at_once = 4;

std::byte* at(void* memory, std::size_t bytes) { return static_cast<std::byte*>(memory) + bytes; }
const std::byte* at(const void* memory, std::size_t bytes) {
  return static_cast<const std::byte*>(memory) + bytes;
}

// Pointers of one slice, without an allocation for groups of ordinary size.
template <class Pointer>
class pointers {
public:
  explicit pointers(std::size_t count) : count_(count) {
    if (count > few_.size()) many_.resize(count);
  }
  Pointer& operator[](std::size_t i) { return data()[i]; }
  std::span<const Pointer> view() { return {data(), count_}; }

private:
  Pointer* data() { return many_.empty() ? few_.data() : many_.data(); }
  std::size_t count_;
  std::array<Pointer, 16> few_;
  std::vector<Pointer> many_;
};

}  // namespace

void operation::renew(std::uint64_t number) {
  arrived_ = 0;
  turn_ = number + 1;
  if (open_.load(std::memory_order_relaxed)) {
    claimed_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    open_.store(false, std::memory_order_relaxed);
  }
}

bool operation::arrive(std::size_t member, submission&& with) {
  auto& mine = seats_[member];
  mine.call = std::move(with.call);
  mine.in = with.in;
  mine.turn = turn_;
  mine.out = with.out;
  mine.yes = with.yes;
  mine.body = std::move(with.body);
  if (arrived_++ == 0) first_ = static_cast<std::uint32_t>(member);
  return mine.call == seats_[first_].call;
}

void operation::cut(std::size_t root_member) {
  root_ = static_cast<std::uint32_t>(root_member);
  const auto& call = seats_[0].call;
  const auto members = seats_.size();
  const bool whole =
      call.what == collective_kind::all_reduce || call.what == collective_kind::broadcast;
  const bool pieces =
      call.what == collective_kind::all_gather || call.what == collective_kind::reduce_scatter;
  if (call.what == collective_kind::decide) {
    const auto says_yes = [](const seat& s) { return s.yes; };
    verdict_ = call.all ? std::all_of(seats_.begin(), seats_.end(), says_yes)
                        : std::any_of(seats_.begin(), seats_.end(), says_yes);
  }
  if (call.what == collective_kind::work_together) {
    slices_ = slices{call.count, 1, 1, 1, slice_work};  // one slice per piece of work
  } else if (whole && call.count * size_of(call.type) <= slices::least_bytes) {
    slices_ = slices::one(call.count);
  } else if (whole || pieces) {
    const auto touched = members + (pieces ? 1 : 0);
    slices_ = slices{pieces ? members : 1, call.count, size_of(call.type), touched, slice_work};
  } else {
    slices_ = {};
  }
  if (slices_.total() > 1) open_.store(true, std::memory_order_release);
}

// A claim takes a quarter of an equal share of the slices that are left. So there are few claims,
// each of which costs as much as several kilobytes of work, and the last ones are small.
bool operation::work_off(const std::atomic<bool>& stop, std::size_t member) {
  const bool forward = member % 2 == 0;
  std::size_t done = 0;
  auto word = claimed_.load(std::memory_order_relaxed);
  while (const auto left = unclaimed(word)) {
    const auto share = std::max<std::uint64_t>(left / (seats_.size() * 4), 1);
    if (!claimed_.compare_exchange_weak(word, word + (forward ? share : share << 32),
                                        std::memory_order_relaxed))
      continue;
    const auto [front, end] = split(word);
    const auto first = forward ? front : slices_.total() - end - share;
    for (std::uint64_t i = 0; i < share;) {
      if (stop.load(std::memory_order_seq_cst)) return false;
      const auto next = slices_.run(first + i, std::min(share - i, slices_at_once));
      run(next);
      i += slices_.length(next);
    }
    done += share;
    word = claimed_.load(std::memory_order_relaxed);
  }
  return done != 0 && done_.fetch_add(done, std::memory_order_acq_rel) + done == slices_.total();
}

bool operation::work_off_whole(const std::atomic<bool>& stop) const {
  if (stop.load(std::memory_order_seq_cst)) return false;
  run({0, 0, seats_[0].call.count});
  return true;
}

void operation::run(const slice& what) const {
  const auto& call = seats_[0].call;
  if (call.what == collective_kind::work_together) return call_body(what.piece);
  const auto element = size_of(call.type);
  const auto piece_bytes = call.count * element;
  const auto offset = what.piece * piece_bytes + what.first * element;
  if (call.what == collective_kind::all_reduce || call.what == collective_kind::reduce_scatter)
    reduce(what, offset);
  else
    copy(what, offset, piece_bytes);
}

void operation::call_body(std::size_t piece) const {
  pointers<const void*> everybodys{seats_.size()};
  for (std::size_t i = 0; i < seats_.size(); ++i) everybodys[i] = seats_[i].in;
  seats_[0].body(everybodys.view(), piece);
}

void operation::reduce(const slice& what, std::size_t offset) const {
  const auto& call = seats_[0].call;
  const bool scatter = call.what == collective_kind::reduce_scatter;
  pointers<const void*> sources{seats_.size()};
  for (std::size_t i = 0; i < seats_.size(); ++i) sources[i] = at(seats_[i].in, offset);
  pointers<void*> targets{scatter ? 1 : seats_.size()};
  if (scatter)
    targets[0] = at(seats_[what.piece].out, what.first * size_of(call.type));
  else
    for (std::size_t i = 0; i < seats_.size(); ++i) targets[i] = at(seats_[i].out, offset);
  canonical_reduce(call.type, call.operation, sources.view(), targets.view(), what.count);
}

// From the root (broadcast) or from the member whose piece it is (all_gather) to all members.
void operation::copy(const slice& what, std::size_t offset, std::size_t piece_bytes) const {
  const auto& call = seats_[0].call;
  const auto bytes = what.count * size_of(call.type);
  const bool gather = call.what == collective_kind::all_gather;
  const auto* from = gather ? at(seats_[what.piece].in, offset - what.piece * piece_bytes)
                            : at(seats_[root_].in, offset);
  for (const auto& s : seats_)
    if (auto* to = at(s.out, offset); to != from) std::memcpy(to, from, bytes);
}

}  // namespace troupe::inproc
