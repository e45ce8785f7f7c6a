#include "backends/shm/member.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace troupe::shm {

namespace {

// Readers wait for a writer, which writes a few hundred bytes. The bound is for a writer that was
// stopped or killed.
constexpr std::uint32_t patience = 20000;

}  // namespace

member::member(const group_description& who, std::shared_ptr<region> in, bool spin)
    : who_(who), region_(std::move(in)), spin_(spin), registered_(region_, who.rank) {}

std::shared_ptr<channel> member::among(const std::vector<std::int32_t>& members) {
  const std::lock_guard hold{mutex_};
  const auto known = std::find_if(channels_.begin(), channels_.end(),
                                  [&](const auto& c) { return c->members() == members; });
  auto* found = known == channels_.end() ? nullptr : known->get();
  if (!found) {
    rank_set set{};
    for (const auto rank : members) insert(set, rank);
    const auto index = find_or_open(set);
    region_->reserve_seat(index, who_.rank);
    // A concurrent abort may not have seen this new channel; then this rank sees the abort here.
    if (aborted()) close_words(index);
    found = channels_.emplace_back(std::make_unique<channel>(*this, index, members)).get();
  }
  return {shared_from_this(), found};
}

std::size_t member::find_or_open(const rank_set& members) {
  for (std::size_t c = 0; c < channels_max; ++c) {
    auto& block = region_->channel(c);
    auto state = channel_state::free;
    if (block.state.compare_exchange_strong(state, channel_state::claimed)) {
      block.members = members;
      block.state.store(channel_state::open, std::memory_order_seq_cst);
      return c;
    }
    for (std::uint32_t turn = 0; state != channel_state::open; ++turn) {
      if (turn == patience)
        throw user_error(errc::membership,
                         "shm: a process of the job was stopped or ended while it opened a "
                         "subgroup; form a new generation");
      pause_briefly(turn);
      state = block.state.load(std::memory_order_seq_cst);
    }
    if (block.members == members) return c;
  }
  throw user_error(errc::device,
                   fmt::format("shm: a generation has {} subgroups, the most there may be; reuse "
                               "those there are",
                               channels_max));
}

void member::abort(std::string_view why) noexcept { abort({}, why); }

void member::abort(const collectives::end_reason& why, std::string_view text) noexcept {
  auto& block = region_->abort();
  auto state = abort_state::none;
  if (block.state.compare_exchange_strong(state, abort_state::writing)) {
    block.status = why.status;
    block.channel = static_cast<std::uint32_t>(why.channel);
    block.number = why.number;
    for (const auto rank : why.missing) insert(block.missing, rank);
    block.length = static_cast<std::uint32_t>(std::min(text.size(), reason_max));
    std::copy_n(text.begin(), block.length, block.text.begin());
    block.state.store(abort_state::written, std::memory_order_seq_cst);
  }
  for (std::size_t c = 0; c < channels_max; ++c)
    if (region_->channel(c).state.load(std::memory_order_seq_cst) == channel_state::open)
      close_words(c);
  for (std::int32_t rank = 0; rank < who_.world; ++rank) region_->rank(rank).bell.ring();
}

void member::close_words(std::size_t c) const noexcept {
  auto& block = region_->channel(c);
  for (auto& work : block.work) work.done.fetch_or(closed, std::memory_order_seq_cst);
  for (std::int32_t rank = 0; rank < who_.world; ++rank)
    if (contains(block.members, rank))
      for (auto& post : region_->seat(c, rank).posts)
        post.published.fetch_or(closed, std::memory_order_seq_cst);
}

collectives::end_reason member::why() const {
  const auto& block = region_->abort();
  for (std::uint32_t turn = 0; block.state.load(std::memory_order_acquire) != abort_state::written;
       ++turn) {
    if (turn == patience) return {.text = "the group was aborted by a process that ended over it"};
    pause_briefly(turn);
  }
  collectives::end_reason how{block.status, {}, {}, block.channel, block.number};
  for (std::int32_t rank = 0; rank < who_.world; ++rank)
    if (contains(block.missing, rank)) how.missing.push_back(rank);
  how.text.assign(block.text.data(), std::min<std::size_t>(block.length, reason_max));
  return how;
}

void member::wake(const std::vector<std::int32_t>& ranks) const noexcept {
  for (const auto rank : ranks)
    if (rank != who_.rank) region_->rank(rank).bell.ring_sleepers();
}

bool member::may_spin(const std::vector<std::int32_t>& members) const noexcept {
  const auto& mine = region_->rank(who_.rank).core;
  return spin_ && std::none_of(members.begin(), members.end(), [&](std::int32_t rank) {
           return rank != who_.rank && mine.same_core(region_->rank(rank).core);
         });
}

std::vector<channel*> member::all() const {
  const std::lock_guard hold{mutex_};
  std::vector<channel*> found;
  for (const auto& c : channels_) found.push_back(c.get());
  return found;
}

bool member::attend() noexcept {
  bool left = false;
  for (auto* c : all())
    if (!c->idle() && !c->waited() && c->drive()) left = true;
  return left;
}

bool member::idle() const {
  const auto channels = all();
  return std::all_of(channels.begin(), channels.end(), [](auto* c) { return c->idle(); });
}

rank_set member::late() const {
  rank_set ranks{};
  for (const auto* c : all())
    if (!c->idle()) c->insert_late(ranks);
  return ranks;
}

bool member::quiescent(const std::function<bool(std::int32_t)>& over) noexcept {
  const bool ended = aborted();
  for (auto* c : all()) {
    if (ended && !c->idle()) c->drive();
    if (!c->idle()) return false;
  }
  for (std::int32_t rank = 0; ended && rank < who_.world; ++rank)
    if (region_->rank(rank).touching.load(std::memory_order_seq_cst) != 0 && !over(rank))
      return false;
  return true;
}

// Also opens the channels that only other ranks have opened, because they wait for this rank there.
void member::depart() noexcept {
  region_->rank(who_.rank).departed.store(1, std::memory_order_seq_cst);
  std::string reason;
  for (std::size_t c = 0; c < channels_max; ++c) {
    auto& block = region_->channel(c);
    if (block.state.load(std::memory_order_seq_cst) != channel_state::open) continue;
    if (!contains(block.members, who_.rank)) continue;
    std::vector<std::int32_t> members;
    for (std::int32_t rank = 0; rank < who_.world; ++rank)
      if (contains(block.members, rank)) members.push_back(rank);
    try {
      if (reason.empty()) reason = among(members)->needed();
    } catch (const std::exception& error) {
      reason = fmt::format("rank {} closed its communicator: {}", name_of(who_.rank), error.what());
    }
  }
  if (!reason.empty()) abort(reason);
  for (auto* c : all())
    for (std::uint32_t turn = 0; aborted() && c->drive(); ++turn) pause_briefly(turn);
}

}  // namespace troupe::shm
