#include "backends/tcp/mesh.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::tcp {

operation::operation(channel& of, std::uint64_t n, chunk_pool& pool)
    : in_channel(of), number(n), steps(of.members.size(), of.me, pool) {}

std::size_t channel::member(std::int32_t rank) const { return place_among(members, rank); }

running_clock::time_point channel::moved() const { return open.front()->last_bytes; }

mesh::mesh(const group_description& who, std::uint16_t streams)
    : who_(who), streams_(streams), peers_(static_cast<std::size_t>(who.world)) {
  for (auto& p : peers_) p.streams.resize(streams);
  auto& world = among(members_of({}, who.world, who.rank));
  world.announced = true;
  for (auto& p : peers_) p.channels.push_back(&world);
}

channel& mesh::among(const std::vector<std::int32_t>& members) {
  const std::lock_guard hold{mutex_};
  return channel_of(members);
}

channel& mesh::channel_of(const std::vector<std::int32_t>& members) {
  for (auto& known : channels_)
    if (known.members == members) return known;
  if (channels_.size() == channels_max)
    throw internal_error(
        fmt::format("{} subgroups are in use, the most there may be", channels_max));
  auto& fresh = channels_.emplace_back();
  fresh.id = static_cast<std::uint32_t>(channels_.size() - 1);
  fresh.members = members;
  fresh.me = fresh.member(who_.rank);
  fresh.called.resize(members.size());
  for (const auto rank : members)
    if (peers_[static_cast<std::size_t>(rank)].main().left) fresh.departed = rank;
  return fresh;
}

std::shared_ptr<operation> mesh::at(channel& in, std::uint64_t number) {
  if (number < in.first || number - in.first >= collectives::ahead_max)
    throw wire_error(fmt::format("is at collective {}, this rank at {}", number, in.first));
  while (number - in.first >= in.open.size())
    in.open.push_back(std::make_shared<operation>(in, in.first + in.open.size(), pool_));
  return in.open[number - in.first];
}

void mesh::push(std::int32_t rank, outgoing frame) {
  auto& to = peers_[static_cast<std::size_t>(rank)];
  auto& main = to.main();
  if (main.left || main.closing) return;
  if (main.link)
    main.link->push(std::move(frame));
  else
    to.before.push_back(std::move(frame));
}

void mesh::push_chunk(std::int32_t rank, outgoing frame) {
  if (!frame.of->steps.wide()) return push(rank, std::move(frame));
  auto& to = peers_[static_cast<std::size_t>(rank)];
  stream* best = nullptr;
  for (std::size_t i = 0; i < to.streams.size(); ++i) {
    auto& next = to.streams[(to.turn + i) % to.streams.size()];
    if (!next.link || next.left || next.closing) continue;
    if (!best || next.link->queued() < best->link->queued()) best = &next;
  }
  if (!best) return;
  to.turn = static_cast<std::size_t>(best - to.streams.data()) + 1;
  best->link->push(std::move(frame));
}

void mesh::announce(channel& in) {
  if (in.announced) return;
  in.announced = true;
  const auto extension = encode_ranks(in.members);
  for (const auto rank : in.members)
    if (rank != who_.rank)
      push(rank, make_outgoing({.kind = frame_kind::channel, .channel = in.id}, extension));
}

std::shared_ptr<operation> mesh::submit(channel& in, submission with) {
  const std::lock_guard hold{mutex_};
  const auto number = in.submitted;
  if (!aborted()) collectives::check_in_flight(with.call, number - in.first);
  ++in.submitted;
  if (!aborted() && in.departed >= 0) fail(collectives::closed_before(with.call, in.departed));
  if (aborted()) {
    auto late = std::make_shared<operation>(in, number, pool_);
    late->how.end(end_.result_of(in.id, number, who_.rank, false));
    return late;
  }
  announce(in);
  auto what = at(in, number);
  what->submitted = true;
  what->in = with.in;
  what->out = with.out;
  what->last_bytes = clock::now();
  ++in_flight_;
  const bool root = with.call.what == collective_kind::broadcast && with.call.root == who_.rank;
  const bool agreed = what->steps.call(in.me, with.call, with.yes || root);
  call_out(what, with.call, with.yes);
  if (agreed)
    settle(in);
  else
    disagree(*what);
  if (!aborted()) flush();
  // A thread that leads may sleep without a look at what this operation has to send or expects.
  if (driven_.load(std::memory_order_seq_cst)) waker_.ring();
  poller_.soon();
  return what;
}

// Sends the call to the other members; with the payload, if it is small and no operation is open
// before this one.
void mesh::call_out(const std::shared_ptr<operation>& what, const collective_call& call, bool yes) {
  auto& in = what->in_channel;
  const bool ready = what->number == in.first;
  if (ready) {
    what->steps.start(what->in, what->out, end_.flag());
    if (what->steps.wide()) ++wide_;
  }
  const auto extension = encode(call);
  for (std::size_t member = 0; member < in.members.size(); ++member) {
    if (member == in.me) continue;
    std::optional<parcel> body;
    if (ready && what->steps.small()) body = what->steps.next(member);
    frame_header header{.kind = frame_kind::call,
                        .ready = ready,
                        .yes = yes && call.what == collective_kind::decide,
                        .channel = in.id,
                        .number = what->number,
                        .body_bytes = body ? static_cast<std::uint32_t>(body->bytes) : 0};
    auto frame = make_outgoing(header, extension);
    if (body) {
      frame.body = body->from;
      frame.body_bytes = body->bytes;
      frame.of = what;
      frame.member = member;
    }
    push(in.members[member], std::move(frame));
  }
  if (ready) pump(what);
}

// What stood before it is done: its memory may be read and written.
void mesh::start(const std::shared_ptr<operation>& what) {
  auto& in = what->in_channel;
  what->steps.start(what->in, what->out, end_.flag());
  if (what->steps.wide()) ++wide_;
  for (std::size_t member = 0; member < in.members.size(); ++member) {
    if (member == in.me) continue;
    std::optional<parcel> payload;
    if (what->steps.small()) payload = what->steps.next(member);
    if (payload)
      push(in.members[member], data_frame(what, member, *payload));
    else
      push(in.members[member],
           make_outgoing({.kind = frame_kind::ready, .channel = in.id, .number = what->number}));
  }
  pump(what);
}

outgoing mesh::data_frame(const std::shared_ptr<operation>& what, std::size_t member,
                          const parcel& of) const {
  auto frame = make_outgoing({.kind = frame_kind::data,
                              .what = of.what,
                              .channel = what->in_channel.id,
                              .number = what->number,
                              .offset = of.offset,
                              .body_bytes = static_cast<std::uint32_t>(of.bytes)});
  frame.body = of.from;
  frame.body_bytes = of.bytes;
  frame.of = what;
  frame.member = member;
  return frame;
}

void mesh::pump(const std::shared_ptr<operation>& what) {
  const auto& in = what->in_channel;
  for (std::size_t member = 0; member < in.members.size(); ++member)
    while (const auto parcel = what->steps.next(member))
      push_chunk(in.members[member], data_frame(what, member, *parcel));
}

void mesh::settle(channel& in) {
  while (!in.open.empty() && !aborted()) {
    const auto front = in.open.front();
    if (!front->submitted) return;
    if (!front->steps.started()) start(front);
    if (!front->steps.done()) return;
    front->steps.finish();
    if (front->steps.wide()) --wide_;
    if (front->how.end({work_status::ok, {}, {}})) --in_flight_;
    in.open.pop_front();
    ++in.first;
    if (!in.open.empty()) in.open.front()->last_bytes = clock::now();
    followers_.notify_all();
  }
}

work_result mesh::poll(operation& what, clock::time_point begin,
                       std::chrono::nanoseconds deadline) {
  const auto late = [&] { return deadline.count() > 0 && clock::now() >= begin + deadline; };
  if (what.how.pending() && !aborted() && late()) expire(what, begin, deadline);
  if (what.how.pending() && aborted()) end_aborted(what);
  return what.how.result();
}

void mesh::wait(operation& what, clock::time_point begin, std::chrono::nanoseconds deadline) {
  if (what.how.pending()) drive(what, begin, deadline);
  while (what.how.pending()) end_aborted(what);  // or another thread is about to
  if (what.how.status() == work_status::ok) return;
  // Unwinding frees the operation's memory, so wait until no thread writes there any more.
  let_go();
  raise(what.how.result());
}

}  // namespace troupe::tcp
