// The memory operations of a channel: copies chunks into the slots and out of them, and reduces
// between registered buffers.
#include "backends/collective/canonical_reduction.hpp"
#include "backends/shm/channel.hpp"
#include "backends/shm/member.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::shm {

namespace {

std::byte* at(void* memory, std::size_t bytes) { return static_cast<std::byte*>(memory) + bytes; }
const std::byte* at(const void* memory, std::size_t bytes) {
  return static_cast<const std::byte*>(memory) + bytes;
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// Bytes of memory that a slice touches, little enough for two ranks to end together.
constexpr std::size_t slice_work = std::size_t{64} << 10;

}  // namespace

// The bytes that this operation copies into the slots of one member.
std::size_t channel::bytes_to_fill() const {
  const auto& call = head_->what.call;
  const auto bytes = call.count * size_of(call.type);
  return call.what == collective_kind::reduce_scatter ? bytes * members_.size() : bytes;
}

void channel::cut(form how) {
  const auto& call = head_->what.call;
  const auto element = size_of(call.type);
  const auto in_slot = member_.memory().layout().slot_bytes();
  schedule_ = {how, 1};
  chunk_elements_ = call.count;
  writer_.begin(bytes_to_fill());
  if (how == form::in_place) slices_ = slices{1, call.count, element, members_.size(), slice_work};
  if (how != form::slices && how != form::direct) return;
  const bool pieces = call.what == collective_kind::reduce_scatter;
  chunk_elements_ = (pieces ? in_slot / members_.size() / line * line : in_slot) / element;
  schedule_.chunks = (call.count + chunk_elements_ - 1) / chunk_elements_;
}

channel::range channel::chunk(std::uint64_t number) const {
  const auto first = number * chunk_elements_;
  return {first, std::min<std::size_t>(chunk_elements_, head_->what.call.count - first)};
}

// A member's share of a chunk: whole cache lines, as equal as possible.
channel::range channel::slice_of(std::size_t elements, std::size_t m) const {
  const auto per_line = line / size_of(head_->what.call.type);
  const auto lines = (elements + per_line - 1) / per_line;
  const auto each = (lines + members_.size() - 1) / members_.size() * per_line;
  const auto first = std::min(m * each, elements);
  return {first, std::min(each, elements - first)};
}

std::byte* channel::slot(std::size_t m, std::uint64_t of_chunk) const {
  const auto set = (base_ + schedule_.filled_at(of_chunk)) % slot_sets;
  return member_.memory().slot(index_, members_[m], set);
}

// A member does not copy its own share in: it reads that share from its own memory.
void channel::fill(std::uint64_t number) {
  const auto& call = head_->what.call;
  const auto element = size_of(call.type);
  const auto [first, count] = chunk(number);
  auto* to = slot(self_, number);
  const auto* from = at(head_->what.in, first * element);
  switch (call.what) {
    case collective_kind::all_reduce: {
      if (schedule_.how == form::together) return writer_.write(to, from, count * element);
      const auto own = slice_of(count, self_);
      const auto after = own.first + own.count;
      writer_.write(to, from, own.first * element);
      return writer_.write(at(to, after * element), at(from, after * element),
                           (count - after) * element);
    }
    case collective_kind::broadcast:
      if (call.root == member_.rank()) writer_.write(to, from, count * element);
      return;
    case collective_kind::all_gather: return writer_.write(to, from, count * element);
    case collective_kind::reduce_scatter:
      for (std::size_t piece = 0; piece < members_.size(); ++piece)
        if (piece != self_)
          writer_.write(at(to, piece * chunk_elements_ * element),
                        at(from, piece * call.count * element), count * element);
      return;
    case collective_kind::barrier:
    case collective_kind::decide:
    case collective_kind::work_together: return;  // never gets here: it needs one memory
  }
}

// Reduces `count` elements that lie `in_memory` bytes from this rank's input and `in_slots` bytes
// from the beginning of the others' slots, into this rank's output.
void channel::reduce_own(std::uint64_t number, std::size_t in_memory, std::size_t in_slots,
                         std::size_t count) const {
  const auto& call = head_->what.call;
  const bool scatter = call.what == collective_kind::reduce_scatter;
  const auto skipped = scatter ? self_ * call.count * size_of(call.type) : 0;
  std::array<const void*, world_max> sources;
  for (std::size_t m = 0; m < members_.size(); ++m)
    sources[m] =
        m == self_ ? at(head_->what.in, skipped + in_memory) : at(slot(m, number), in_slots);
  void* const target = at(head_->what.out, in_memory);
  canonical_reduce(call.type, call.operation, {sources.data(), members_.size()}, {&target, 1},
                   count);
}

void channel::reduce(std::uint64_t number) {
  const auto element = size_of(head_->what.call.type);
  const auto [first, count] = chunk(number);
  const auto own = slice_of(count, self_);
  // In blocks that are still in the first-level cache when they are copied.
  constexpr std::size_t block = std::size_t{8} << 10;
  for (std::size_t done = 0; done < own.count; done += block / element) {
    const auto now = std::min(block / element, own.count - done);
    const auto in_slot = (own.first + done) * element;
    const auto in_memory = first * element + in_slot;
    reduce_own(number, in_memory, in_slot, now);
    writer_.write(at(slot(self_, number), in_slot), at(head_->what.out, in_memory), now * element);
  }
}

void channel::drain(std::uint64_t number) const {
  const auto& call = head_->what.call;
  const auto* in = head_->what.in;
  auto* const out = head_->what.out;
  const auto element = size_of(call.type);
  const auto [first, count] = chunk(number);
  switch (call.what) {
    case collective_kind::all_reduce:
      if (schedule_.how == form::together) return reduce_own(number, 0, 0, count);
      for (std::size_t m = 0; m < members_.size(); ++m) {
        const auto part = slice_of(count, m);
        if (m != self_)
          copy_bytes(at(out, (first + part.first) * element),
                     at(slot(m, number), part.first * element), part.count * element);
      }
      return;
    case collective_kind::broadcast:
      for (std::size_t m = 0; m < members_.size(); ++m)
        if (members_[m] == call.root && m != self_)
          copy_bytes(at(out, first * element), slot(m, number), count * element);
      return;
    case collective_kind::all_gather:
      for (std::size_t m = 0; m < members_.size(); ++m)
        copy_bytes(at(out, (m * call.count + first) * element),
                   m == self_ ? at(in, first * element) : slot(m, number), count * element);
      return;
    case collective_kind::reduce_scatter:
      return reduce_own(number, first * element, self_ * chunk_elements_ * element, count);
    case collective_kind::barrier:
    case collective_kind::decide:
    case collective_kind::work_together: return;  // never gets here: it needs one memory
  }
}

void channel::reduce_between(const slice& what) const {
  const auto& call = head_->what.call;
  std::array<const void*, world_max> sources;
  std::array<void*, world_max> targets;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    targets[m] =
        member_.memory().place(post_of(m, base_).call.place) + what.first * size_of(call.type);
    sources[m] = targets[m];
  }
  canonical_reduce(call.type, call.operation, {sources.data(), members_.size()},
                   {targets.data(), members_.size()}, what.count);
}

}  // namespace troupe::shm
