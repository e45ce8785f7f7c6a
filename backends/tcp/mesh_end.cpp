// How a mesh ends: aborted from inside or outside, disagreed, timed out, departed.
#include "backends/tcp/mesh.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

namespace troupe::tcp {

namespace {

constexpr std::uint32_t no_channel = 0xffffffff;

}  // namespace

std::string mesh::why() const {
  const std::lock_guard hold{why_mutex_};
  return why_;
}

void mesh::set_aborted(std::string_view why) noexcept {
  std::function<void(const std::string&)> told;
  {
    const std::lock_guard hold{why_mutex_};
    if (aborted()) return;
    try {
      why_ = why;
    } catch (...) {
      why_.clear();  // no memory for the reason; the abort itself needs none
    }
    aborted_.store(true, std::memory_order_seq_cst);
    told.swap(when_aborted_);
  }
  // why_ stays as it is from here on.
  if (told) told(why_);
}

void mesh::when_aborted(std::function<void(const std::string&)> what) {
  {
    const std::lock_guard hold{why_mutex_};
    if (!aborted()) {
      when_aborted_ = std::move(what);
      return;
    }
  }
  what(why_);
}

void mesh::abort(std::string_view why) noexcept {
  if (aborted()) return;
  set_aborted(why);
  // Whoever moves bytes tells the peers. If nobody does, this thread is the first that can.
  if (const std::unique_lock hold{mutex_, std::try_to_lock}; hold) {
    try {
      spread({work_status::aborted, std::string{why}, {}}, nullptr, 0);
    } catch (const std::exception&) {
      spread_ = false;  // no memory: the backend's thread tries again
    }
  }
  waker_.ring();
  poller_.now();
}

bool mesh::quiescent() const noexcept {
  if (aborted()) return touched_.load(std::memory_order_seq_cst) == 0;
  const std::lock_guard hold{mutex_};
  return in_flight_ == 0;
}

void mesh::let_go() const noexcept {
  while (touched_.load(std::memory_order_seq_cst) != 0) sched_yield();
}

void mesh::disagree(const operation& what) {
  const auto& in = what.in_channel;
  std::vector<called> calls;
  for (std::size_t i = 0; i < in.members.size(); ++i)
    if (what.steps.called(i)) calls.push_back({in.members[i], what.steps.call_of(i)});
  fail({work_status::mismatch, disagreement(what.number, calls), {}}, &what.in_channel,
       what.number);
}

void mesh::fail(const ending& how, channel* in, std::uint64_t number) {
  if (aborted()) return;
  if (in && how.status == work_status::mismatch) {
    in->disagreed = how.reason;
    in->disagreed_at = number;
  }
  if (in && how.status != work_status::aborted && number >= in->first &&
      number - in->first < in->open.size()) {
    auto& what = *in->open[number - in->first];
    // Called while the news was on its way: the rank that was waited for did not wait itself.
    const bool late =
        std::find(how.missing.begin(), how.missing.end(), who_.rank) != how.missing.end();
    if (what.submitted && !late) what.end(how.status, how.reason, how.missing);
  }
  set_aborted(how.reason);
  spread(how, in, number);
}

void mesh::spread(const ending& how, const channel* in, std::uint64_t number) {
  if (std::exchange(spread_, true)) return;
  last_words_ = encode(how);
  last_header_ = {.kind = frame_kind::abort,
                  .channel = in && in->announced ? in->id : no_channel,
                  .number = number};
  for (auto& to : peers_) {
    to.before.clear();
    say_last(to);
  }
  waker_.ring();
  poller_.now();
}

void mesh::say_last(peer& to) {
  for (auto& on : to.streams) say_last(on, &on == &to.main());
}

void mesh::say_last(stream& on, bool main) {
  if (!on.link || on.closing) return;
  const auto bye = [] { return make_outgoing({.kind = frame_kind::bye}); };
  if (aborted())
    on.link->cut(main ? make_outgoing(last_header_, last_words_) : bye());
  else
    on.link->push(bye());
  on.closing = true;
  on.link->flush(never, sent_);
  sent_.clear();
}

void mesh::hear_end(std::int32_t rank, std::uint16_t stream) {
  auto& from = peers_[static_cast<std::size_t>(rank)].streams[stream];
  if (from.left) return close_link(from);
  fail({work_status::aborted, fmt::format("rank {} is lost: {}", rank, from.link->why()), {}},
       nullptr, 0);
}

void mesh::depart() noexcept {
  const std::lock_guard hold{mutex_};
  departed_.store(true, std::memory_order_seq_cst);
  try {
    for (auto& in : channels_)
      for (const auto& open : in.open)
        if (open->submitted && open->status.load() == work_status::pending)
          fail({work_status::aborted,
                fmt::format("rank {} closed its communicator while {} was in flight", who_.rank,
                            describe(open->steps.call_of(in.me))),
                {}},
               nullptr, 0);
    if (aborted() && !spread_) spread({work_status::aborted, why(), {}}, nullptr, 0);
    for (auto& to : peers_) say_last(to);
  } catch (const std::exception& error) {
    set_aborted(error.what());
  }
  poller_.now();
}

}  // namespace troupe::tcp
