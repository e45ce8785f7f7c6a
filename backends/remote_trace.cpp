#include "backends/remote_trace.hpp"

#include <boost/asio/post.hpp>

#include <stdexcept>
#include <utility>

namespace troupe {

void trace_gate::enter() {
  std::unique_lock lock(guard_);
  news_.wait(lock, [&] { return open_ || ahead_ < ahead_max || !why_.empty(); });
  if (!why_.empty()) throw std::runtime_error(why_);
  ++ahead_;
}

void trace_gate::traced(const hooks_traced& m) {
  const std::lock_guard lock(guard_);
  ahead_ -= static_cast<std::int64_t>(m.count);
  if (!m.why.empty()) why_ = m.why;
  news_.notify_all();
}

void trace_gate::open() {
  const std::lock_guard lock(guard_);
  open_ = true;
  news_.notify_all();
}

void trace_gate::close() {
  const std::lock_guard lock(guard_);
  open_ = false;
}

trace_queue::trace_queue(bool threads)
    : thread_(threads ? std::make_unique<boost::asio::thread_pool>(1) : nullptr) {}

trace_queue::~trace_queue() {
  if (!thread_) return;
  thread_->stop();
  if (*busy_) (void)thread_.release();  // its destructor would wait for the reader
}

void trace_queue::add(std::function<void()> what) {
  if (!thread_) return what();
  boost::asio::post(*thread_, [busy = busy_, what = std::move(what)] {
    *busy = true;
    what();
    *busy = false;
  });
}

}  // namespace troupe
