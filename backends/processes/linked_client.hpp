// The common part of all clients of a launcher: a link to the supervising process, served by the
// first thread of the rank's process.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <functional>
#include <string>
#include <utility>

#include "backends/launcher.hpp"
#include "backends/processes/link_stream.hpp"

namespace troupe {

class linked_client : public launcher_client {
public:
  /// Owns `socket`. `silence_counts`: a launcher that is silent for too long is lost.
  linked_client(const process_identity& who, int socket, bool silence_counts)
      : who_(who),
        link_(loop_, socket, {who.job, who.incarnation}, {.silence_counts = silence_counts}) {}

  const process_identity& who() const override { return who_; }
  troupe::link& control() override { return link_; }
  void carry(const tensor_bytes* tensors) override { link_.carry(tensors); }

  bool serve(std::function<void(link_message&&)> received) override {
    bool closed = false;
    const auto keep_running = boost::asio::make_work_guard(loop_);
    link_.listen({std::move(received), [&](const std::string& why) {
                    closed = why == link_closed_by_peer;
                    loop_.stop();
                  }});
    loop_.run();
    return closed;
  }

protected:
  boost::asio::io_context& loop() { return loop_; }

private:
  process_identity who_;
  boost::asio::io_context loop_{1};
  link_stream link_;
};

}  // namespace troupe
