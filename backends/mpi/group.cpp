#include "backends/mpi/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>

namespace troupe::mpi {

namespace {

constexpr std::uint64_t whole_world = 0;
constexpr int control_message_tag = 0;
constexpr std::uint64_t tags = 32767;  // from 1 on: each MPI has so many

// Of a channel: its operations begin in the same order on all members, and MPI keeps the order of
// the messages of one tag from one rank to another.
int tag_of(std::uint64_t name) {
  return name == whole_world ? 0 : static_cast<int>(1 + name % tags);
}

}  // namespace

group::group(const group_description& who) : who_(who) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(who.world));
  std::iota(all.begin(), all.end(), 0);
  members_.emplace(whole_world, std::move(all));
  channel_of(whole_world);
}

std::shared_ptr<task> group::submit(const std::vector<std::int32_t>& members, submission what,
                                    std::chrono::nanoseconds deadline) {
  const bool all = members.size() == static_cast<std::size_t>(who_.world);
  const auto name = all ? whole_world : channel_name(members);
  what.call.label = fitting(what.call.label);
  auto made = std::make_shared<task>(std::move(what), deadline);
  {
    const std::lock_guard hold{mutex_};
    const auto [known, fresh] = members_.try_emplace(name, members);
    if (fresh)
      for (const auto& [other, ranks] : members_)
        if (other != name && tag_of(other) == tag_of(name)) {
          members_.erase(known);
          throw std::invalid_argument(
              "this subgroup and an earlier one have the same identity over "
              "mpi; use another set of ranks");
        }
    made->channel = name;
    made->number = submitted_[name];
    if (!aborted()) {
      collectives::check_in_flight(made->what.call, static_cast<std::uint64_t>(in_flight_.load()));
      in_flight_.fetch_add(1);
      inbox_.emplace_back(name, made);
    }
    ++submitted_[name];
  }
  settle(*made);
  return made;
}

void group::settle(task& what) const {
  if (aborted() && what.how.pending())
    what.how.end(end_.result_of(what.channel, what.number, who_.rank));
}

void group::settle_unopened() {
  if (open_ || aborted()) return;
  const auto now = running_clock::now();
  const std::lock_guard hold{mutex_};
  for (const auto& [name, what] : inbox_) {
    const auto limit = what->deadline;
    if (limit.count() == 0 || now - what->submitted < limit) continue;
    auto missing = members_.at(name);
    std::erase(missing, who_.rank);
    end_.abort(collectives::late(name, what->number, what->what.call, limit, std::move(missing)));
    return;
  }
}

bool group::quiescent() const noexcept {
  return touching_.load() == 0 && (aborted() || in_flight_.load() == 0);
}

void group::close() {
  if (in_flight_.load() > 0)
    abort(fmt::format("rank {} left while a collective was in flight", who_.rank));
  closed_.store(true);
}

// Ends the group if a call of MPI was no success.
void group::need(int result) {
  if (result != MPI_SUCCESS) abort("MPI reported an error: " + error_text(result));
}

void group::open(MPI_Comm world) {
  need(MPI_Comm_idup(world, &comm_, &opening_));
  begun_ = true;
}

void group::pump(const operations& arithmetic) {
  arithmetic_ = &arithmetic;
  if (begun_ && !open_) {
    int done = 0;
    need(MPI_Test(&opening_, &done, MPI_STATUS_IGNORE));
    if (done != 0) {
      open_ = true;
      need(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
      control_message hello{.kind = control_message_kind::hello,
                            .number = who_.generation.value(),
                            .count = who_.job.value()};
      send_others(hello);
    }
  }
  take_submissions();
  if (open_) receive();
  const auto now = running_clock::now();
  const bool look = now - checked_ > std::chrono::milliseconds{1};
  if (look) checked_ = now;
  if (look && !aborted())
    for (auto& [name, at] : channels_) check_deadlines(at);
  if (!open_) return;
  advance();
  if (aborted() && !end_sent_) {
    control_message end{.kind = control_message_kind::abort};
    put_text(end, why());
    send_others(end);
    end_sent_ = true;
  }
  if (closed_.load() && !left_) send_bye();
  std::erase_if(outgoing_, [this](outgoing& one) {
    int done = 0;
    need(MPI_Test(&one.request, &done, MPI_STATUS_IGNORE));
    return done != 0;
  });
}

// Called before an end of the group is processed. Operations at which all members have arrived
// begin now, and small ones complete.
void group::advance() {
  for (auto& [name, at] : channels_) {
    start_ready(name, at);
    finish_started(at);
  }
}

void group::send(const control_message& what, std::int32_t to) {
  auto& one = outgoing_.emplace_back(outgoing{what});
  const auto size = offsetof(control_message, text) + what.text_size;
  need(MPI_Isend(&one.content, static_cast<int>(size), MPI_BYTE, to, control_message_tag, comm_,
                 &one.request));
}

void group::send_others(control_message what) {
  what.sender = who_.rank;
  for (std::int32_t rank = 0; rank < who_.world; ++rank)
    if (rank != who_.rank) send(what, rank);
}

void group::receive() {
  while (departed_.size() + 1 < static_cast<std::size_t>(who_.world)) {
    if (receiving_ == MPI_REQUEST_NULL)
      need(MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, control_message_tag,
                     comm_, &receiving_));
    int done = 0;
    MPI_Status status;
    const auto result = MPI_Test(&receiving_, &done, &status);
    need(result);
    if (done == 0 || result != MPI_SUCCESS) return;
    incoming_.sender = status.MPI_SOURCE;
    take_message(incoming_);
  }
}

void group::take_message(const control_message& what) {
  switch (what.kind) {
    case control_message_kind::hello:
      if (what.number != who_.generation.value() || what.count != who_.job.value())
        abort(fmt::format("rank {} opened generation {} of job {} where this one opened {}",
                          what.sender, what.number, what.count,
                          collectives::generation_text(who_)));
      return;
    case control_message_kind::call: return take_call(what);
    case control_message_kind::mismatch: return end_with_mismatch(what);
    case control_message_kind::abort: end_sent_ = true; return abort(text_of(what));
    case control_message_kind::bye:
      departed_.push_back(what.sender);
      // This `bye` with a reason may arrive before the message of the rank that ended the group.
      if (what.yes != 0) {
        end_with_mismatch(what);
      } else if (what.text_size != 0 && !aborted()) {
        advance();
        end_sent_ = true;
        abort(text_of(what));
      }
      for (auto& [name, at] : channels_) check_departed(at);
      return;
  }
}

// Operations at which all members have arrived still complete.
void group::end_with_mismatch(const control_message& what) {
  advance();
  end_sent_ = true;
  if (end_.abort({work_status::mismatch, text_of(what), {}, what.channel, what.number}))
    mismatch_ = {what.channel, what.number};
}

void group::take_call(const control_message& what) {
  const auto found = channels_.find(what.channel);
  if (found == channels_.end()) {
    early_[what.channel].push_back(what);
    return;
  }
  try {
    auto& at = found->second;
    arrive(what.channel, at, at.arrived.member(what.sender), what);
  } catch (const std::exception& error) {
    abort(fmt::format("rank {} sent what it should not: {}", what.sender, error.what()));
  }
}

void group::arrive(std::uint64_t name, channel& at, std::size_t member,
                   const control_message& what) {
  const auto number = at.arrived.arrivals(member);
  const auto differs = at.arrived.arrive(member, call_of(what), what.yes != 0);
  if (differs) disagree(name, number, *differs);
}

void group::disagree(std::uint64_t name, std::uint64_t number, std::string text) {
  if (aborted()) return;
  control_message end{.kind = control_message_kind::mismatch, .channel = name, .number = number};
  put_text(end, text);
  if (open_) {
    send_others(end);
    end_sent_ = true;
  }
  if (end_.abort({work_status::mismatch, std::move(text), {}, name, number}))
    mismatch_ = {name, number};
}

group::channel& group::channel_of(std::uint64_t name) {
  const auto known = channels_.find(name);
  if (known != channels_.end()) return known->second;
  std::vector<std::int32_t> members;
  {
    const std::lock_guard hold{mutex_};
    members = members_.at(name);
  }
  channel made{.arrived = arrival_table{std::move(members)}, .queue = {}};
  made.member = made.arrived.member(who_.rank);
  return channels_.emplace(name, std::move(made)).first->second;
}

void group::take_submissions() {
  std::vector<named> taken;
  {
    const std::lock_guard hold{mutex_};
    // Notes go out once there is a communicator; what comes before it only counts as arrived.
    if (!open_ || inbox_.empty()) return;
    taken.swap(inbox_);
  }
  for (const auto& [name, what] : taken) take(name, what);
}

void group::take(std::uint64_t name, const std::shared_ptr<task>& what) {
  auto& at = channel_of(name);
  const auto early = early_.extract(name);
  if (early)
    for (const auto& one : early.mapped()) take_call(one);
  at.queue.push_back(what);
  auto call = control_message_of(what->what.call, what->what.yes);
  call.channel = name;
  call.sender = who_.rank;
  for (const auto rank : at.arrived.members())
    if (rank != who_.rank) send(call, rank);
  arrive(name, at, at.member, call);
  check_departed(at);
}

void group::start_ready(std::uint64_t name, channel& at) {
  while (at.arrived.complete(at.begun)) {
    const auto found = std::find_if(at.queue.begin(), at.queue.end(),
                                    [&](const auto& one) { return one->number == at.begun; });
    if (found == at.queue.end()) return;
    auto& what = **found;
    const auto bars = [&](const auto& one) {
      return one->touching.load() && one->bars(what, at.arrived.members().size());
    };
    if (std::any_of(at.queue.begin(), found, bars)) return;
    bool aside = aborted();
    if (!aside) {
      // In this order: a thread that aborts later sees that the memory is in use.
      touching_.fetch_add(1);
      what.touching.store(true);
      aside = aborted();
      if (aside) {
        what.touching.store(false);
        touching_.fetch_sub(1);
      }
    }
    if (what.what.call.what == collective_kind::decide)
      what.verdict.store(at.arrived.verdict(at.begun));
    what.start({comm_, &at.arrived.members(), at.member, tag_of(name)}, *arithmetic_, aside);
    ++at.begun;
  }
}

void group::finish_started(channel& at) {
  std::erase_if(at.queue, [&](const std::shared_ptr<task>& one) {
    if (!one->started()) return false;
    const bool touched = one->touching.load();
    if (!one->finished()) return false;
    if (touched) touching_.fetch_sub(1);
    if (!one->trouble().empty()) abort(one->trouble());
    if (one->empty_participation() && !aborted()) return false;
    // Before the lane can see the end: it may close the group at once.
    in_flight_.fetch_sub(1);
    if (one->aside() || one->empty_participation())
      settle(*one);
    else
      one->how.end({work_status::ok, {}, {}});
    return true;
  });
  if (!at.queue.empty())
    at.arrived.drop_before(std::min(at.begun, at.queue.front()->number));
  else
    at.arrived.drop_before(at.begun);
}

void group::check_deadlines(channel& at) {
  const auto now = running_clock::now();
  for (const auto& one : at.queue) {
    const auto limit = one->deadline;
    if (limit.count() == 0 || one->started() || now - one->submitted < limit) continue;
    auto missing = at.arrived.missing(one->number);
    if (missing.empty()) continue;
    end_.abort(
        collectives::late(one->channel, one->number, one->what.call, limit, std::move(missing)));
    return settle(*one);
  }
}

void group::check_departed(channel& at) {
  if (aborted()) return;
  for (const auto& one : at.queue) {
    if (one->started()) continue;
    for (const auto rank : at.arrived.missing(one->number))
      if (std::find(departed_.begin(), departed_.end(), rank) != departed_.end())
        return abort(fmt::format("rank {} has left; {} needs it", rank, describe(one->what.call)));
  }
}

// Sends `bye`, after all other messages of this rank.
void group::send_bye() {
  {
    const std::lock_guard hold{mutex_};
    if (!inbox_.empty()) return;
  }
  control_message bye{.kind = control_message_kind::bye};
  if (mismatch_) {
    bye.yes = 1;
    std::tie(bye.channel, bye.number) = *mismatch_;
  }
  if (aborted()) put_text(bye, why());
  send_others(bye);
  left_ = true;
}

bool group::over() const {
  if (!left_ || !outgoing_.empty()) return false;
  if (departed_.size() + 1 < static_cast<std::size_t>(who_.world)) return false;
  return std::all_of(channels_.begin(), channels_.end(), [](const auto& named) {
    const auto& queue = named.second.queue;
    return std::none_of(queue.begin(), queue.end(), [](const auto& one) { return one->started(); });
  });
}

void group::free() { MPI_Comm_free(&comm_); }

}  // namespace troupe::mpi
