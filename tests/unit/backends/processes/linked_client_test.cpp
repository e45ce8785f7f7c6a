// Goal: a rank's process serves its link to the end, and does not wait without a limit for user
// code.
#include "backends/processes/linked_client.hpp"

#include <sys/socket.h>

#include <array>
#include <latch>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

constexpr process_identity rank_1{
    .job = job_id{4}, .number = 1, .world = 2, .incarnation = incarnation_id{7}};

class served_client : public linked_client {
public:
  served_client(int socket, std::chrono::nanoseconds received_limit)
      : linked_client(rank_1, socket, false, received_limit) {}
  const std::vector<int>& descriptors() const override { return none_; }
  void enter(std::int32_t, const hook&) noexcept override {}

private:
  std::vector<int> none_;
};

// What `serve` returns for a launcher that sends one message and closes the link.
bool served(std::chrono::nanoseconds received_limit, std::function<void()> received) {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  served_client client{ends[0], received_limit};
  boost::asio::io_context loop{1};
  link_stream launcher{loop, ends[1], {rank_1.job, rank_1.incarnation}};
  launcher.send(warm_up{});
  launcher.close();
  return client.serve([received = std::move(received)](link_message&&) { received(); });
}

}  // namespace

TEST_CASE("a link that is closed while user code still reads a message: serve waits for it") {
  bool has_received = false;
  CHECK(served(std::chrono::minutes{1}, [&] { has_received = true; }));
  CHECK(has_received);
}

TEST_CASE("user code that is stuck in a message: serve gives it up at the limit") {
  const auto go_on = std::make_shared<std::latch>(1);
  CHECK_FALSE(served(std::chrono::milliseconds{1}, [go_on] { go_on->wait(); }));
  go_on->count_down();
}
