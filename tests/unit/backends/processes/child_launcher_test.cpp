// Goal: a launcher starts a process for the same rank again, while the one before is dead or dying,
// and the new process shares nothing with it.
// Method: this program is the rank's process, too. It reports itself over an inherited pipe.
#include "backends/launcher.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "backends/local/file_descriptor.hpp"
#include "backends/processes/arguments.hpp"
#include "tests/support/runner.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

constexpr std::chrono::seconds patience{60};

// Incarnations with a behaviour of their own.
constexpr std::uint64_t mute = 1000;   ///< sends one message, and does not serve its link
constexpr std::uint64_t busy = 1002;   ///< its lanes compute all the time
constexpr std::uint64_t heavy = 1004;  ///< it has a gigabyte and a low priority, and is busy
constexpr std::uint64_t flood = 1006;  ///< sends more messages than may wait
constexpr std::uint64_t noise = 1008;  ///< sends bytes that are no message

/// What a rank's process says of itself.
struct self_report {
  pid_t pid = 0;
  std::int32_t rank = -1;
  std::uint64_t incarnation = 0;
  int descriptors = 0;  ///< open when main began, without the three standard ones
};

int open_descriptors() {
  auto* const all = opendir("/proc/self/fd");
  int count = -3;  // the folder itself and its two entries "." and ".."
  while (readdir(all) != nullptr) ++count;
  closedir(all);
  return count;
}

bool enters_a_hook(std::uint64_t incarnation) { return incarnation % 2 != 0; }

int live_as_rank(launcher_client& client, int inherited) {
  const auto& who = client.who();
  if (enters_a_hook(who.incarnation.value())) {
    // Two ranks live here, each with its lane.
    std::thread first([&] { client.enter(1, hook{hooks::on_fit_start{}}); });
    std::thread second([&] { client.enter(2, hook{hooks::backward{}}); });
    first.join();
    second.join();
  }
  std::vector<char> ballast;
  if (who.incarnation.value() == heavy) {
    ballast.assign(std::size_t{1} << 30, '\1');
    if (nice(10) == -1) return 1;
  }
  const self_report self{getpid(), who.number, who.incarnation.value(), inherited};
  if (write(client.descriptors().at(0), &self, sizeof self) != sizeof self) return 1;
  client.control().send(process_ready{});
  while (who.incarnation.value() == mute) pause();
  if (who.incarnation.value() == flood)
    for (int i = 0; i < 20'000; ++i) client.control().send(process_ready{});
  if (who.incarnation.value() == noise) {
    const std::array<char, 64> bytes{};
    if (write(link_descriptor, bytes.data(), bytes.size()) < 0) return 1;
  }
  if (who.incarnation.value() == busy || who.incarnation.value() == heavy)
    for (int i = 0; i < 2; ++i)
      std::thread([] {
        for (volatile bool ever = true; ever;)
          ;
      }).detach();
  const bool closed = client.serve([](link_message&&) {});
  _exit(closed ? 0 : 2);
}

/// One life of rank 1.
class life {
public:
  life(rank_launcher& by, std::uint64_t incarnation,
       std::chrono::nanoseconds detect = process_start{}.detect) {
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    report_.reset(ends[0]);
    const file_descriptor theirs{ends[1]};
    process_start what;
    what.who = {
        .job = job_id{4}, .number = 1, .world = 2, .incarnation = incarnation_id{incarnation}};
    what.descriptors = {theirs.get()};
    what.detect = detect;
    process_ =
        by.start(std::move(what), {[this](link_message&& m) {
                                     const std::lock_guard hold{mutex_};
                                     if (const auto* leaves = std::get_if<process_leaves>(&m))
                                       leaves_.push_back(leaves->why);
                                     news_.notify_all();
                                   },
                                   [this](process_end how) {
                                     const std::lock_guard hold{mutex_};
                                     end_ = std::move(how);
                                     ended_at_ = std::chrono::steady_clock::now();
                                     news_.notify_all();
                                   }});
  }
  life(const life&) = delete;
  life& operator=(const life&) = delete;

  self_report report() const {
    self_report self;
    pollfd from{report_.get(), POLLIN, 0};
    REQUIRE(poll(&from, 1, std::chrono::milliseconds{patience}.count()) == 1);
    REQUIRE(read(report_.get(), &self, sizeof self) == sizeof self);
    return self;
  }
  /// While it is held, no message of the process is taken.
  std::unique_lock<std::mutex> hold() { return std::unique_lock{mutex_}; }
  std::string leaves() {
    std::unique_lock hold{mutex_};
    REQUIRE(news_.wait_for(hold, patience, [&] { return !leaves_.empty(); }));
    return leaves_.front();
  }
  process_end end() {
    std::unique_lock hold{mutex_};
    REQUIRE(news_.wait_for(hold, patience, [&] { return end_.has_value(); }));
    return *end_;
  }

  std::chrono::steady_clock::time_point ended_at() {
    end();
    const std::lock_guard hold{mutex_};
    return ended_at_;
  }

private:
  std::mutex mutex_;
  std::chrono::steady_clock::time_point ended_at_;
  std::condition_variable news_;
  std::optional<process_end> end_;
  std::vector<std::string> leaves_;
  file_descriptor report_;
  std::unique_ptr<rank_process> process_;  // first to go: it ends the calls of the sink
};

void check_fresh(const self_report& self, std::uint64_t incarnation) {
  CHECK(self.rank == 1);
  CHECK(self.incarnation == incarnation);
  CHECK(self.descriptors == 3);  // the link, the black box, the pipe
}

TEST_CASE(
    "a process of two ranks is killed: its end names the hook of each, and the next one has its "
    "own",
    "[launcher]") {
  const auto launcher = child_launcher();
  for (const std::uint64_t incarnation : {1, 2, 3}) {
    life one{*launcher, incarnation};
    const auto self = one.report();
    check_fresh(self, incarnation);
    REQUIRE(kill(self.pid, SIGKILL) == 0);
    const auto how = one.end();
    CHECK(how.what.signal == "SIGKILL");
    const bool entered = enters_a_hook(incarnation);
    const auto first = how.of_rank(1);
    CHECK((first.rank == 1 && first.signal == "SIGKILL"));
    CHECK(first.hook == (entered ? "on_fit_start" : ""));
    CHECK(how.of_rank(2).hook == (entered ? "backward" : ""));
    CHECK(how.of_rank(3).hook.empty());
  }
}

TEST_CASE("a rank's process is started fifty times while the last one dies", "[launcher]") {
  const auto launcher = child_launcher();
  int with_one = 0;
  for (std::uint64_t incarnation = 1; incarnation <= 50; ++incarnation) {
    life one{*launcher, incarnation};
    check_fresh(one.report(), incarnation);
    if (incarnation == 1) with_one = open_descriptors();
    if (incarnation < 50) continue;
    const auto until = std::chrono::steady_clock::now() + patience;
    while (open_descriptors() != with_one && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    CHECK(open_descriptors() == with_one);
  }
}

TEST_CASE("a process is started for a rank whose old process lives: both exist at once",
          "[launcher]") {
  const auto launcher = child_launcher();
  // It stays stopped until the other one reports: so long a detection time.
  auto old = std::make_unique<life>(*launcher, 2, std::chrono::minutes{1});
  const auto first = old->report();
  REQUIRE(kill(first.pid, SIGSTOP) == 0);
  life young{*launcher, 3};
  const auto second = young.report();
  check_fresh(second, 3);
  CHECK(second.pid != first.pid);
  CHECK(kill(first.pid, 0) == 0);
  old.reset();
  REQUIRE(kill(second.pid, SIGKILL) == 0);
  CHECK(young.end().of_rank(1).hook == "on_fit_start");
}

TEST_CASE("SIGTERM to a rank's process: it asks to leave and goes on, its lanes busy or not",
          "[launcher]") {
  const auto launcher = child_launcher();
  const std::uint64_t incarnation = GENERATE(2, busy);
  life one{*launcher, incarnation};
  const auto self = one.report();
  REQUIRE(kill(self.pid, SIGTERM) == 0);
  CHECK(one.leaves() == "SIGTERM");
  for (const auto signal : {SIGTERM, SIGINT, SIGHUP}) REQUIRE(kill(self.pid, signal) == 0);
  REQUIRE(kill(self.pid, SIGKILL) == 0);
  CHECK(one.end().what.signal == "SIGKILL");
}

// Keeps every core busy: a process of a lower priority needs ten times as long for anything.
class full_load {
public:
  full_load() {
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
      all_.emplace_back([this] {
        while (!over_)
          ;
      });
  }
  ~full_load() {
    over_ = true;
    for (auto& one : all_) one.join();
  }

private:
  std::atomic<bool> over_ = false;
  std::vector<std::thread> all_;
};

// A fast machine releases a gigabyte before the launcher looks, so the process has a low priority.
// One of twenty rounds counts: the launcher may look late, or the kernel run the process early.
TEST_CASE("a process with a gigabyte is killed: its end is reported before its memory is released",
          "[launcher]") {
  const auto launcher = child_launcher();
  bool sooner = false;
  for (int round = 0; round < 20 && !sooner; ++round) {
    life one{*launcher, heavy};
    const auto self = one.report();
    const file_descriptor watched{static_cast<int>(syscall(SYS_pidfd_open, self.pid, 0))};
    const full_load load;
    const auto begun = std::chrono::steady_clock::now();
    REQUIRE(kill(self.pid, SIGKILL) == 0);
    pollfd ended{watched.get(), POLLIN, 0};
    REQUIRE(poll(&ended, 1, 60'000) == 1);
    const auto over = std::chrono::steady_clock::now();
    const auto how = one.end();
    CHECK(how.what.signal == "SIGKILL");
    CHECK_FALSE(how.clean);
    sooner = one.ended_at() - begun < 0.8 * (over - begun);
  }
  CHECK(sooner);
}

TEST_CASE("the launcher does not read what a process sends: its end says that the link was lost",
          "[launcher]") {
  const auto launcher = child_launcher();
  life one{*launcher, flood};
  {
    const auto unread = one.hold();
    const auto self = one.report();
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(self.pid), &info, WEXITED | WNOWAIT) == 0);
  }
  const auto how = one.end();
  CHECK(how.what.kind == failure_kind::exit);
  CHECK(how.what.what ==
        "its process ended with exit code 2, because it lost its link to this process: the other "
        "side does not take what is sent: 8192 messages wait");
}

TEST_CASE("a rank's process sends what is no message: its end says so", "[launcher]") {
  const auto launcher = child_launcher();
  life one{*launcher, noise};
  const auto how = one.end();
  CHECK(how.what.kind == failure_kind::lost);
  CHECK(how.what.what ==
        "the link to its process broke, and the process was killed: no control message: its mark "
        "is missing");
}

TEST_CASE("a rank's process that lives and sends nothing is lost", "[launcher]") {
  const auto launcher = child_launcher();
  life one{*launcher, mute};
  const auto self = one.report();
  const auto how = one.end();
  CHECK(how.what.kind == failure_kind::lost);
  CHECK(how.what.what.find("sent nothing for 10.0 s") != std::string::npos);
  CHECK(kill(self.pid, 0) == -1);
}

// Of process 0 of a placed launcher: `kept_descriptor` is the pipe.
int live_as_placed(const std::string& join_info, int inherited) {
  const std::array<int, 2> said{inherited, static_cast<int>(join_info.size())};
  return write(kept_descriptor, said.data(), sizeof said) == sizeof said ? 0 : 1;
}

TEST_CASE("the first placed process has the descriptor that its launcher gave it", "[launcher]") {
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  const file_descriptor report{ends[0]};
  file_descriptor theirs{ends[1]};
  const auto launcher = placed_launcher({.world = 1, .keep = theirs.get()});
  std::promise<process_end> end;
  process_start what;
  what.who = {.job = job_id{4}, .number = 0, .world = 1, .incarnation = incarnation_id{1}};
  const auto process =
      launcher->start(what, {[](link_message&&) {}, [&](process_end how) { end.set_value(how); }});
  CHECK(end.get_future().get().clean);
  theirs.reset();
  std::array<int, 2> said{};
  REQUIRE(read(report.get(), said.data(), sizeof said) == sizeof said);
  CHECK(said[0] == 2);  // the join info's pipe, and this one
  CHECK(said[1] > 0);
}

}  // namespace
}  // namespace troupe

int main(int count, char** arguments) {
  const int inherited = troupe::open_descriptors() - 3;
  if (const auto client = troupe::launcher_client_of(count, arguments))
    return troupe::live_as_rank(*client, inherited);
  if (const auto join_info = troupe::placed_child(count, arguments))
    return troupe::live_as_placed(*join_info, inherited);
  return troupe::testing::run_tests(count, arguments);
}
