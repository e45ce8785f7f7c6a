// Finds the ranks that a timeout names. A rank may wait for bytes that depend on a third rank. So
// the members are asked for which ranks they wait; silent ranks and ranks that have not called are
// named.
#include "backends/tcp/frame_handler.hpp"

#include <algorithm>

namespace troupe::tcp {

namespace {

// The time for answers to an inquiry. A backend's thread answers even while its lanes are busy.
constexpr std::chrono::milliseconds patience{200};

template <class Predicate>
std::vector<std::int32_t> others(const channel& in, const Predicate& that) {
  std::vector<std::int32_t> ranks;
  for (std::size_t i = 0; i < in.members.size(); ++i)
    if (i != in.me && that(i)) ranks.push_back(in.members[i]);
  return ranks;
}

bool waits_in(const channel& in) { return !in.open.empty() && in.open.front()->submitted; }

std::vector<std::int32_t> owing(const operation& what) {
  return others(what.in_channel, [&](std::size_t i) { return what.steps.owes(i); });
}

// The ranks to name without an inquiry: those that have not called; else those that hold the
// operation up directly; else those that may only wait for others.
std::vector<std::int32_t> suspects(const operation& what) {
  const auto& in = what.in_channel;
  auto ranks = others(in, [&](std::size_t i) { return !what.steps.called(i); });
  if (ranks.empty()) ranks = others(in, [&](std::size_t i) { return what.steps.blocks(i); });
  return ranks.empty() ? owing(what) : ranks;
}

}  // namespace

mesh::clock::time_point mesh::expire(operation& what, clock::time_point begin,
                                     std::chrono::nanoseconds deadline) {
  const std::lock_guard hold{mutex_};
  if (!what.how.pending() || aborted()) return begin + deadline;
  const auto& in = what.in_channel;
  const auto uncalled = [&](std::size_t i) { return !what.steps.called(i); };
  if (others(in, uncalled).empty()) begin = in.moved();
  const auto due = begin + deadline;
  if (clock::now() < due) return due;
  // All operations past their deadline share one inquiry, so a caller that polls several gets each
  // answer in time.
  if (!inquiry_ || inquiry_->begun < due) inquire(what, deadline);
  const auto enough = inquiry_->begun + patience;
  if (inquiry_->open == 0 || clock::now() >= enough) conclude(what, deadline);
  return enough;
}

void mesh::inquire(const operation& about, std::chrono::nanoseconds deadline) {
  const auto& in = about.in_channel;
  inquiry_.emplace(inquiry{&in, about.number, clock::now(), deadline, 0, {}});
  for (const auto rank : in.members) {
    const auto& to = peers_[static_cast<std::size_t>(rank)];
    if (rank == who_.rank || !to.main().link || to.main().left || to.main().closing) continue;
    ++inquiry_->open;
    push(rank, make_outgoing({.kind = frame_kind::ask, .channel = in.id, .number = about.number}));
  }
  flush();
  poller_.soon();
}

// The ranks for which this rank waits, in this channel or another. Itself if its lane has not
// called. None if operation `number` is over here.
std::vector<std::int32_t> mesh::awaited(const channel& in, std::uint64_t number) const {
  if (number < in.first) return {};
  if (waits_in(in)) return owing(*in.open.front());
  for (const auto& other : channels_)
    if (waits_in(other)) return owing(*other.open.front());
  return {who_.rank};
}

void mesh::answer_ask(std::int32_t rank, const channel& in, const frame_header& ask) {
  const auto& to = peers_[static_cast<std::size_t>(rank)];
  if (to.main().link->queues(frame_kind::waits)) return;  // it has not received the last answer
  auto header = ask;
  header.kind = frame_kind::waits;
  push(rank, make_outgoing(header, encode_ranks(awaited(in, ask.number))));
}

void mesh::on_answer(std::int32_t rank, const frame_header& header,
                     std::vector<std::int32_t> ranks) {
  if (!inquiry_ || header.channel != inquiry_->about->id || header.number != inquiry_->number ||
      inquiry_->open == 0 || !inquiry_->answers.emplace(rank, std::move(ranks)).second)
    return;
  const auto& in = *inquiry_->about;
  if (--inquiry_->open > 0 || header.number < in.first) return;
  auto& what = *in.open[header.number - in.first];
  if (in.moved() > inquiry_->begun) return;
  conclude(what, inquiry_->deadline);
  if (aborted()) throw group_over{};
}

void mesh::conclude(operation& what, std::chrono::nanoseconds deadline) {
  if (aborted() || !what.how.pending()) return;
  const auto& in = what.in_channel;
  std::vector<std::int32_t> missing;
  if (inquiry_->about == &in)
    missing = holding_up(who_.rank, awaited(in, what.number), inquiry_->answers);
  if (missing.empty()) missing = suspects(what);
  fail(collectives::late(in.id, what.number, what.steps.call_of(in.me), deadline,
                         std::move(missing)));
}

}  // namespace troupe::tcp
