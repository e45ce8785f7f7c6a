#include "backends/inproc/inproc.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/collective/host_communicator.hpp"
#include "backends/collective/waiting.hpp"
#include "backends/inproc/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace troupe {

/// The groups that have an open handle. Outlives the backend while handles do.
class inproc_backend::hub {
public:
  explicit hub(const inproc_options& options)
      : cores_(options.cores > 0 ? options.cores : allowed_cores()),
        huge_pages_(options.huge_pages) {}

  std::shared_ptr<inproc::group> enter(const group_description& who);
  void leave(const group_description& who) noexcept;
  std::size_t groups() const {
    const std::lock_guard hold{mutex_};
    return open_.size();
  }
  bool huge_pages() const { return huge_pages_; }

private:
  using key = std::pair<job_id, generation_id>;
  struct entry {
    std::shared_ptr<inproc::group> group;
    std::vector<std::int32_t> ever;  // ranks that have opened it
    int handles = 0;
  };

  const int cores_;
  const bool huge_pages_;
  const std::shared_ptr<std::atomic<int>> ranks_ =
      std::make_shared<std::atomic<int>>(0);  // open handles of all groups
  mutable std::mutex mutex_;
  std::map<key, entry> open_;
};

std::shared_ptr<inproc::group> inproc_backend::hub::enter(const group_description& who) {
  collectives::check_rank(who);
  const auto of = collectives::generation_text(who);
  const std::lock_guard hold{mutex_};
  auto& met = open_[{who.job, who.generation}];
  if (!met.group) met.group = std::make_shared<inproc::group>(who.world, ranks_, cores_);
  if (met.group->world() != who.world) {
    auto text = fmt::format("{}: rank {} says its world is {}, others said {}", of, who.rank,
                            who.world, met.group->world());
    met.group->abort(text);
    throw std::invalid_argument(text);
  }
  if (std::find(met.ever.begin(), met.ever.end(), who.rank) != met.ever.end())
    throw internal_error(fmt::format("{}: rank {} opened it before", of, who.rank));
  met.ever.push_back(who.rank);
  ++met.handles;
  ranks_->fetch_add(1, std::memory_order_relaxed);
  return met.group;
}

void inproc_backend::hub::leave(const group_description& who) noexcept {
  const std::lock_guard hold{mutex_};
  ranks_->fetch_sub(1, std::memory_order_relaxed);
  const auto found = open_.find({who.job, who.generation});
  if (--found->second.handles == 0) open_.erase(found);
}

namespace {

using collectives::submission;

/// Collectives between the ranks' own memory.
class inproc_transport {
public:
  using channel = inproc::place_ptr;
  static constexpr std::string_view name = "inproc";

  inproc_transport(std::shared_ptr<inproc_backend::hub> hub, const group_description& who)
      : hub_(std::move(hub)), who_(who), group_(hub_->enter(who)) {}
  ~inproc_transport() {
    group_->depart(who_.rank);
    hub_->leave(who_);
  }
  inproc_transport(const inproc_transport&) = delete;
  inproc_transport& operator=(const inproc_transport&) = delete;

  const group_description& group() const { return who_; }
  channel among(const std::vector<std::int32_t>& members) {
    return group_->among(members, who_.rank);
  }
  static const std::vector<std::int32_t>& members(const channel& in) { return in->in->members; }
  work_ptr submit(const channel& in, submission&& what, std::chrono::nanoseconds deadline) {
    return inproc::group::submit(in, std::move(what), deadline);
  }
  bool decide(const channel& in, submission&& what, std::chrono::nanoseconds deadline) {
    return inproc::group::decide(in, std::move(what), deadline);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) {
    return allocate_bucket(bytes, hub_->huge_pages(), static_cast<std::size_t>(who_.rank));
  }
  void abort(std::string_view why) noexcept { group_->abort(why); }
  bool aborted() const noexcept { return group_->aborted(); }
  bool quiescent() const noexcept { return group_->quiescent(); }
  bool waiting() const noexcept { return group_->waits(who_.rank); }
  std::string why() const { return group_->why(); }

private:
  const std::shared_ptr<inproc_backend::hub> hub_;
  const group_description who_;
  const std::shared_ptr<inproc::group> group_;
};

class inproc_communicator final : public collectives::host_communicator<inproc_transport> {
public:
  using host_communicator::host_communicator;

  bool shares_memory() const override { return true; }
  work_ptr work_together(std::string_view label, const void* mine, std::size_t pieces,
                         shared_body body) override {
    if (group().world == 1) return work_alone(mine, pieces, body);
    submission what{.call = {.what = collective_kind::work_together, .count = pieces},
                    .in = mine,
                    .body = std::move(body)};
    what.call.label = label;
    return submit(world(), std::move(what));
  }

private:
  work_ptr work_alone(const void* mine, std::size_t pieces, const shared_body& body) {
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      if (aborted()) return aborted_work();
      body({&mine, 1}, piece);
    }
    return done_work();
  }
};

}  // namespace

inproc_backend::inproc_backend(inproc_options options) : hub_(std::make_shared<hub>(options)) {}
inproc_backend::~inproc_backend() = default;

std::shared_ptr<communicator> inproc_backend::open(const group_description& group) {
  return std::make_shared<inproc_communicator>(hub_, group);
}

std::size_t inproc_backend::groups() const { return hub_->groups(); }

}  // namespace troupe
