#include "backends/simulated/fabric_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "backends/collective/canonical_reduction.hpp"
#include "backends/collective/submission.hpp"
#include "troupe/learner.hpp"

namespace troupe::simulated {

namespace {

class ended_work final : public work {
public:
  explicit ended_work(std::string why) : why_(std::move(why)) {}
  work_result poll() override { return {work_status::aborted, why_, {}}; }
  void wait() override { throw generation_closed(why_); }

private:
  const std::string why_;
};

std::vector<called> calls_of(const channel& in, const operation& what) {
  std::vector<called> calls;
  for (std::size_t i = 0; i < in.members.size(); ++i)
    if (what.parts[i].arrived) calls.push_back({in.members[i], what.call});
  return calls;
}

// Bytes that a member contributes.
std::size_t bytes_in(const collective_call& call, std::size_t members) {
  const auto one = static_cast<std::size_t>(call.count) * size_of(call.type);
  return call.what == collective_kind::reduce_scatter ? one * members : one;
}

std::span<const std::byte> brought_by(const operation& what, std::size_t index) {
  const auto one = what.brought.size() / what.parts.size();
  return std::span{what.brought}.subspan(index * one, one);
}

void bring(operation& what, std::size_t index, const void* memory) {
  const auto bytes = bytes_in(what.call, what.parts.size());
  if (bytes == 0) return;
  if (what.arrived > 0 && what.brought.empty() != (memory == nullptr))
    throw internal_error(describe(what.call) + ": some ranks have memory and some do not");
  if (!memory) return;
  what.brought.resize(bytes * what.parts.size());
  std::memcpy(what.brought.data() + index * bytes, memory, bytes);
}

void reduce(operation& what) {
  if (what.brought.empty()) return;
  std::vector<const void*> sources;
  sources.reserve(what.parts.size());
  for (std::size_t i = 0; i < what.parts.size(); ++i) sources.push_back(brought_by(what, i).data());
  what.result.resize(brought_by(what, 0).size());
  void* target = what.result.data();
  canonical_reduce(what.call.type, what.call.operation, sources, {&target, 1},
                   what.result.size() / size_of(what.call.type));
}

}  // namespace

std::size_t channel::index_of(std::int32_t rank) const {
  const auto usual = static_cast<std::size_t>(rank);  // the index in a group of all ranks
  if (usual < members.size() && members[usual] == rank) return usual;
  return place_among(members, rank);
}

work_result operation::part::poll() {
  const auto status = now();
  if (status == work_status::ok || status == work_status::pending) return {status, {}, {}};
  if (status == work_status::aborted) return {status, who->why, {}};
  return {status, whole->text, whole->missing};
}

void operation::part::wait() {
  switch (now()) {
    case work_status::ok: return;
    case work_status::pending: throw not_yet{};
    case work_status::timed_out: throw collective_timeout(whole->text);
    case work_status::mismatch: throw collective_mismatch(whole->text);
    case work_status::aborted: throw generation_closed(who->why);
  }
}

std::shared_ptr<member> fabric_group::join(const group_description& who,
                                           std::shared_ptr<const fabric_endpoint> endpoint) {
  const auto of = [&who] {
    return fmt::format("generation {} of job {}", who.generation.value(), who.job.value());
  };
  if (who.world != static_cast<std::int32_t>(members_.size()) || who.rank < 0 ||
      who.rank >= who.world)
    throw std::invalid_argument(fmt::format("{}: there is no rank {} of {} in a world of {}", of(),
                                            who.rank, who.world, members_.size()));
  auto& mine = members_[static_cast<std::size_t>(who.rank)];
  if (mine) throw internal_error(fmt::format("{}: rank {} opened it before", of(), who.rank));
  mine = std::make_shared<member>();
  mine->rank = who.rank;
  mine->endpoint = std::move(endpoint);
  return mine;
}

std::shared_ptr<channel> fabric_group::among(const std::vector<std::int32_t>& ranks) {
  for (const auto& known : channels_)
    if (known->members == ranks) return known;
  return channels_.emplace_back(std::make_shared<channel>(ranks));
}

// The first channel contains all ranks.
std::shared_ptr<channel> fabric_group::everybody() {
  if (channels_.empty()) {
    std::vector<std::int32_t> ranks(members_.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    channels_.push_back(std::make_shared<channel>(std::move(ranks)));
  }
  return channels_.front();
}

bool fabric_group::verdict(const work& of) const {
  return static_cast<const operation::part&>(of).whole->verdict;
}

work_ptr fabric_group::submit(const std::shared_ptr<member>& me, const std::shared_ptr<channel>& in,
                              endpoint_call with, std::chrono::nanoseconds deadline) {
  if (me->aborted) return std::make_shared<ended_work>(me->why);
  if (any_departed_)
    for (const auto rank : in->members)
      if (const auto& other = members_[static_cast<std::size_t>(rank)]; other && other->departed) {
        abort(*me, fmt::format("{} cannot be met: rank {} has closed its communicator",
                               describe(with.call), rank));
        return std::make_shared<ended_work>(me->why);
      }
  const auto index = in->index_of(me->rank);
  const auto number = in->submitted[index];
  collectives::check_in_flight(with.call, number - in->first);
  ++in->submitted[index];
  if (number - in->first == in->window.size()) {
    const auto& fresh =
        in->window.emplace_back(std::make_shared<operation>(in->members.size(), with.call));
    fresh->deadline = deadline;
    if (deadline.count() > 0) watch(in, fresh);
  }
  const auto what = in->window[number - in->first];
  auto& mine = what->parts[index];
  const bool agrees = what->call == with.call;
  if (agrees) bring(*what, index, with.in);
  mine.who = me;
  mine.whole = what.get();
  mine.out = with.out;
  mine.yes = with.yes;
  mine.arrived = true;
  ++what->arrived;
  ++me->open;
  if (network_.met && in->members.size() == members_.size()) {
    what->arrivals.resize(what->parts.size());
    what->arrivals[index] = {me->rank, network_.now()};
  }
  if (!agrees) {
    auto calls = calls_of(*in, *what);
    for (auto& c : calls)
      if (c.rank == me->rank) c.call = with.call;
    what->text = disagreement(number, calls);
    for (auto& p : what->parts)
      if (p.arrived) p.status = work_status::mismatch;
    abort(*me, what->text);
  } else if (what->arrived == what->parts.size()) {
    in->window.pop_front();
    ++in->first;
    if (!what->arrivals.empty()) network_.met(what->call, what->arrivals);
    what->arrivals = {};
    meet(in, what);
  }
  return {what, &mine};
}

bool fabric_group::any_isolated(const channel& in) const {
  return !network_.isolated.empty() && in.members.size() > 1 &&
         std::ranges::any_of(in.members,
                             [&](std::int32_t r) { return network_.isolated.contains(r); });
}

// All members have arrived: the result is known, and each member completes after its own delay.
void fabric_group::meet(const std::shared_ptr<channel>& in,
                        const std::shared_ptr<operation>& what) {
  if (any_isolated(*in)) {
    stalled_.emplace_back(in, what);
    return;
  }
  complete(in, what);
}

void fabric_group::complete(const std::shared_ptr<channel>& in,
                            const std::shared_ptr<operation>& what) {
  what->met = true;
  const auto& call = what->call;
  switch (call.what) {
    case collective_kind::all_reduce:
    case collective_kind::reduce_scatter: reduce(*what); break;
    case collective_kind::broadcast: {
      const auto root = what->brought.empty() ? std::span<const std::byte>{}
                                              : brought_by(*what, in->index_of(call.root));
      what->result.assign(root.begin(), root.end());
      break;
    }
    case collective_kind::all_gather: what->result = std::move(what->brought); break;
    case collective_kind::decide: {
      const auto yes = &operation::part::yes;
      what->verdict =
          call.all ? std::ranges::all_of(what->parts, yes) : std::ranges::any_of(what->parts, yes);
      break;
    }
    case collective_kind::barrier:
    case collective_kind::work_together: break;
  }
  what->brought = {};
  const auto now = network_.now();
  in->busy_until = std::max(in->busy_until, now) + network_.cost.of(call, in->members.size());
  const auto cost = in->busy_until - now;
  const auto self = shared_from_this();
  for (std::size_t i = 0; i < in->members.size(); ++i) {
    auto* who = members_[static_cast<std::size_t>(in->members[i])].get();
    if (who->vanished) continue;
    const auto extra = who->endpoint->delay ? who->endpoint->delay() : std::chrono::nanoseconds{0};
    who->endpoint->later(cost + extra,
                         [who, self = self, what = what, i] { self->finish(*what, i, *who); });
  }
}

void fabric_group::finish(operation& what, std::size_t index, member& who) {
  auto& mine = what.parts[index];
  if (mine.status != work_status::pending || who.aborted || who.vanished || who.departed) return;
  const auto& call = what.call;
  if (mine.out && !what.result.empty()) {
    const auto piece = static_cast<std::size_t>(call.count) * size_of(call.type);
    if (call.what == collective_kind::reduce_scatter)
      std::memcpy(mine.out, what.result.data() + index * piece, piece);
    else
      std::memcpy(mine.out, what.result.data(), what.result.size());
  }
  mine.status = work_status::ok;
  --who.open;
  who.endpoint->bell->ring();
}

// --- ends ----------------------------------------------------------------------------------------

// Ends the member's pending operations. The first reason is kept.
void fabric_group::end(member& who, const std::string& why) noexcept {
  if (who.aborted || who.vanished) return;
  who.aborted = true;
  who.why = why;
  who.open = 0;
}

void fabric_group::abort(member& from, std::string why) noexcept {
  if (from.vanished || from.aborted) return;
  end(from, why);
  const auto ring = [](const std::shared_ptr<lane_bell>& bell) { bell->ring(); };
  from.endpoint->later(std::chrono::nanoseconds{0},
                       [ring, bell = from.endpoint->bell] { ring(bell); });
  if (network_.isolated.contains(from.rank)) return;
  for (const auto& other : members_) {
    if (!other || other.get() == &from || other->vanished || other->aborted) continue;
    if (network_.isolated.contains(other->rank)) continue;
    const auto after =
        other->endpoint->delay ? other->endpoint->delay() : std::chrono::nanoseconds{0};
    other->endpoint->later(after, [self = shared_from_this(), other, why] {
      if (other->aborted || other->vanished || other->departed) return;
      self->end(*other, why);
      other->endpoint->bell->ring();
    });
  }
}

// One event serves all deadlines of a group, so an operation that ends in time costs none.
void fabric_group::watch(const std::shared_ptr<channel>& in,
                         const std::shared_ptr<operation>& what) {
  while (!watched_.empty() && watched_.front().what->met) watched_.pop_front();
  what->due = network_.now() + what->deadline;
  watched_.push_back({in, what});
  if (std::exchange(armed_, true)) return;
  network_.later(what->deadline, [self = weak_from_this()] {
    if (const auto group = self.lock()) group->look_at_clock();
  });
}

void fabric_group::look_at_clock() {
  armed_ = false;
  const auto now = network_.now();
  auto open = std::exchange(watched_, {});
  std::erase_if(open, [](const open_operation& o) { return o.what->met; });
  std::chrono::nanoseconds next{0};
  for (auto& o : open) {
    if (o.what->due <= now) {
      expire(o.in, o.what);
      continue;
    }
    if (next.count() == 0 || o.what->due < next) next = o.what->due;
    watched_.push_back(std::move(o));
  }
  if (watched_.empty()) return;
  armed_ = true;
  network_.later(next - now, [self = weak_from_this()] {
    if (const auto group = self.lock()) group->look_at_clock();
  });
}

void fabric_group::expire(const std::shared_ptr<channel>& in,
                          const std::shared_ptr<operation>& what) {
  bool anyone = false;
  for (std::size_t i = 0; i < in->members.size(); ++i) {
    const auto& p = what->parts[i];
    if (!p.arrived) what->missing.push_back(in->members[i]);
    anyone = anyone || (p.arrived && p.status == work_status::pending);
  }
  if (!anyone) return;
  what->text = missed(what->call, what->deadline, what->missing);
  for (std::size_t i = 0; i < in->members.size(); ++i) {
    auto& p = what->parts[i];
    if (!p.arrived || p.status != work_status::pending) continue;
    p.status = work_status::timed_out;
    const auto who = members_[static_cast<std::size_t>(in->members[i])];
    abort(*who, what->text);
  }
}

void fabric_group::depart(member& who) noexcept {
  if (who.departed || who.vanished) return;
  std::string why;
  for (const auto& in : channels_)
    if (!in->window.empty() && std::ranges::binary_search(in->members, who.rank) && why.empty())
      why = fmt::format("rank {} closed its communicator while {} was in flight", who.rank,
                        describe(in->window.front()->call));
  if (!why.empty()) abort(who, why);
  who.departed = any_departed_ = true;
}

void fabric_group::vanish(std::uint32_t process) {
  for (const auto& who : members_)
    if (who && who->endpoint->process == process) who->vanished = true;
}

void fabric_group::go_on() {
  auto waiting = std::exchange(stalled_, {});
  for (auto& [in, what] : waiting) meet(in, what);
}

}  // namespace troupe::simulated
