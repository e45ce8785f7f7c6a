// Goal: a link over a socket delivers messages in order, keeps its bounds, and reports once that it
// is lost.
#include "backends/processes/link_stream.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "actors/snapshot_sender.hpp"
#include "backends/wire/heartbeat_machine.hpp"
#include "tests/unit/backends/processes/any_message.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// Two ends on one event loop, which the test runs by hand.
struct two_ends {
  explicit two_ends(link_identity left = us, link_identity right = us) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, numbers.data()) == 0);
    a = std::make_unique<link_stream>(loop, numbers[0], left);
    b = std::make_unique<link_stream>(loop, numbers[1], right);
  }
  void listen() {
    a->listen({[](link_message&&) {}, [this](const std::string& why) { a_lost.push_back(why); }});
    b->listen({[this](link_message&& m) { got.push_back(std::move(m)); },
               [this](const std::string& why) { b_lost.push_back(why); }});
  }
  void run_until(const std::function<bool()>& done) {
    for (int i = 0; i < 100'000 && !done(); ++i) loop.run_one_for(std::chrono::seconds{5});
    REQUIRE(done());
  }

  std::array<int, 2> numbers{};
  boost::asio::io_context loop{1};
  std::unique_ptr<link_stream> a, b;
  std::vector<link_message> got;
  std::vector<std::string> a_lost, b_lost;
};

step_done step(std::int64_t n) {
  step_done m;
  m.at.step = step_id{n};
  return m;
}
std::int64_t step_of(const link_message& m) { return std::get<step_done>(m).at.step.value(); }

}  // namespace

TEST_CASE("messages of any size arrive in order and then the end is reported") {
  two_ends ends;
  ends.listen();
  std::mt19937_64 draw{1};
  const auto state = any_snapshot(draw, 3'000'000);
  for (int i = 0; i < 1000; ++i) ends.a->send(step(i));
  ends.a->send(write_checkpoint{{}, state, true});
  ends.a->send(step(1000));
  ends.a->close();
  ends.run_until([&] { return !ends.b_lost.empty(); });
  REQUIRE(ends.got.size() == 1002);
  for (int i = 0; i < 1000; ++i) REQUIRE(step_of(ends.got[static_cast<std::size_t>(i)]) == i);
  CHECK(*std::get<write_checkpoint>(ends.got[1000]).what->model[0].bytes == *state->model[0].bytes);
  CHECK(ends.b_lost == std::vector<std::string>{link_closed_by_peer});
  CHECK(ends.a_lost.empty());
}

TEST_CASE("sent messages arrive although the sender is destroyed") {
  two_ends ends;
  ends.a->listen({});
  ends.a->send(step(1));
  ends.a->send(step(2));
  ends.a.reset();  // as if its process were killed; the loop has not run yet
  ends.b->listen({[&](link_message&& m) { ends.got.push_back(std::move(m)); },
                  [&](const std::string& why) { ends.b_lost.push_back(why); }});
  ends.run_until([&] { return !ends.b_lost.empty(); });
  REQUIRE(ends.got.size() == 2);
  CHECK(step_of(ends.got[1]) == 2);
}

TEST_CASE("drain delivers at once all that arrived from a dead peer") {
  two_ends ends;
  ends.a->listen({});
  for (int i = 0; i < 100; ++i) ends.a->send(step(i));
  ends.b->listen({[&](link_message&& m) { ends.got.push_back(std::move(m)); }, {}});
  ends.b->drain();
  CHECK(ends.got.size() == 100);
}

TEST_CASE("of waiting snapshots the best and newest are sent and progress while there is room") {
  two_ends ends;
  // No end reads, so the socket buffer fills up.
  std::mt19937_64 draw{1};
  const auto large = any_snapshot(draw, 1'000'000);
  snapshot_sender sender{*ends.a, {}};
  sender.send(write_checkpoint{{}, large, true});
  const std::vector<double> losses{3, 1, 2, 5, 4};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    auto some = std::make_shared<snapshot>(*large);
    some->loop.steps = static_cast<std::int64_t>(i);
    some->loop.last = {{"val/loss", losses[i]}};
    sender.send(write_checkpoint{{}, some, false});
  }
  const auto many = static_cast<int>(link_queue_limit);
  std::size_t dropped = 0;
  for (int i = 0; i < many; ++i)
    dropped += ends.a->send(observed{seen::progress{}}, keep::if_room) ? 0 : 1;
  ends.a->send(step(1));
  ends.listen();
  ends.run_until(
      [&] { return !ends.got.empty() && std::holds_alternative<step_done>(ends.got.back()); });
  std::vector<std::int64_t> checkpoints;
  std::int64_t skipped = 0;
  std::size_t progress = 0;
  for (const auto& m : ends.got) {
    if (const auto* c = std::get_if<write_checkpoint>(&m)) {
      checkpoints.push_back(c->what->loop.steps);
      skipped += c->skipped;
    }
    progress += std::holds_alternative<observed>(m) ? 1 : 0;
  }
  REQUIRE(checkpoints.size() == 3);
  CHECK(checkpoints[1] == 1);
  CHECK(checkpoints[2] == 4);
  CHECK(skipped == 3);
  CHECK(progress > 0);
  CHECK(dropped > 0);
  CHECK(progress + dropped == link_queue_limit);
}

TEST_CASE("a peer that does not read loses the link at the queue limit") {
  two_ends ends;
  ends.a->listen({{}, [&](const std::string& why) { ends.a_lost.push_back(why); }});
  std::mt19937_64 draw{1};
  ends.a->send(write_checkpoint{{}, any_snapshot(draw, 1'000'000), true});
  for (std::size_t i = 0; i < link_queue_limit + 10; ++i) ends.a->send(step(1));
  ends.run_until([&] { return !ends.a_lost.empty(); });
  CHECK(ends.a_lost.size() == 1);
  CHECK(ends.a_lost.front().find("does not take") != std::string::npos);
}

TEST_CASE("messages of a peer of another job are not delivered") {
  two_ends ends{us, {job_id{8}, us.incarnation}};
  ends.listen();
  ends.a->send(step(1));
  ends.run_until([&] { return !ends.b_lost.empty(); });
  CHECK(ends.got.empty());
  CHECK(ends.b_lost.front().find("another job") != std::string::npos);
}

TEST_CASE("bytes that are no message end the link") {
  std::array<int, 2> numbers{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, numbers.data()) == 0);
  boost::asio::io_context loop{1};
  link_stream receiving{loop, numbers[0], us};
  std::vector<std::string> lost;
  receiving.listen({{}, [&](const std::string& why) { lost.push_back(why); }});
  auto bytes = link_greeting(us);
  bytes.resize(bytes.size() + 100, std::byte{0x55});
  REQUIRE(::write(numbers[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  for (int i = 0; i < 100 && lost.empty(); ++i) loop.run_one_for(std::chrono::seconds{5});
  REQUIRE(lost.size() == 1);
  CHECK(lost.front().find("mark") != std::string::npos);
  ::close(numbers[1]);
}

namespace {

// One end of a link, and by hand the other one, which answers its heartbeats as long as it should.
struct beating_end {
  beating_end(link_heartbeats how, std::chrono::nanoseconds detection) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, numbers.data()) == 0);
    end = std::make_unique<link_stream>(loop, numbers[0], us, how);
    end->listen({{}, [this](const std::string& why) { lost.push_back(why); }});
    say(link_greeting(us, detection));
  }
  ~beating_end() { ::close(numbers[1]); }
  beating_end(const beating_end&) = delete;
  beating_end& operator=(const beating_end&) = delete;

  void say(const std::vector<std::byte>& bytes) const {
    REQUIRE(::write(numbers[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  // Heartbeats of the end, which has sent nothing else but its greeting.
  std::size_t beats() {
    std::array<std::byte, 1024> part;
    for (ssize_t size = 0; size >= 0; got += static_cast<std::size_t>(size)) {
      size = ::recv(numbers[1], part.data(), part.size(), MSG_DONTWAIT);
      if (size < 0) break;
    }
    return (got - link_greeting(us).size()) / heartbeat().size();
  }
  // Until the end has sent so many heartbeats, or is lost.
  void run(std::size_t until, bool answer) {
    for (std::size_t seen = 0; lost.empty() && seen < until;) {
      loop.run_one_for(std::chrono::seconds{5});
      const auto now = beats();
      if (answer && now > seen) say(heartbeat());
      seen = now;
    }
  }

  std::array<int, 2> numbers{};
  boost::asio::io_context loop{1};
  std::unique_ptr<link_stream> end;
  std::vector<std::string> lost;
  std::size_t got = 0;
};

constexpr std::chrono::milliseconds patience{50};

}  // namespace

TEST_CASE("a peer that answers heartbeats keeps the link, and a silent one loses it") {
  const bool by_greeting = GENERATE(false, true);
  constexpr std::chrono::milliseconds none{0};
  beating_end one{{.patience = by_greeting ? none : patience}, by_greeting ? patience : none};
  const auto greeted = one.end->received();
  one.run(20, true);
  CHECK(one.lost.empty());
  CHECK(one.end->received() > greeted);  // what a process that begins slowly is known by
  const auto before = one.beats();
  one.run(1000, false);
  REQUIRE(one.lost.size() == 1);
  CHECK(one.lost.front() == "the other side was silent for 0.1 s");
  CHECK(one.beats() <= before + heartbeats_until_lost);
}

TEST_CASE("silence_counts is false: the end sends heartbeats, and a silent peer keeps the link") {
  beating_end one{{.silence_counts = false}, patience};
  one.run(10 * heartbeats_until_lost, false);
  CHECK(one.lost.empty());
}

TEST_CASE("several threads may send at once and keep their own order") {
  two_ends ends;
  ends.listen();
  constexpr int each = 2000;
  std::thread loop([&] { ends.loop.run(); });
  {
    const auto sender = [&](std::int64_t from) {
      for (int i = 0; i < each; ++i) ends.a->send(step(from + i));
    };
    std::thread one(sender, 0), two(sender, 10'000);
    one.join();
    two.join();
    ends.a->close();
  }
  // The loop ends once b has received a's end and a has received b's.
  ends.b->close();
  loop.join();
  CHECK(ends.got.size() == 2 * each);
  std::int64_t first = -1, second = 9'999;
  for (const auto& m : ends.got) {
    auto& last = step_of(m) < 10'000 ? first : second;
    REQUIRE(step_of(m) == last + 1);
    last = step_of(m);
  }
}
