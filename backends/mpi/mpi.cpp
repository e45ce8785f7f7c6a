#include "backends/mpi/mpi.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/collective/host_communicator.hpp"
#include "backends/collective/scopes.hpp"
#include "backends/mpi/engine.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace troupe {

namespace {

using collectives::submission;
using mpi::engine;
using mpi::task;

constexpr auto grace = std::chrono::seconds{2};

// What a handle and its works share.
struct open_group {
  std::shared_ptr<mpi::engine> engine;
  std::shared_ptr<mpi::group> group;
  collectives::lane_waits::count waiting{0};

  // Checks the operation once, and moves it on if possible.
  bool pending(task& what) const {
    if (!what.how.pending()) return false;
    engine->pump();
    group->settle_unopened();
    group->settle(what);
    return what.how.pending();
  }
  // Until MPI no longer touches the memory, for a while.
  void let_go(const std::function<bool()>& touched) const {
    const auto until = std::chrono::steady_clock::now() + grace;
    const engine::waiter here{*engine};
    for (int turns = 0; touched() && std::chrono::steady_clock::now() < until; ++turns)
      if (!engine->pump()) engine::relax(turns);
  }
};

class mpi_work final : public work {
public:
  mpi_work(std::shared_ptr<open_group> of, std::shared_ptr<task> what)
      : open_(std::move(of)), task_(std::move(what)) {}

  work_result poll() override {
    open_->pending(*task_);
    return task_->how.result();
  }
  void wait() override {
    if (open_->pending(*task_)) {
      const collectives::lane_waits mark{open_->waiting};
      const engine::waiter here{*open_->engine};
      for (int turns = 0; open_->pending(*task_); ++turns) engine::relax(turns);
    }
    const auto result = task_->how.result();
    if (result.status == work_status::ok) return;
    open_->let_go([this] { return task_->touching.load(); });
    raise(result);
  }
  bool verdict() const { return task_->verdict.load(); }

private:
  const std::shared_ptr<open_group> open_;
  const std::shared_ptr<task> task_;
};

/// Collectives of the ranks that mpirun placed.
class mpi_transport {
public:
  using channel = std::vector<std::int32_t>;
  static constexpr std::string_view name = "mpi";
  // A world of one rank also waits for MPI. Otherwise groups could open faster than MPI frees them,
  // and use up memory.
  static constexpr bool moves_alone = true;

  mpi_transport(std::shared_ptr<mpi::engine> engine, const group_description& who)
      : open_(std::make_shared<open_group>()) {
    open_->engine = std::move(engine);
    open_->group = std::make_shared<mpi::group>(who);
    open_->engine->add(open_->group);
  }
  ~mpi_transport() {
    open_->group->close();
    open_->engine->wake();
    open_->let_go([this] { return !open_->group->quiescent(); });
  }
  mpi_transport(const mpi_transport&) = delete;
  mpi_transport& operator=(const mpi_transport&) = delete;

  const group_description& group() const { return open_->group->who(); }
  channel among(const std::vector<std::int32_t>& members) { return members; }
  static const std::vector<std::int32_t>& members(const channel& in) { return in; }
  std::shared_ptr<mpi_work> submit(const channel& in, submission&& what,
                                   std::chrono::nanoseconds deadline) {
    auto made = open_->group->submit(in, std::move(what), deadline);
    if (!open_->engine->pump()) open_->engine->wake();
    return std::make_shared<mpi_work>(open_, std::move(made));
  }
  bool decide(const channel& in, submission&& what, std::chrono::nanoseconds deadline) {
    const auto work = submit(in, std::move(what), deadline);
    work->wait();
    return work->verdict();
  }
  std::shared_ptr<void> allocate(std::size_t bytes) { return allocate_bucket(bytes, true); }
  void abort(std::string_view why) noexcept {
    open_->group->abort(why);
    open_->engine->wake();
  }
  bool aborted() const noexcept { return open_->group->aborted(); }
  bool quiescent() const noexcept { return open_->group->quiescent(); }
  bool waiting() const noexcept { return open_->waiting.load(std::memory_order_relaxed) > 0; }
  std::string why() const { return open_->group->why(); }

private:
  const std::shared_ptr<open_group> open_;
};
using mpi_communicator = collectives::host_communicator<mpi_transport>;

}  // namespace

mpi_backend::mpi_backend(std::optional<placed_rank> place) : place_(place) {}
mpi_backend::~mpi_backend() = default;

std::string mpi_backend::unusable() const {
  if (place_) return {};
  return "this process was not started by mpirun: mpirun -n RANKS troupe ...";
}

std::shared_ptr<mpi::engine> mpi_backend::running() {
  if (!place_)
    throw user_error(errc::device, "communicator \"mpi\" cannot be used here: " + unusable());
  const std::lock_guard hold{mutex_};
  if (!engine_) engine_ = std::make_shared<mpi::engine>(*place_);
  return engine_;
}

std::string mpi_backend::share(const std::string& text) { return running()->share(text); }

void mpi_backend::close() {
  const std::lock_guard hold{mutex_};
  engine_.reset();
}

std::shared_ptr<communicator> mpi_backend::open(const group_description& group) {
  const auto engine = running();
  if (group.rank != place_->rank || group.world != place_->world)
    throw std::invalid_argument(
        fmt::format("this process is rank {} of mpirun's {}, not rank {} of {}", place_->rank,
                    place_->world, group.rank, group.world));
  return std::make_shared<mpi_communicator>(engine, group);
}

}  // namespace troupe
