#include "backends/tcp/exchange.hpp"

#include "backends/collective/canonical_reduction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::tcp {

namespace {

// Frames of one operation in the queue to one member.
constexpr unsigned queue_max = 2 * window;
constexpr std::size_t line = 64;

}  // namespace

chunk_pool::chunk chunk_pool::take() {
  if (free_.empty()) return std::make_unique_for_overwrite<std::byte[]>(chunk_bytes);
  auto last = std::move(free_.back());
  free_.pop_back();
  return last;
}

exchange::exchange(std::size_t members, std::size_t me, chunk_pool& pool)
    : me_(me), pool_(&pool), sides_(members), missing_(members) {}

bool exchange::call(std::size_t member, collective_call what, bool yes) {
  auto& from = sides_[member];
  if (from.called) throw wire_error("called the same operation twice");
  const auto other = std::find_if(sides_.begin(), sides_.end(), [](auto& s) { return s.called; });
  const bool same = other == sides_.end() || other->call == what;
  from.called = true;
  from.yes = yes;
  from.call = std::move(what);
  return same;
}

void exchange::ready(std::size_t member) {
  auto& from = sides_[member];
  if (!from.called || from.ready) throw wire_error("is ready without a call, or twice");
  from.ready = true;
  --missing_;
}

void exchange::start(const void* in, void* out, const std::atomic<bool>& stop) {
  const auto& call = sides_[me_].call;
  in_ = static_cast<const std::byte*>(in);
  out_ = static_cast<std::byte*>(out);
  small_ = small(call);
  // The root of a broadcast may not be known yet. So all bytes count, as for the root.
  const auto most = call.what == collective_kind::all_reduce
                        ? slice(0)
                        : range{0, small_ ? 0 : call.count * size_of(call.type)};
  wide_ = !small_ && most.chunks() >= window;
  started_ = true;
  ready(me_);
  if (call.what != collective_kind::all_gather || small_) return;
  const auto mine = slice(me_);
  for (std::uint64_t i = 0; i < mine.chunks() && out_ + mine.first != in_; ++i) {
    if (stop.load(std::memory_order_seq_cst)) return;
    std::memcpy(out_ + mine.first + i * chunk_bytes, in_ + i * chunk_bytes, mine.chunk(i));
  }
}

bool exchange::reduces() const {
  const auto what = sides_[me_].call.what;
  return what == collective_kind::all_reduce || what == collective_kind::reduce_scatter;
}

bool exchange::small(const collective_call& call) const {
  if (bare(call)) return true;
  return call.count <=
         payload_max / size_of(call.type) / std::max<std::size_t>(sides_.size() - 1, 1);
}

std::size_t exchange::payload_bytes(const collective_call& call, std::size_t from) const {
  if (call.what == collective_kind::barrier || call.what == collective_kind::decide || bare(call))
    return 0;
  if (call.what == collective_kind::broadcast && !sides_[from].yes) return 0;
  return call.count * size_of(call.type);
}

exchange::range exchange::slice(std::size_t member) const {
  const auto& call = sides_[me_].call;
  const auto element = size_of(call.type);
  const auto bytes = call.count * element;
  switch (call.what) {
    case collective_kind::all_reduce: {
      const auto members = sides_.size();
      const auto each = ((bytes + members - 1) / members + line - 1) / line * line;
      const auto first = std::min(member * each, bytes);
      return {first, std::min(each, bytes - first)};
    }
    case collective_kind::broadcast: return {0, sides_[member].yes ? bytes : 0};
    case collective_kind::all_gather:
    case collective_kind::reduce_scatter: return {member * bytes, bytes};
    default: return {};
  }
}

// A reduce_scatter has results without bytes: they say that a chunk is reduced.
std::uint64_t exchange::results_from(std::size_t member) const { return slice(member).chunks(); }

std::uint64_t exchange::results_now() const { return reduces() ? reduced_ : slice(me_).chunks(); }

std::optional<parcel> exchange::next(std::size_t member) {
  auto& to = sides_[member];
  const auto& call = sides_[me_].call;
  if (!started_ || member == me_) return {};
  if (small_) {
    const auto bytes = payload_bytes(call, me_);
    if (to.payload_out || bytes == 0) return {};
    to.payload_out = true;
    ++to.queued;
    const bool scatters = call.what == collective_kind::reduce_scatter;
    return parcel{part::payload, 0, in_ + (scatters ? member * bytes : 0), bytes};
  }
  if (!met() || to.queued >= queue_max) return {};
  if (to.results_out < results_now()) {
    const auto mine = slice(me_);
    const auto index = to.results_out++;
    const auto offset = index * chunk_bytes;
    ++to.queued;
    if (call.what == collective_kind::reduce_scatter)
      return parcel{part::result, offset, nullptr, 0};
    const auto* from = call.what == collective_kind::all_gather ? in_ : out_ + mine.first;
    return parcel{part::result, offset, from + offset, mine.chunk(index)};
  }
  const auto theirs = slice(member);
  if (!reduces() || to.contributions_out == theirs.chunks() ||
      to.contributions_out >= to.results_in + window)
    return {};
  const auto index = to.contributions_out++;
  const auto offset = index * chunk_bytes;
  ++to.queued;
  return parcel{part::contribution, offset, in_ + theirs.first + offset, theirs.chunk(index)};
}

std::byte* exchange::place(std::size_t member, part what, std::uint64_t offset, std::size_t bytes) {
  auto& from = sides_[member];
  if (!from.called) throw wire_error("sent data of an operation before its call");
  if (what != part::payload) return place_chunk(from, member, what, offset, bytes);
  if (from.payload_in || !from.payload.empty() || offset != 0 || bytes == 0 || !small(from.call) ||
      bytes != payload_bytes(from.call, member))
    throw wire_error(fmt::format("sent a payload of {} bytes in {}", bytes, describe(from.call)));
  from.payload.resize(bytes);
  return from.payload.data();
}

std::byte* exchange::place_chunk(side& from, std::size_t member, part what, std::uint64_t offset,
                                 std::size_t bytes) {
  const auto refuse = [&](std::string_view why) -> std::byte* {
    throw wire_error(
        fmt::format("sent {} bytes at {} in {}: {}", bytes, offset, describe(from.call), why));
  };
  if (!started_ || small_ || !from.ready) return refuse("too early");
  const bool contribution = what == part::contribution;
  if (contribution && !reduces()) return refuse("nothing is reduced in it");
  const auto of = slice(contribution ? me_ : member);
  const auto index = offset / chunk_bytes;
  if (index >= of.chunks()) return refuse("more than there is");
  const bool credit = !contribution && sides_[me_].call.what == collective_kind::reduce_scatter;
  if (offset != index * chunk_bytes || bytes != (credit ? 0 : of.chunk(index)))
    return refuse("not a chunk");
  if (!contribution) {
    if (reduces() && index >= from.contributions_out) return refuse("a result of nothing");
    if (from.results_placed.empty()) from.results_placed.resize(of.chunks());
    if (from.results_placed[index]) return refuse("a chunk twice");
    from.results_placed[index] = true;
    return credit ? nullptr : out_ + of.first + offset;
  }
  if (index < reduced_ || index >= reduced_ + window) return refuse("not in its window");
  auto& slot = from.slots[index % window];
  if (slot.taken) return refuse("a chunk twice");
  slot.taken = true;
  slot.memory = pool_->take();
  return slot.memory.get();
}

void exchange::landed(std::size_t member, part what, std::uint64_t offset,
                      const std::atomic<bool>& stop) {
  auto& from = sides_[member];
  switch (what) {
    case part::payload: from.payload_in = true; break;
    case part::result: ++from.results_in; break;
    case part::contribution:
      from.slots[offset / chunk_bytes % window].landed = true;
      reduce_complete(stop);
      break;
  }
}

void exchange::reduce_complete(const std::atomic<bool>& stop) {
  const auto& call = sides_[me_].call;
  const auto mine = slice(me_);
  const bool scatters = call.what == collective_kind::reduce_scatter;
  std::vector<const void*> sources(sides_.size());
  const auto complete = [&] {
    for (std::size_t i = 0; i < sides_.size(); ++i)
      if (i != me_ && !sides_[i].slots[reduced_ % window].landed) return false;
    return reduced_ < mine.chunks();
  };
  while (complete()) {
    if (stop.load(std::memory_order_seq_cst)) return;
    const auto offset = reduced_ * chunk_bytes;
    for (std::size_t i = 0; i < sides_.size(); ++i)
      sources[i] =
          i == me_ ? in_ + mine.first + offset : sides_[i].slots[reduced_ % window].memory.get();
    void* const target = scatters ? out_ + offset : out_ + mine.first + offset;
    canonical_reduce(call.type, call.operation, sources, {&target, 1},
                     mine.chunk(reduced_) / size_of(call.type));
    for (auto& side : sides_) {
      auto used = std::exchange(side.slots[reduced_ % window], {});
      if (used.memory) pool_->give(std::move(used.memory));
    }
    ++reduced_;
  }
}

bool exchange::finished_with(std::size_t member) const {
  const auto& with = sides_[member];
  if (member == me_) return !reduces() || small_ || reduced_ == slice(me_).chunks();
  if (with.queued != 0) return false;
  const auto& call = sides_[me_].call;
  if (small_)
    return (with.payload_out || payload_bytes(call, me_) == 0) &&
           (with.payload_in || payload_bytes(call, member) == 0);
  return with.results_in == results_from(member) && with.results_out == slice(me_).chunks() &&
         (!reduces() || with.contributions_out == slice(member).chunks());
}

bool exchange::done() const {
  if (!started_ || !met()) return false;
  for (std::size_t i = 0; i < sides_.size(); ++i)
    if (!finished_with(i)) return false;
  return true;
}

bool exchange::blocks(std::size_t member) const {
  const auto& with = sides_[member];
  if (member == me_ || !owes(member)) return false;
  if (!with.ready || with.queued != 0 || small_ || !reduces()) return true;
  return reduced_ < slice(me_).chunks() && !with.slots[reduced_ % window].landed;
}

bool exchange::owes(std::size_t member) const {
  return !sides_[member].ready || (started_ && !finished_with(member));
}

void exchange::finish() {
  const auto& call = sides_[me_].call;
  if (call.what == collective_kind::decide) {
    const auto says_yes = [](const side& s) { return s.yes; };
    verdict_ = call.all ? std::all_of(sides_.begin(), sides_.end(), says_yes)
                        : std::any_of(sides_.begin(), sides_.end(), says_yes);
  }
  if (!small_ || call.count == 0 || bare(call)) return;
  if (reduces())
    reduce_payloads();
  else
    copy_payloads();
}

void exchange::reduce_payloads() {
  const auto& call = sides_[me_].call;
  const bool scatters = call.what == collective_kind::reduce_scatter;
  std::vector<const void*> sources(sides_.size());
  for (std::size_t i = 0; i < sides_.size(); ++i) sources[i] = sides_[i].payload.data();
  sources[me_] = in_ + (scatters ? slice(me_).first : 0);
  void* const target = out_;
  canonical_reduce(call.type, call.operation, sources, {&target, 1}, call.count);
}

void exchange::copy_payloads() {
  const auto& call = sides_[me_].call;
  const bool gathers = call.what == collective_kind::all_gather;
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    auto* to = out_ + (gathers ? slice(i).first : 0);
    if (i != me_)
      std::copy(sides_[i].payload.begin(), sides_[i].payload.end(), to);
    else if (gathers && to != in_)
      std::memcpy(to, in_, call.count * size_of(call.type));
  }
}

}  // namespace troupe::tcp
