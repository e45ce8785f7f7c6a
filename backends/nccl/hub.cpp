#include "backends/nccl/hub.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace troupe::nccl {

namespace {

// A label that begins like this is a tensor operation's fingerprint.
constexpr std::string_view mark = "nccl ";

gpu_name name_of(const library& functions, int device) {
  gpu_name own;
  ::gethostname(own.host.data(), own.host.size() - 1);
  functions.bus_id(own.bus.data(), static_cast<int>(own.bus.size()) - 1, device);
  return own;
}

// `barrier "nccl all_reduce(...)"` as `all_reduce(...)`.
std::string without_marks(std::string text) {
  const auto opening = fmt::format("barrier \"{}", mark);
  for (auto at = text.find(opening); at != std::string::npos; at = text.find(opening, at)) {
    text.erase(at, opening.size());
    if (const auto closing = text.find('"', at); closing != std::string::npos)
      text.erase(closing, 1);
  }
  return text;
}

// The control operation of a tensor operation. Its errors name the tensor operation.
class plain_spoken final : public work {
public:
  explicit plain_spoken(work_ptr inner) : inner_(std::move(inner)) {}
  work_result poll() override {
    auto result = inner_->poll();
    result.text = without_marks(std::move(result.text));
    return result;
  }
  void wait() override { inner_->wait(); }

private:
  const work_ptr inner_;
};

}  // namespace

group::group(std::shared_ptr<const library> functions, std::shared_ptr<communicator> control,
             int device)
    : functions_(std::move(functions)), control_(std::move(control)), device_(device) {}

channel& group::channel_of(const subgroup& among, const std::vector<std::int32_t>& members) {
  for (const auto& known : channels_)
    if (known->members() == members) return *known;
  auto made = std::make_shared<channel>(functions_, *control_, among, members, device_,
                                        name_of(*functions_, device_));
  const std::lock_guard hold{mutex_};
  channels_.push_back(std::move(made));
  return *channels_.back();
}

std::shared_ptr<operation> group::submit(const std::vector<std::int32_t>& members, submission what,
                                         std::chrono::nanoseconds deadline) {
  {
    const std::lock_guard hold{mutex_};
    if (flying_.size() >= collectives::operations_max) drop_ended();
    collectives::check_in_flight(what.call, flying_.size());
  }
  const auto& f = *functions_;
  f.set_device(device_);
  auto made = std::make_shared<operation>();
  made->what = std::move(what);
  made->deadline = deadline;
  auto error = cudaSuccess;
  if (!made->what.in_ready || !made->what.out_ready) {
    cudaEvent_t ready = nullptr;
    error = f.event_create(&ready, cudaEventDisableTiming);
    if (error == cudaSuccess) {
      made->ready = {ready, f.event_destroy};
      error = f.event_record(ready, nullptr);
    }
  }
  if (error != cudaSuccess) {
    abort(fmt::format("cuda: {}", f.cuda_error_text(error)));
    settle(*made);
    return made;
  }
  const subgroup among{members};
  // Before the operations that connect a new channel: its deadline ends first.
  made->control = std::make_shared<plain_spoken>(
      control_->barrier(std::string{mark} + describe(made->what.call), deadline, among));
  auto& to = channel_of(among, members);
  {
    const std::lock_guard hold{mutex_};
    flying_.push_back(made);
  }
  to.push(made);
  return made;
}

void group::settle(operation& what) const {
  if (!aborted() || !what.how.pending()) return;
  if (what.control) {
    const auto met = what.control->poll();
    if (met.status != work_status::ok && met.status != work_status::pending) {
      what.how.end(met);
      return;
    }
  }
  what.how.end({work_status::aborted, why(), {}});
}

void group::abort(std::string_view why) noexcept {
  end_.abort(why);
  control_->abort(why);
}

std::string group::why() const {
  if (end_.aborted()) return end_.why();
  try {
    control_->barrier("the reason of an abort")->wait();
  } catch (const std::exception& reason) {
    return reason.what();
  }
  return "the group was aborted";
}

bool group::quiescent() const noexcept {
  if (!aborted()) return !in_flight();
  return quiet_.load() && control_->quiescent();
}

// A caller may be back before the watcher has removed the operation.
bool group::in_flight() const {
  const std::lock_guard hold{mutex_};
  return std::any_of(flying_.begin(), flying_.end(), [](const auto& flying) {
    const auto one = flying.lock();
    return one && one->how.pending();
  });
}

void group::close() {
  if (in_flight()) abort("a rank left while a collective was in flight");
  closed_.store(true);
}

bool group::step_channels() {
  std::vector<std::shared_ptr<channel>> all;
  {
    const std::lock_guard hold{mutex_};
    all = channels_;
  }
  bool busy = false;
  for (const auto& one : all) {
    if (const auto why = one->step(); !why.empty()) {
      abort(why);
      return true;
    }
    busy = busy || one->busy();
  }
  const std::lock_guard hold{mutex_};
  drop_ended();
  return busy;
}

void group::drop_ended() {
  std::erase_if(flying_, [](const std::weak_ptr<operation>& flying) {
    const auto one = flying.lock();
    return !one || !one->how.pending();
  });
}

// Operations end when their lane looks at them: it may ask the control group for the reason.
void group::end_all() {
  std::vector<std::shared_ptr<channel>> all;
  {
    const std::lock_guard hold{mutex_};
    all = channels_;
    flying_.clear();
  }
  for (const auto& one : all) one->abort();
  ended_.store(true);
}

bool group::step() {
  if (over_) return false;
  if (aborted()) {
    if (!ended_.load()) end_all();
    if (!quiet_.load()) {
      const std::lock_guard hold{mutex_};
      quiet_.store(std::all_of(channels_.begin(), channels_.end(),
                               [](const auto& one) { return one->idle(); }));
    }
    over_ = closed_.load() && quiescent();
    return !quiet_.load();
  }
  if (closed_.load()) {
    const std::lock_guard hold{mutex_};
    over_ = std::all_of(channels_.begin(), channels_.end(),
                        [](const auto& one) { return one->close(); });
    return !over_;
  }
  return step_channels();
}

hub::hub() : thread_([this] { run(); }) {}

hub::~hub() {
  {
    const std::lock_guard hold{mutex_};
    ending_ = true;
    for (const auto& one : groups_) one->abort("the communicator's backend has ended");
  }
  wake();
  thread_.join();
}

void hub::add(std::shared_ptr<group> fresh) {
  {
    const std::lock_guard hold{mutex_};
    groups_.push_back(std::move(fresh));
  }
  wake();
}

void hub::wake() noexcept {
  {
    const std::lock_guard hold{mutex_};
    woken_ = true;
  }
  rung_.notify_one();
}

void hub::wait_turn() {
  std::unique_lock hold{mutex_};
  const auto seen = turns_;
  turned_.wait_for(hold, std::chrono::milliseconds{1}, [&] { return turns_ != seen; });
}

void hub::run() {
  using namespace std::chrono_literals;
  constexpr int eager_turns = 200;
  constexpr int last_turns = 2000;  // of a watcher that is to end: about two seconds
  int idle = 0;
  for (int left = last_turns; left > 0;) {
    std::vector<std::shared_ptr<group>> all;
    {
      const std::lock_guard hold{mutex_};
      all = groups_;
      if (ending_) left = all.empty() ? 0 : left - 1;
    }
    bool busy = false;
    for (const auto& one : all) busy = one->step() || busy;
    idle = busy ? idle + 1 : 0;
    std::unique_lock hold{mutex_};
    std::erase_if(groups_, [](const auto& one) { return one->over(); });
    ++turns_;
    turned_.notify_all();
    // Polls operations on a GPU without pause at first; polls messages of peers from time to time.
    const auto rest = !busy ? 1000us : idle < eager_turns ? 0us : 50us;
    if (ending_ || rest > 0us)
      rung_.wait_for(hold, ending_ ? 1000us : rest, [this] { return woken_; });
    woken_ = false;
  }
}

}  // namespace troupe::nccl
