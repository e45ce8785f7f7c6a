#include "backends/processes/remote_process.hpp"

#include <utility>

#include "backends/processes/process_looks.hpp"

namespace troupe {

remote_process::remote_process(boost::asio::io_context& loop, process_start what, process_sink sink,
                               std::function<void(const std::string& why)> lost)
    : loop_(loop), what_(std::move(what)), lost_(std::move(lost)), sink_(std::move(sink)) {}

void remote_process::send(link_message what) {
  const std::lock_guard lock(sending_);
  if (over_) return;
  if (link_)
    link_->send(std::move(what));
  else
    waiting_.push_back(std::move(what));
}

void remote_process::forget_sink() {
  const std::lock_guard lock(sink_guard_);
  sink_ = {};
}

std::int64_t remote_process::received() const {
  const std::lock_guard lock(sending_);
  return link_ ? link_->received() : 0;
}

std::int64_t remote_process::received_attached() const {
  const std::lock_guard lock(sending_);
  return link_ ? link_->received_attached() : 0;
}

void remote_process::begin(int socket) {
  begun_ = true;
  const std::lock_guard lock(sending_);
  link_.emplace(loop_, socket, link_identity{what_.who.job, what_.who.incarnation},
                link_heartbeats{.patience = silence_limit(what_.detect)});
  link_->carry(what_.tensors);
  for (auto& one : waiting_) link_->send(std::move(one));
  waiting_.clear();
  const auto me = weak_from_this();
  link_->listen({[me](link_message&& m) {
                   const auto self = me.lock();
                   if (!self) return;
                   const std::lock_guard hold(self->sink_guard_);
                   if (self->sink_.received) self->sink_.received(std::move(m));
                 },
                 [me](const std::string& why) {
                   if (const auto self = me.lock()) self->lost_(why);
                 }});
}

void remote_process::drain() {
  if (link_) link_->drain();
}

void remote_process::end(process_end how) {
  if (over_.exchange(true)) return;
  {
    const std::lock_guard lock(sending_);
    waiting_.clear();
    if (link_) link_->close();
  }
  const std::lock_guard lock(sink_guard_);
  if (sink_.ended) sink_.ended(std::move(how));
}

}  // namespace troupe
