#include "backends/inproc/inproc.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/collective/waiting.hpp"
#include "backends/inproc/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
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
  const auto of = fmt::format("generation {} of job {}", who.generation.value(), who.job.value());
  if (who.world < 1 || who.rank < 0 || who.rank >= who.world)
    throw std::invalid_argument(
        fmt::format("{}: there is no rank {} in a world of {}", of, who.rank, who.world));
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

using inproc::seat;

class inproc_communicator final : public communicator {
public:
  inproc_communicator(std::shared_ptr<inproc_backend::hub> hub, const group_description& who)
      : hub_(std::move(hub)), who_(who), group_(hub_->enter(who)) {
    world_ = group_->among(members_of({}, who_.world, who_.rank), who_.rank);
  }
  ~inproc_communicator() override {
    group_->depart(who_.rank);
    hub_->leave(who_);
  }

  const group_description& group() const override { return who_; }
  std::string_view name() const override { return "inproc"; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return submit(place_in(among), {.call = all_reduce_call(data, operation), .in = data.data});
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    const auto& at = place_in(among);
    return submit(at, {.call = broadcast_call(data, root, at->in->members), .in = data.data});
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    const auto& at = place_in(among);
    return submit(at, {.call = all_gather_call(in, out, at->in->members.size(), at->member),
                       .in = in.data,
                       .out = out.data});
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    const auto& at = place_in(among);
    const auto members = at->in->members.size();
    return submit(at, {.call = reduce_scatter_call(in, out, operation, members, at->member),
                       .in = in.data,
                       .out = out.data});
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    seat with;
    with.call.label = label;
    return submit(place_in(among), std::move(with), deadline);
  }
  bool shares_memory() const override { return true; }
  work_ptr work_together(std::string_view label, const void* mine, std::size_t pieces,
                         shared_body body) override {
    seat with{.call = {.what = collective::work_together, .count = pieces}, .in = mine};
    with.call.label = label;
    if (who_.world == 1) return work_alone(mine, pieces, body);
    with.body = std::move(body);
    return submit(world_, std::move(with));
  }
  bool decide(bool yes, bool all, const subgroup& among) override {
    const auto& at = place_in(among);
    if (at->in->members.size() == 1) {
      if (aborted()) throw generation_closed(group_->why());
      return yes;
    }
    seat with{.call = {.what = collective::decide, .all = all}, .yes = yes};
    return inproc::group::decide(at, std::move(with), who_.deadline);
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return allocate_bucket(bytes, hub_->huge_pages(), static_cast<std::size_t>(who_.rank));
  }
  void abort(std::string_view why) noexcept override { group_->abort(why); }
  bool aborted() const noexcept override { return group_->aborted(); }
  bool quiescent() const noexcept override { return group_->quiescent(); }
  bool waiting() const noexcept override { return group_->waits(who_.rank); }

private:
  const inproc::place_ptr& place_in(const subgroup& among);
  work_ptr submit(const inproc::place_ptr& at, seat&& with, std::chrono::nanoseconds deadline = {});
  work_ptr submit_alone(const seat& with);
  work_ptr work_alone(const void* mine, std::size_t pieces, const shared_body& body);

  const std::shared_ptr<inproc_backend::hub> hub_;
  const group_description who_;
  const std::shared_ptr<inproc::group> group_;
  inproc::place_ptr world_;
  std::vector<std::pair<subgroup, inproc::place_ptr>> subgroups_;
};

const inproc::place_ptr& inproc_communicator::place_in(const subgroup& among) {
  if (among.ranks.empty()) return world_;
  for (const auto& [known, at] : subgroups_)
    if (known == among) return at;
  auto at = group_->among(members_of(among, who_.world, who_.rank), who_.rank);
  return subgroups_.emplace_back(among, std::move(at)).second;
}

work_ptr inproc_communicator::submit(const inproc::place_ptr& at, seat&& with,
                                     std::chrono::nanoseconds deadline) {
  if (at->in->members.size() == 1) return submit_alone(with);
  return inproc::group::submit(at, std::move(with),
                               deadline.count() > 0 ? deadline : who_.deadline);
}

// Nobody to wait for: every reduction of one rank is what it has.
work_ptr inproc_communicator::submit_alone(const seat& with) {
  if (aborted()) return ended({work_status::aborted, group_->why(), {}});
  if (with.out && with.in != with.out && with.call.count > 0)
    std::memcpy(with.out, with.in, with.call.count * size_of(with.call.type));
  return world_->done;
}

work_ptr inproc_communicator::work_alone(const void* mine, std::size_t pieces,
                                         const shared_body& body) {
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    if (aborted()) return ended({work_status::aborted, group_->why(), {}});
    body({&mine, 1}, piece);
  }
  return world_->done;
}

}  // namespace

inproc_backend::inproc_backend(inproc_options options) : hub_(std::make_shared<hub>(options)) {}
inproc_backend::~inproc_backend() = default;

std::shared_ptr<communicator> inproc_backend::open(const group_description& group) {
  return std::make_shared<inproc_communicator>(hub_, group);
}

std::size_t inproc_backend::groups() const { return hub_->groups(); }

}  // namespace troupe
