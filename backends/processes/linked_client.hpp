// The common part of all clients of a launcher: a link to the supervising process, served by the
// first thread of the rank's process.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "backends/launcher.hpp"
#include "backends/processes/link_stream.hpp"

namespace troupe {

class linked_client : public launcher_client {
public:
  /// Owns `socket`. `silence_counts`: a launcher that is silent for too long is lost.
  /// `received_limit`: how long user code may run on for messages of a link that is closed.
  linked_client(const process_identity& who, int socket, bool silence_counts,
                std::chrono::nanoseconds received_limit = std::chrono::minutes{1})
      : who_(who),
        link_(loop_, socket, {who.job, who.incarnation}, {.silence_counts = silence_counts}),
        received_limit_(received_limit) {}

  const process_identity& who() const override { return who_; }
  troupe::link& control() override { return link_; }
  void carry(const tensor_bytes* tensors) override { link_.carry(tensors); }

  bool serve(std::function<void(link_message&&)> received) override {
    bool closed = false;
    const auto keep_running = boost::asio::make_work_guard(loop_);
    auto receiver = std::make_unique<boost::asio::thread_pool>(1);
    const auto call = std::make_shared<decltype(received)>(std::move(received));
    const auto hand_on = [&receiver, call](link_message&& m) {
      boost::asio::post(*receiver, [call, m = std::move(m)]() mutable { (*call)(std::move(m)); });
    };
    link_.listen({hand_on, [&](const std::string& why) {
                    closed = why == link_closed_by_peer;
                    if (!closed) lost(why);
                    loop_.stop();
                  }});
    loop_.run();
    if (closed && has_received_all(*receiver)) return true;
    (void)receiver.release();  // its destructor would wait for user code
    return false;
  }

protected:
  boost::asio::io_context& loop() { return loop_; }
  /// The link is lost, and the process is about to end.
  virtual void lost(const std::string& why) noexcept { (void)why; }

private:
  bool has_received_all(boost::asio::thread_pool& receiver) const {
    const auto last = std::make_shared<std::promise<void>>();
    boost::asio::post(receiver, [last] { last->set_value(); });
    return last->get_future().wait_for(received_limit_) == std::future_status::ready;
  }

  process_identity who_;
  boost::asio::io_context loop_{1};
  link_stream link_;
  const std::chrono::nanoseconds received_limit_;
};

}  // namespace troupe
