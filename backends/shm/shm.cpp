#include "backends/shm/shm.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/shm/progress_thread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

namespace troupe {

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

using shm::submission;

// Nobody to wait for: every reduction of one rank is what it has.
void copy_alone(const submission& what) {
  if (what.in != what.out && what.call.count > 0)
    std::memcpy(what.out, what.in, what.call.count * size_of(what.call.type));
}

submission barrier_of(std::string_view label) {
  submission what;
  what.call.label = label;
  return what;
}

/// A world of one rank, or a rank that came too late for its generation.
class lone_communicator final : public communicator {
public:
  lone_communicator(const group_description& who, std::string aborted, bool huge_pages)
      : who_(who), huge_pages_(huge_pages), why_(std::move(aborted)), aborted_(!why_.empty()) {}

  const group_description& group() const override { return who_; }
  std::string_view name() const override { return "shm"; }
  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    members(among);
    return submit({all_reduce_call(data, operation), data.data, data.data});
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    return submit({broadcast_call(data, root, members(among)), data.data, data.data});
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    return submit({all_gather_call(in, out, members(among).size(), 0), in.data, out.data});
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    return submit(
        {reduce_scatter_call(in, out, operation, members(among).size(), 0), in.data, out.data});
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds,
                   const subgroup& among) override {
    members(among);
    return submit(barrier_of(label));
  }
  bool decide(bool yes, bool, const subgroup& among) override {
    members(among);
    submit({})->wait();
    return yes;
  }
  bool waiting() const noexcept override { return false; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return allocate_bucket(bytes, huge_pages_);
  }
  void abort(std::string_view why) noexcept override {
    const std::lock_guard hold{mutex_};
    if (aborted_) return;
    try {
      why_ = why;
    } catch (...) {
      why_.clear();  // no memory for the reason; the abort itself needs none
    }
    aborted_ = true;
  }
  bool aborted() const noexcept override {
    const std::lock_guard hold{mutex_};
    return aborted_;
  }
  bool quiescent() const noexcept override { return true; }

private:
  std::vector<std::int32_t> members(const subgroup& among) const {
    return members_of(among, who_.world, who_.rank);
  }
  work_ptr submit(const submission& what) {
    const std::lock_guard hold{mutex_};
    if (aborted_) return ended({work_status::aborted, why_, {}});
    copy_alone(what);
    return ended({work_status::ok, {}, {}});
  }

  const group_description who_;
  const bool huge_pages_;
  mutable std::mutex mutex_;
  std::string why_;
  bool aborted_;
};

class shm_communicator final : public communicator {
public:
  shm_communicator(std::shared_ptr<shm_backend::hub> hub, const group_description& who,
                   shm::admission at)
      : hub_(std::move(hub)), who_(who), at_(std::move(at)) {
    try {
      member_ = std::make_shared<shm::member>(who, hub_->map(at_), who.world <= hub_->cores);
      world_ = member_->among(members_of({}, who.world, who.rank));
      progress_thread_.emplace(member_, hub_->control_segment(), at_);
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
    member_->call_progress_thread = [this] { progress_thread_->call(); };
  }
  ~shm_communicator() override {
    member_->depart();
    progress_thread_.reset();
    hub_->control_segment()->leave(who_, at_);
  }

  const group_description& group() const override { return who_; }
  std::string_view name() const override { return "shm"; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    const auto& in = channel_of(among);
    return submit(in, {all_reduce_call(data, operation), data.data, data.data});
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    const auto& in = channel_of(among);
    return submit(in, {broadcast_call(data, root, in->members()), data.data, data.data});
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    const auto& at = channel_of(among);
    return submit(at,
                  {all_gather_call(in, out, at->members().size(), at->self()), in.data, out.data});
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    const auto& at = channel_of(among);
    return submit(at, {reduce_scatter_call(in, out, operation, at->members().size(), at->self()),
                       in.data, out.data});
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    return submit(channel_of(among), barrier_of(label), deadline);
  }
  bool decide(bool yes, bool all, const subgroup& among) override {
    submission what{.call = {.what = collective::decide, .all = all}, .yes = yes};
    const auto& in = channel_of(among);
    if (in->members().size() == 1) {
      submit(in, std::move(what))->wait();
      return yes;
    }
    const auto agreed = in->submit(in, std::move(what), who_.deadline);
    agreed->wait();
    return agreed->verdict;
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    if (auto memory = member_->allocate(bytes)) return memory;
    return allocate_bucket(bytes, hub_->huge_pages);
  }
  void abort(std::string_view why) noexcept override { member_->abort(why); }
  bool aborted() const noexcept override { return member_->aborted(); }
  bool quiescent() const noexcept override {
    return member_->quiescent([this](std::int32_t rank) { return over(rank); });
  }
  bool waiting() const noexcept override {
    return member_->waiting.load(std::memory_order_relaxed);
  }

private:
  const std::shared_ptr<shm::channel>& channel_of(const subgroup& among) {
    if (among.ranks.empty()) return world_;
    for (const auto& [known, in] : subgroups_)
      if (known == among) return in;
    auto in = member_->among(members_of(among, who_.world, who_.rank));
    return subgroups_.emplace_back(among, std::move(in)).second;
  }
  work_ptr submit(const std::shared_ptr<shm::channel>& in, submission what,
                  std::chrono::nanoseconds deadline = {}) {
    if (in->members().size() == 1) {
      if (aborted()) return ended({work_status::aborted, member_->why().text, {}});
      copy_alone(what);
      return ended({work_status::ok, {}, {}});
    }
    return in->submit(in, std::move(what), deadline.count() > 0 ? deadline : who_.deadline);
  }
  // This rank can not take part, and its process may go on: nobody has to wait for it.
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
      // Not even the words can be had: others notice its process's end, or the deadline.
    }
    hub_->control_segment()->leave(who_, at_);
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
  std::shared_ptr<shm::member> member_;
  std::shared_ptr<shm::channel> world_;
  std::vector<std::pair<subgroup, std::shared_ptr<shm::channel>>> subgroups_;
  std::optional<shm::progress_thread> progress_thread_;
};

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
