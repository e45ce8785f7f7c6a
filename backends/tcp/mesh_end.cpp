// How a mesh ends: aborted from inside or outside, disagreed, timed out, departed.
#include "backends/tcp/mesh.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <utility>

namespace troupe::tcp {

void mesh::set_aborted(collectives::end_reason why) noexcept {
  if (!end_.abort(std::move(why))) return;
  std::function<void(const std::string&)> notify;
  {
    const std::lock_guard hold{when_aborted_mutex_};
    notify.swap(when_aborted_);
  }
  if (notify) notify(end_.why());
}

void mesh::when_aborted(std::function<void(const std::string&)> what) {
  {
    const std::lock_guard hold{when_aborted_mutex_};
    if (!aborted()) {
      when_aborted_ = std::move(what);
      return;
    }
  }
  what(end_.why());
}

void mesh::abort(std::string_view why) noexcept {
  if (aborted()) return;
  collectives::end_reason reason;
  try {
    reason.text = why;
  } catch (...) {  // no memory for the text; the abort itself needs none
  }
  set_aborted(std::move(reason));
  // The thread that moves bytes sends the abort to the peers. If no thread does, this one sends it.
  if (const std::unique_lock hold{mutex_, std::try_to_lock}; hold) {
    try {
      spread({.text = std::string{why}});
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
  fail(collectives::disagreed(in.id, what.number, calls));
}

void mesh::fail(const collectives::end_reason& why) {
  if (aborted()) return;
  set_aborted(why);
  spread(why);
}

// A rank that submitted while the abort was on its way is itself one of the missing ranks.
void mesh::end_aborted(operation& what) const {
  what.how.end(end_.result_of(what.in_channel.id, what.number, who_.rank));
}

void mesh::spread(const collectives::end_reason& why) {
  if (std::exchange(spread_, true)) return;
  const bool named = why.status != work_status::aborted && why.channel < channels_.size() &&
                     channels_[why.channel].announced;
  last_words_ = encode(why);
  last_header_ = {.kind = frame_kind::abort,
                  .channel = named ? static_cast<std::uint32_t>(why.channel) : no_channel,
                  .number = why.number};
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

void mesh::on_end(std::int32_t rank, std::uint16_t stream) {
  auto& from = peers_[static_cast<std::size_t>(rank)].streams[stream];
  if (from.left) return close_link(from);
  fail(fmt::format("rank {} is lost: {}", rank, from.link->why()));
}

void mesh::depart() noexcept {
  const std::lock_guard hold{mutex_};
  departed_.store(true, std::memory_order_seq_cst);
  try {
    for (auto& in : channels_)
      for (const auto& open : in.open)
        if (open->submitted && open->how.pending())
          fail(collectives::closed_in_flight(who_.rank, describe(open->steps.call_of(in.me))));
    if (aborted() && !spread_) spread({.text = why()});
    for (auto& to : peers_) say_last(to);
  } catch (const std::exception& error) {
    set_aborted({.text = error.what()});
  }
  poller_.now();
}

}  // namespace troupe::tcp
