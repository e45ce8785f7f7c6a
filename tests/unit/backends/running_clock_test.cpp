// Goal: running time stands still while the process is stopped, and is right otherwise.
#include "backends/running_clock.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

TEST_CASE("running time passes as the steady clock between readings", "[running_clock]") {
  running_time time{2s};
  CHECK(time.read(100s) == 100s);
  CHECK(time.read(101s) == 101s);
  CHECK(time.read(103s) == 103s);
  CHECK(time.read(103s + 1ns) == 103s + 1ns);
  CHECK(time.stood_still() == 0s);
}

TEST_CASE("a stop of ten minutes counts as the longest gap", "[running_clock]") {
  running_time time{2s};
  CHECK(time.read(100s) == 100s);
  CHECK(time.read(700s) == 102s);
  CHECK(time.read(701s) == 103s);
  CHECK(time.stood_still() == 598s);
  CHECK(time.read(2000s) == 105s);
}

TEST_CASE("readers of several threads agree after a stop", "[running_clock]") {
  constexpr int readers = 4;
  constexpr int stops = 2000;
  running_time time{2s};
  time.read(100s);
  std::atomic<int> stop{0};
  std::atomic<int> done{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> all;
  for (int r = 0; r < readers; ++r)
    all.emplace_back([&] {
      for (int k = 1; k <= stops; ++k) {
        while (stop.load() < k) std::this_thread::yield();
        if (time.read(100s + k * 600s) != 100s + k * 2s) ++wrong;
        ++done;
      }
    });
  for (int k = 1; k <= stops; ++k) {
    stop.store(k);
    while (done.load() < readers * k) std::this_thread::yield();
  }
  for (auto& one : all) one.join();
  CHECK(wrong.load() == 0);
}

TEST_CASE("a thread that waits looks again within a slice", "[running_clock]") {
  const auto now = running_clock::now();
  CHECK(running_clock::next_look(now + 1h) <= now + running_clock::slice + 1min);
  CHECK(running_clock::next_look(now) == now);
}

}  // namespace
}  // namespace troupe
