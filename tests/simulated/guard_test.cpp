// Goal: code under test that calls the outside in a simulation ends the run, and the call is named.
// The same calls between events, and by the simulator, are allowed.
#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "apps/testing/simulated_job.hpp"
#include "backends/simulated/modular_learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct outside {
  const char* name;
  std::function<void()> call;
  const char* seen_as;
};

volatile std::uint64_t last_used = 0;
void use(std::uint64_t x) { last_used = x; }

std::vector<outside> all_kinds() {
  return {
      {"steady clock", [] { use(std::chrono::steady_clock::now().time_since_epoch().count()); },
       "clock_gettime"},
      {"system clock", [] { use(std::chrono::system_clock::now().time_since_epoch().count()); },
       "clock_gettime"},
      {"time", [] { use(std::time(nullptr)); }, "time"},
      {"processor time", [] { use(std::clock()); }, "clock"},
      {"input stream", [] { std::ifstream{"/dev/null"}; }, "fopen64"},
      {"open",
       [] {
         const int file = ::open("/dev/null", O_RDONLY);
         ::close(file);
       },
       "open"},
      {"file system", [] { use(std::filesystem::exists("/dev/null")); }, "stat"},
      {"file system, with large files",
       [] {
         struct stat64 facts {};
         use(::stat64("/dev/null", &facts));
       },
       "stat64"},
      {"links, with large files",
       [] {
         struct stat64 facts {};
         use(::lstat64("/dev/null", &facts));
       },
       "lstat64"},
      {"working folder", [] { use(std::filesystem::current_path().native().size()); }, "getcwd"},
      {"environment", [] { use(std::getenv("HOME") != nullptr); }, "getenv"},
      {"random device", [] { use(std::random_device{}()); }, "random_device"},
      {"kernel's entropy",
       [] {
         std::uint64_t x = 0;
         use(static_cast<std::uint64_t>(getrandom(&x, sizeof x, 0)));
       },
       "getrandom"},
      {"arc4random", [] { use(::arc4random()); }, "arc4random"},
      {"arc4random_uniform", [] { use(::arc4random_uniform(7)); }, "arc4random_uniform"},
      {"rand", [] { use(static_cast<std::uint64_t>(std::rand())); }, "rand"},
      {"thread", [] { std::thread{[] {}}.join(); }, "pthread_create"},
      {"socket", [] { ::close(::socket(AF_UNIX, SOCK_STREAM, 0)); }, "socket"},
      {"process", [] { use(static_cast<std::uint64_t>(::getpid())); }, "getpid"},
  };
}

std::string ended_by(const std::function<void()>& call) {
  simulation in{choices::of_seed(1), {}};
  const auto p = in.add_node(1, "some node");
  in.at(p, nanoseconds{0}, call);
  try {
    in.step();
  } catch (const reached_outside& e) {
    return e.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("a call to the outside ends the run and is named", "[simulated][guard]") {
  for (const auto& kind : all_kinds()) {
    INFO(kind.name);
    CHECK(ended_by(kind.call) ==
          "some node called " + std::string{kind.seen_as} + " in event 1 without a port");
  }
}

TEST_CASE("calls between events and by the simulator are allowed", "[simulated][guard]") {
  for (const auto& kind : all_kinds()) {
    INFO(kind.name);
    kind.call();
    CHECK(ended_by([&] {
            const not_delivering own;
            kind.call();
          }) == "nothing");
  }
  CHECK(ended_by([] {}) == "nothing");
}

TEST_CASE("calls of another thread are allowed", "[simulated][guard]") {
  std::atomic<bool> go{false};
  std::atomic<bool> done{false};
  std::thread other{[&] {
    go.wait(false);
    use(std::getenv("HOME") != nullptr);
    done = true;
    done.notify_one();
  }};
  CHECK(ended_by([&] {
          go = true;
          go.notify_one();
          done.wait(false);
        }) == "nothing");
  other.join();
}

TEST_CASE("a learner that reads the environment is found", "[simulated][guard]") {
  modular_options payload;
  payload.at_hook = [](const learner_context& c, const hook& h) {
    if (c.rank == 1 && name(h) == "training_step") use(std::getenv("SEED") != nullptr);
  };
  job what;
  what.options.ranks = 3;
  what.options.batch_size = 2;
  what.options.max_steps = 4;
  what.recipe = std::make_shared<modular_recipe>(payload);
  simulation in{choices::of_seed(3), {}};
  simulated_job r{in, {}};
  r.begin(what);
  std::string found;
  try {
    while (in.step()) continue;
  } catch (const reached_outside& e) {
    found = e.what();
  }
  CHECK(found.find("rank 1 called getenv") == 0);
}
