#include "backends/nccl/nccl.hpp"

#include "backends/collective/host_communicator.hpp"
#include "backends/collective/scopes.hpp"
#include "backends/nccl/hub.hpp"

#include <fmt/format.h>

#include "troupe/communicator.hpp"
#include "troupe/options.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>

namespace troupe {

namespace {

using collectives::submission;
using nccl::hub;
using nccl::library;

constexpr auto grace = std::chrono::seconds{2};

// The state that a handle and its works share.
struct open_group {
  std::shared_ptr<nccl::hub> watcher;
  std::shared_ptr<nccl::group> group;
  collectives::lane_waits::count waiting{0};

  void let_go() const {
    const auto until = std::chrono::steady_clock::now() + grace;
    while (!group->quiescent() && std::chrono::steady_clock::now() < until) watcher->wait_turn();
  }
};

// The end of an operation's kernel.
class kernel_end final : public device_event {
public:
  kernel_end(std::shared_ptr<const library> functions, nccl::event_ptr event)
      : functions_(std::move(functions)), event_(std::move(event)) {}
  bool done() const override { return functions_->event_query(event_.get()) == cudaSuccess; }
  void wait() const override { functions_->event_synchronize(event_.get()); }
  void* native() const override { return event_.get(); }

private:
  const std::shared_ptr<const library> functions_;
  const nccl::event_ptr event_;
};

class nccl_work final : public work {
public:
  nccl_work(std::shared_ptr<const library> functions, std::shared_ptr<open_group> of,
            std::shared_ptr<nccl::operation> what)
      : functions_(std::move(functions)), open_(std::move(of)), what_(std::move(what)) {}

  work_result poll() override {
    open_->group->settle(*what_);
    return what_->how.result();
  }
  void wait() override {
    wait_until([] { return false; });
    raise_failure();
  }
  device_event_ptr on_device() override {
    const auto launched = [this] { return what_->launched.load(std::memory_order_acquire); };
    wait_until(launched);
    raise_failure();
    if (!launched()) return nullptr;  // there was nothing to move
    return std::make_shared<kernel_end>(functions_, what_->done);
  }

private:
  template <class Reached>
  void wait_until(Reached&& reached) {
    const collectives::lane_waits mark{open_->waiting};
    while (poll().status == work_status::pending && !reached()) open_->watcher->wait_turn();
  }
  void raise_failure() {
    const auto result = what_->how.result();
    if (result.status == work_status::ok || result.status == work_status::pending) return;
    open_->group->abort(result.text);
    open_->let_go();
    raise(result);
  }

  const std::shared_ptr<const library> functions_;
  const std::shared_ptr<open_group> open_;
  const std::shared_ptr<nccl::operation> what_;
};

/// Collectives of NCCL, submitted once the ranks have agreed on them over a host communicator.
class nccl_transport {
public:
  using channel = std::vector<std::int32_t>;
  static constexpr std::string_view name = "nccl";
  static constexpr bool moves_alone = true;  // the memory of a lone rank is on the GPU, too

  nccl_transport(std::shared_ptr<const library> functions, std::shared_ptr<hub> watcher,
                 std::shared_ptr<communicator> control, int device)
      : functions_(std::move(functions)), open_(std::make_shared<open_group>()) {
    open_->watcher = std::move(watcher);
    open_->group = std::make_shared<nccl::group>(functions_, std::move(control), device);
    open_->watcher->add(open_->group);
  }
  ~nccl_transport() {
    open_->group->close();
    open_->watcher->wake();
    open_->let_go();
  }
  nccl_transport(const nccl_transport&) = delete;
  nccl_transport& operator=(const nccl_transport&) = delete;

  communicator& control() const { return open_->group->control(); }
  const group_description& group() const { return control().group(); }
  channel among(const std::vector<std::int32_t>& members) { return members; }
  static const std::vector<std::int32_t>& members(const channel& in) { return in; }
  work_ptr submit(const channel& in, submission&& what, std::chrono::nanoseconds deadline) {
    if (const auto why = nccl::lacks(what.call); !why.empty()) throw std::invalid_argument(why);
    check_memory("in", what.call, what.in);
    check_memory("out", what.call, what.out);
    auto made = open_->group->submit(in, std::move(what), deadline);
    open_->watcher->wake();
    return std::make_shared<nccl_work>(functions_, open_, std::move(made));
  }
  bool decide(const channel& in, submission&& what, std::chrono::nanoseconds) {
    return control().decide(what.yes, what.call.all ? decision::all : decision::any, {in});
  }
  void check_device(const collective_call& call, const buffer& memory) const {
    const auto mine = open_->group->device();
    if (memory.device >= 0 && memory.device != mine)
      throw std::invalid_argument(
          fmt::format("{}: the memory is device {}'s, and this rank's "
                      "collectives run on device {}",
                      describe(call), memory.device, mine));
  }
  std::shared_ptr<void> allocate(std::size_t bytes) {
    functions_->set_device(open_->group->device());
    void* memory = nullptr;
    if (functions_->mem_alloc(&memory, std::max<std::size_t>(bytes, 1)) != ncclSuccess)
      throw std::bad_alloc();
    return {memory, [functions = functions_](void* freed) { functions->mem_free(freed); }};
  }
  void abort(std::string_view why) noexcept {
    open_->group->abort(why);
    open_->watcher->wake();
  }
  bool aborted() const noexcept { return open_->group->aborted(); }
  bool quiescent() const noexcept { return open_->group->quiescent(); }
  bool waiting() const noexcept {
    return open_->waiting.load(std::memory_order_relaxed) > 0 || control().waiting();
  }
  std::string why() const { return open_->group->why(); }

private:
  void check_memory(std::string_view which, const collective_call& call, const void* data) const {
    if (call.count == 0) return;
    cudaPointerAttributes facts{};
    const auto error = functions_->pointer_attributes(&facts, data);
    const bool on_gpu = facts.type == cudaMemoryTypeDevice || facts.type == cudaMemoryTypeManaged;
    if (error != cudaSuccess || !on_gpu)
      throw std::invalid_argument(
          fmt::format("{} is not memory of a GPU; nccl carries nothing else", which));
  }

  const std::shared_ptr<const library> functions_;
  const std::shared_ptr<open_group> open_;
};

class nccl_communicator final : public collectives::host_communicator<nccl_transport>,
                                public device_collectives {
public:
  using host_communicator::host_communicator;

  std::string_view memory_of() const override { return to_string(accelerator_kind::cuda); }
  communicator& on_host() override { return transport().control(); }

  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    return transport().control().barrier(label, deadline, among);
  }
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
    throw user_error(errc::device, "communicator \"nccl\" cannot be used here: " + why);
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
