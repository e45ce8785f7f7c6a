#include "backends/nccl/nccl.hpp"

#include "backends/nccl/hub.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>

namespace troupe {

namespace {

using nccl::group;
using nccl::hub;
using nccl::library;

constexpr auto grace = std::chrono::seconds{2};

// What a handle and its works share.
struct seat {
  std::shared_ptr<nccl::hub> watcher;
  std::shared_ptr<nccl::group> group;
  std::atomic<bool> waiting{false};

  void let_go() const {
    const auto until = std::chrono::steady_clock::now() + grace;
    while (!group->quiescent() && std::chrono::steady_clock::now() < until) watcher->wait_turn();
  }
};

class nccl_work final : public work {
public:
  nccl_work(std::shared_ptr<seat> of, std::shared_ptr<nccl::operation> what)
      : seat_(std::move(of)), what_(std::move(what)) {}

  work_result poll() override {
    seat_->group->settle(*what_);
    return what_->how.result();
  }
  void wait() override {
    seat_->waiting.store(true, std::memory_order_relaxed);
    while (poll().status == work_status::pending) seat_->watcher->wait_turn();
    seat_->waiting.store(false, std::memory_order_relaxed);
    const auto result = what_->how.result();
    if (result.status == work_status::ok) return;
    seat_->group->abort(result.text);
    seat_->let_go();
    raise(result);
  }

private:
  const std::shared_ptr<seat> seat_;
  const std::shared_ptr<nccl::operation> what_;
};

class nccl_communicator final : public communicator {
public:
  nccl_communicator(std::shared_ptr<const library> functions, std::shared_ptr<hub> watcher,
                    std::shared_ptr<communicator> control, int device)
      : functions_(std::move(functions)), seat_(std::make_shared<seat>()) {
    seat_->watcher = std::move(watcher);
    seat_->group = std::make_shared<nccl::group>(functions_, std::move(control), device);
    seat_->watcher->add(seat_->group);
  }
  ~nccl_communicator() override {
    seat_->group->close();
    seat_->watcher->wake();
    seat_->let_go();
  }

  const group_description& group() const override { return control().group(); }
  std::string_view name() const override { return "nccl"; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return submit(among, members(among), all_reduce_call(data, operation), data, data);
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    const auto all = members(among);
    return submit(among, all, broadcast_call(data, root, all), data, data);
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    const auto all = members(among);
    return submit(among, all, all_gather_call(in, out, all.size(), place(all)), in, out);
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    const auto all = members(among);
    return submit(among, all, reduce_scatter_call(in, out, operation, all.size(), place(all)), in,
                  out);
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    return control().barrier(label, deadline, among);
  }
  bool decide(bool yes, bool all, const subgroup& among) override {
    return control().decide(yes, all, among);
  }

  bool waiting() const noexcept override {
    return seat_->waiting.load(std::memory_order_relaxed) || control().waiting();
  }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    functions_->set_device(seat_->group->device());
    void* memory = nullptr;
    if (functions_->mem_alloc(&memory, std::max<std::size_t>(bytes, 1)) != ncclSuccess)
      throw std::bad_alloc();
    return {memory, [functions = functions_](void* freed) { functions->mem_free(freed); }};
  }
  void abort(std::string_view why) noexcept override {
    seat_->group->abort(why);
    seat_->watcher->wake();
  }
  bool aborted() const noexcept override { return seat_->group->aborted(); }
  bool quiescent() const noexcept override { return seat_->group->quiescent(); }

private:
  communicator& control() const { return seat_->group->control(); }
  std::vector<std::int32_t> members(const subgroup& among) const {
    return members_of(among, group().world, group().rank);
  }
  std::size_t place(const std::vector<std::int32_t>& all) const {
    return place_among(all, group().rank);
  }
  void check_memory(std::string_view which, const buffer& memory) const {
    if (memory.count == 0) return;
    cudaPointerAttributes facts{};
    const auto error = functions_->pointer_attributes(&facts, memory.data);
    const bool on_gpu = facts.type == cudaMemoryTypeDevice || facts.type == cudaMemoryTypeManaged;
    if (error != cudaSuccess || !on_gpu)
      throw std::invalid_argument(
          fmt::format("{} is not memory of a GPU; nccl carries nothing else", which));
  }
  work_ptr submit(const subgroup& among, std::vector<std::int32_t> all, collective_call call,
                  const buffer& in, const buffer& out) {
    if (const auto why = nccl::lacks(call); !why.empty()) throw std::invalid_argument(why);
    check_memory("in", in);
    check_memory("out", out);
    auto made = seat_->group->submit(among, std::move(all), std::move(call), in.data, out.data);
    seat_->watcher->wake();
    return std::make_shared<nccl_work>(seat_, std::move(made));
  }

  const std::shared_ptr<const library> functions_;
  const std::shared_ptr<seat> seat_;
};

}  // namespace

struct nccl_backend::state {
  std::shared_ptr<communicator_backend> control;
  nccl_options options;
  std::mutex mutex;
  bool looked = false;
  nccl::loaded found;
  std::shared_ptr<nccl::hub> watcher;

  const nccl::loaded& look() {
    const std::lock_guard hold{mutex};
    if (looked) return found;
    looked = true;
    if (options.functions)
      found = {options.functions, nccl::no_device(*options.functions)};
    else
      found = nccl::load(options.folders);
    return found;
  }
};

nccl_backend::nccl_backend(std::shared_ptr<communicator_backend> control, nccl_options options)
    : state_(std::make_unique<state>()) {
  state_->control = std::move(control);
  state_->options = std::move(options);
}
nccl_backend::~nccl_backend() = default;

std::string nccl_backend::unusable() const {
  const auto& found = state_->look();
  if (!found.why.empty()) return found.why;
  return state_->control->unusable();
}

std::shared_ptr<communicator> nccl_backend::open(const group_description& who) {
  if (const auto why = unusable(); !why.empty())
    throw user_error(errc::device, "communicator \"nccl\" can not be used here: " + why);
  const auto& functions = state_->look().functions;
  int devices = 0;
  functions->device_count(&devices);
  const auto& choose = state_->options.device_of;
  const int device = choose ? choose(who) : who.rank % devices;
  if (device < 0 || device >= devices)
    throw user_error(errc::device, fmt::format("rank {} was given CUDA device {} of {}", who.rank,
                                               device, devices));
  auto control = state_->control->open(who);
  const std::lock_guard hold{state_->mutex};
  if (!state_->watcher) state_->watcher = std::make_shared<nccl::hub>();
  return std::make_shared<nccl_communicator>(functions, state_->watcher, std::move(control),
                                             device);
}

}  // namespace troupe
