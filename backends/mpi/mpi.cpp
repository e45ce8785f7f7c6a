#include "backends/mpi/mpi.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/mpi/engine.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

namespace troupe {

namespace {

using mpi::engine;
using mpi::submission;
using mpi::task;

constexpr auto grace = std::chrono::seconds{2};

// What a handle and its works share.
struct seat {
  std::shared_ptr<mpi::engine> engine;
  std::shared_ptr<mpi::group> group;
  std::atomic<bool> waiting{false};

  // One look at the operation, and a push where one helps.
  work_status look(task& what) const {
    if (what.how.status() != work_status::pending) return what.how.status();
    engine->pump();
    group->settle_unopened();
    group->settle(what);
    return what.how.status();
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
  mpi_work(std::shared_ptr<seat> of, std::shared_ptr<task> what)
      : seat_(std::move(of)), task_(std::move(what)) {}

  work_result poll() override {
    seat_->look(*task_);
    return task_->how.result();
  }
  void wait() override {
    if (seat_->look(*task_) == work_status::pending) {
      seat_->waiting.store(true, std::memory_order_relaxed);
      const engine::waiter here{*seat_->engine};
      for (int turns = 0; seat_->look(*task_) == work_status::pending; ++turns)
        engine::relax(turns);
      seat_->waiting.store(false, std::memory_order_relaxed);
    }
    const auto result = task_->how.result();
    if (result.status == work_status::ok) return;
    seat_->let_go([this] { return task_->touching.load(); });
    raise(result);
  }
  bool verdict() const { return task_->verdict.load(); }

private:
  const std::shared_ptr<seat> seat_;
  const std::shared_ptr<task> task_;
};

class mpi_communicator final : public communicator {
public:
  mpi_communicator(std::shared_ptr<mpi::engine> engine, const group_description& who)
      : who_(who), seat_(std::make_shared<seat>()) {
    seat_->engine = std::move(engine);
    seat_->group = std::make_shared<mpi::group>(who);
    seat_->engine->add(seat_->group);
  }
  ~mpi_communicator() override {
    seat_->group->close();
    seat_->engine->wake();
    seat_->let_go([this] { return !seat_->group->quiescent(); });
  }

  const group_description& group() const override { return who_; }
  std::string_view name() const override { return "mpi"; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return submit(members(among), {all_reduce_call(data, operation), data.data, data.data});
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    const auto all = members(among);
    return submit(all, {broadcast_call(data, root, all), data.data, data.data});
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    const auto all = members(among);
    return submit(all, {all_gather_call(in, out, all.size(), place(all)), in.data, out.data});
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    const auto all = members(among);
    return submit(
        all, {reduce_scatter_call(in, out, operation, all.size(), place(all)), in.data, out.data});
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    submission with;
    with.call.label = label;
    with.deadline = deadline;
    return submit(members(among), std::move(with));
  }
  bool decide(bool yes, bool all, const subgroup& among) override {
    submission with;
    with.call.what = collective::decide;
    with.call.all = all;
    with.yes = yes;
    const auto work = submit(members(among), std::move(with));
    work->wait();
    return work->verdict();
  }

  bool waiting() const noexcept override { return seat_->waiting.load(std::memory_order_relaxed); }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return allocate_bucket(bytes, true);
  }
  void abort(std::string_view why) noexcept override {
    seat_->group->abort(why);
    seat_->engine->wake();
  }
  bool aborted() const noexcept override { return seat_->group->aborted(); }
  bool quiescent() const noexcept override { return seat_->group->quiescent(); }

private:
  std::vector<std::int32_t> members(const subgroup& among) const {
    return members_of(among, who_.world, who_.rank);
  }
  std::size_t place(const std::vector<std::int32_t>& all) const {
    return place_among(all, who_.rank);
  }
  std::shared_ptr<mpi_work> submit(const std::vector<std::int32_t>& among, submission with) {
    if (with.deadline.count() == 0) with.deadline = who_.deadline;
    auto what = seat_->group->submit(among, std::move(with));
    if (!seat_->engine->pump()) seat_->engine->wake();
    return std::make_shared<mpi_work>(seat_, std::move(what));
  }

  const group_description who_;
  const std::shared_ptr<seat> seat_;
};

}  // namespace

mpi_backend::mpi_backend(std::optional<placed_rank> place) : place_(place) {}
mpi_backend::~mpi_backend() = default;

std::string mpi_backend::unusable() const {
  if (place_) return {};
  return "this process was not started by mpirun: mpirun -n RANKS troupe ...";
}

std::shared_ptr<mpi::engine> mpi_backend::running() {
  if (!place_)
    throw user_error(errc::device, "communicator \"mpi\" can not be used here: " + unusable());
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
