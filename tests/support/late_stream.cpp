#include "tests/support/late_stream.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "backends/torch/lane_thread.hpp"

namespace troupe::testing {

namespace {

// A stream with so many tasks begins without being asked.
constexpr std::size_t most_waiting = 1 << 14;

std::atomic<bool> event_waits{true};

struct all_streams {
  std::mutex mutex;
  std::map<std::pair<int, std::int64_t>, std::unique_ptr<late_stream>> known;
  std::int64_t made = 0;

  static all_streams& of_process() {
    static auto* const all = new all_streams;
    return *all;
  }
};

}  // namespace

late_stream& late_stream::of(const c10::Stream& stream) {
  auto& all = all_streams::of_process();
  const std::lock_guard lock{all.mutex};
  auto& one = all.known[{stream.device_index(), stream.id()}];
  if (!one) one = std::make_unique<late_stream>();
  return *one;
}

c10::Stream late_stream::make(c10::DeviceIndex device) {
  auto& all = all_streams::of_process();
  const std::lock_guard lock{all.mutex};
  return c10::Stream{c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, device), ++all.made};
}

void late_stream::wait_for_all(c10::DeviceIndex device) {
  auto& all = all_streams::of_process();
  std::vector<late_stream*> of_device;
  {
    const std::lock_guard lock{all.mutex};
    for (const auto& [key, stream] : all.known)
      if (key.first == device) of_device.push_back(stream.get());
  }
  for (auto* stream : of_device) stream->wait();
}

late_stream::late_stream() {
  std::thread([this] { run(); }).detach();
}

std::uint64_t late_stream::submit(std::function<void()> task) {
  const std::lock_guard lock{mutex_};
  queue_.push_back(std::move(task));
  if (queue_.size() > most_waiting) wanted_.notify_one();
  return ++submitted_;
}

std::uint64_t late_stream::last() const {
  const std::lock_guard lock{mutex_};
  return submitted_;
}

bool late_stream::done(std::uint64_t number) {
  const std::lock_guard lock{mutex_};
  demanded_ = std::max(demanded_, number);
  wanted_.notify_one();
  return done_ >= number;
}

void late_stream::wait(std::uint64_t number) {
  std::unique_lock lock{mutex_};
  demanded_ = std::max(demanded_, number);
  wanted_.notify_one();
  finished_.wait(lock, [&] { return done_ >= number; });
  if (error_) std::rethrow_exception(error_);
}

void late_stream::run() {
  const lane_thread one_thread;
  std::unique_lock lock{mutex_};
  while (true) {
    wanted_.wait(lock, [&] {
      return !queue_.empty() && (done_ < demanded_ || queue_.size() > most_waiting);
    });
    auto task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
      task = nullptr;  // what it held is freed before it counts as done
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    ++done_;
    finished_.notify_all();
  }
}

void wait_in(late_stream& stream, const late_event& event) {
  if (!event.stream || event.stream == &stream) return;
  stream.submit([event] { await(event); });
}

void await(const late_event& event) {
  if (event.stream && event_waits) event.stream->wait(event.number);
}

void switch_event_waits(bool on) { event_waits = on; }

}  // namespace troupe::testing
