#include "backends/shm/shm.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/collective/group_end.hpp"
#include "backends/collective/host_communicator.hpp"
#include "backends/shm/layout.hpp"
#include "backends/shm/progress_thread.hpp"

#include <fmt/format.h>

#include <map>
#include <optional>

namespace troupe {

static_assert(shm_backend::ranks_max == shm::world_max);

/// What the handles of one process share. Outlives the backend while handles do.
class shm_backend::hub {
public:
  hub(shm_rendezvous where, const shm_options& options)
      : rendezvous(std::move(where)),
        cores(options.cores > 0 ? options.cores : allowed_cores()),
        huge_pages(options.huge_pages) {}

  /// Ranks of one process see a generation at the same addresses.
  std::shared_ptr<shm::region> map(const shm::admission& at) {
    const std::lock_guard hold{mutex_};
    std::erase_if(regions_, [](const auto& known) { return known.second.expired(); });
    auto& known = regions_[at.offset];
    auto region = known.lock();
    if (!region) {
      region =
          std::make_shared<shm::region>(rendezvous.descriptor(), at.offset, at.layout, huge_pages);
      known = region;
    }
    return region;
  }
  std::shared_ptr<shm_rendezvous::control_segment> control_segment() const {
    return rendezvous.where();
  }

  const shm_rendezvous rendezvous;
  const int cores;
  const bool huge_pages;

private:
  std::mutex mutex_;
  std::map<std::size_t, std::weak_ptr<shm::region>> regions_;
};

namespace {

using collectives::submission;

/// A world of one rank, or a rank that came too late for its generation: there is nothing to move.
class lone_transport {
public:
  using channel = std::shared_ptr<const std::vector<std::int32_t>>;
  static constexpr std::string_view name = "shm";

  /// `aborted`: why the rank came too late; empty if it did not.
  lone_transport(const group_description& who, const std::string& aborted, bool huge_pages)
      : who_(who), huge_pages_(huge_pages) {
    if (!aborted.empty()) end_.abort(aborted);
  }

  const group_description& group() const { return who_; }
  channel among(const std::vector<std::int32_t>& members) {
    return std::make_shared<const std::vector<std::int32_t>>(members);
  }
  static const std::vector<std::int32_t>& members(const channel& in) { return *in; }
  // Only a rank that came too late has peers.
  work_ptr submit(const channel&, submission&&, std::chrono::nanoseconds) {
    return ended({work_status::aborted, why(), {}});
  }
  bool decide(const channel&, submission&&, std::chrono::nanoseconds) {
    throw generation_closed(why());
  }
  std::shared_ptr<void> allocate(std::size_t bytes) { return allocate_bucket(bytes, huge_pages_); }
  void abort(std::string_view why) noexcept { end_.abort(why); }
  bool aborted() const noexcept { return end_.aborted(); }
  bool quiescent() const noexcept { return true; }
  bool waiting() const noexcept { return false; }
  std::string why() const { return end_.why(); }

private:
  const group_description who_;
  const bool huge_pages_;
  collectives::group_end end_;
};
using lone_communicator = collectives::host_communicator<lone_transport>;

/// A rank's place in a generation, until its handle and all memory from `allocate` are gone: the
/// control segment gives a generation's memory back when all ranks have left it.
class stay {
public:
  stay(std::shared_ptr<shm_rendezvous::control_segment> in, const group_description& who,
       shm::admission at)
      : in_(std::move(in)), who_(who), at_(std::move(at)) {}
  ~stay() { in_->leave(who_, at_); }
  stay(const stay&) = delete;
  stay& operator=(const stay&) = delete;

private:
  const std::shared_ptr<shm_rendezvous::control_segment> in_;
  const group_description who_;
  const shm::admission at_;
};

/// Collectives through the memory that the processes of a job share.
class shm_transport {
public:
  using channel = std::shared_ptr<shm::channel>;
  static constexpr std::string_view name = "shm";

  shm_transport(std::shared_ptr<shm_backend::hub> hub, const group_description& who,
                shm::admission at)
      : hub_(std::move(hub)),
        who_(who),
        at_(std::move(at)),
        stay_(std::make_shared<stay>(hub_->control_segment(), who_, at_)) {
    try {
      member_ = std::make_shared<shm::member>(who, hub_->map(at_), who.world <= hub_->cores);
      member_->among(members_of({}, who.world, who.rank));
      progress_thread_.emplace(member_, hub_->control_segment(), at_);
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
    member_->call_progress_thread = [this] { progress_thread_->call(); };
  }
  ~shm_transport() {
    member_->depart();
    progress_thread_.reset();
  }
  shm_transport(const shm_transport&) = delete;
  shm_transport& operator=(const shm_transport&) = delete;

  const group_description& group() const { return who_; }
  channel among(const std::vector<std::int32_t>& members) { return member_->among(members); }
  static const std::vector<std::int32_t>& members(const channel& in) { return in->members(); }
  std::shared_ptr<shm::operation> submit(const channel& in, submission&& what,
                                         std::chrono::nanoseconds deadline) {
    return in->submit(in, std::move(what), deadline);
  }
  bool decide(const channel& in, submission&& what, std::chrono::nanoseconds deadline) {
    const auto agreed = submit(in, std::move(what), deadline);
    agreed->wait();
    return agreed->verdict;
  }
  std::shared_ptr<void> allocate(std::size_t bytes) {
    if (auto memory = member_->allocate(bytes)) {
      auto* const data = memory.get();
      return {data, [memory = std::move(memory), here = stay_](void*) mutable {
                memory.reset();
                here.reset();
              }};
    }
    return allocate_bucket(bytes, hub_->huge_pages);
  }
  void abort(std::string_view why) noexcept { member_->abort(why); }
  bool aborted() const noexcept { return member_->aborted(); }
  bool quiescent() const noexcept {
    return member_->quiescent([this](std::int32_t rank) { return over(rank); });
  }
  bool waiting() const noexcept { return member_->waiting.load(std::memory_order_relaxed) > 0; }
  std::string why() const { return member_->why().text; }

private:
  // This rank cannot take part, but its process may go on: aborts, so that no rank waits for it.
  void give_up(std::string_view why) noexcept {
    try {
      if (!member_) {
        auto words = shm::region::words(hub_->rendezvous.descriptor(), at_.offset, at_.layout);
        member_ = std::make_shared<shm::member>(who_, std::move(words), false);
      }
      member_->abort(fmt::format("rank {} could not open its communicator: {}",
                                 member_->name_of(who_.rank), why));
      member_->depart();
    } catch (const std::exception&) {
      // Not even the control part can be mapped: other ranks notice that this process ends or lags.
    }
  }
  bool over(std::int32_t rank) const noexcept {
    try {
      const auto life = hub_->control_segment()->life(at_, rank);
      return life && life->over();
    } catch (const std::exception&) {
      return false;
    }
  }

  const std::shared_ptr<shm_backend::hub> hub_;
  const group_description who_;
  const shm::admission at_;
  const std::shared_ptr<stay> stay_;
  std::shared_ptr<shm::member> member_;
  std::optional<shm::progress_thread> progress_thread_;
};
using shm_communicator = collectives::host_communicator<shm_transport>;

}  // namespace

shm_backend::shm_backend(shm_rendezvous where, shm_options options)
    : hub_(std::make_shared<hub>(std::move(where), options)) {}
shm_backend::~shm_backend() = default;

std::string shm_backend::unusable() const { return shm_unusable(); }

std::shared_ptr<communicator> shm_backend::open(const group_description& group) {
  auto at =
      hub_->control_segment()->enter(group, [&](const shm::admission& there, std::string why) {
        std::make_shared<shm::member>(group, hub_->map(there), false)->abort(why);
      });
  if (!at.stale.empty())
    return std::make_shared<lone_communicator>(group, std::move(at.stale), hub_->huge_pages);
  if (group.world > 1) return std::make_shared<shm_communicator>(hub_, group, std::move(at));
  hub_->control_segment()->leave(group, at);
  return std::make_shared<lone_communicator>(group, std::string{}, hub_->huge_pages);
}

}  // namespace troupe
