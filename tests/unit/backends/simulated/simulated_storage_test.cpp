// Goal: the storage in virtual time answers as its costs and faults say; operations of a killed
// program are never answered.
#include "backends/simulated/simulated_storage.hpp"

#include <map>

#include "tests/support/catch.hpp"

using namespace troupe;
namespace ops = troupe::storage_ops;
using kind = storage_fault::kind;
using std::chrono::nanoseconds;

namespace {

struct virtual_time {
  nanoseconds now{0};
  std::multimap<nanoseconds, later_call> events;

  later_fn later() {
    return later_fn{
        [this](nanoseconds delay) { return &events.emplace(now + delay, later_call{})->second; }};
  }
  void run() {
    while (!events.empty()) {
      const auto first = events.begin();
      now = first->first;
      auto what = std::move(first->second);
      events.erase(first);
      what();
    }
  }
};

storage_cost_fn ten_each() {
  return [](const storage_op&) { return nanoseconds{10}; };
}

}  // namespace

TEST_CASE("operations take their cost, one after the other", "[simulated_storage]") {
  virtual_time time;
  simulated_storage files{time.later(), ten_each()};
  std::vector<std::int64_t> answered;
  for (int i = 0; i < 3; ++i)
    files.submit(ops::make_folder{"d"}, [&](storage_result r) {
      CHECK_FALSE(r.error);
      answered.push_back(time.now.count());
    });
  CHECK(files.disk().entries().size() == 1);
  time.run();
  CHECK(answered == std::vector<std::int64_t>{10, 20, 30});
  CHECK(files.disk().entries().size() == 2);
}

TEST_CASE("a slow disk answers late; a hanging one waits for go_on", "[simulated_storage]") {
  virtual_time time;
  int asked = 0;
  simulated_storage files{time.later(), ten_each(), [&](const storage_op&) -> storage_fault {
                            ++asked;
                            if (asked == 1) return {kind::slow, 0, nanoseconds{5}};
                            return {asked == 2 ? kind::hang : kind::none};
                          }};
  std::vector<std::int64_t> answered;
  for (int i = 0; i < 3; ++i)
    files.submit(ops::make_folder{"d"},
                 [&](storage_result) { answered.push_back(time.now.count()); });
  time.run();
  CHECK(answered == std::vector<std::int64_t>{15});
  files.go_on();
  files.go_on();
  time.run();
  CHECK(answered == std::vector<std::int64_t>{15, 15, 25});
  CHECK(asked == 3);
  CHECK(files.faults().at(static_cast<std::size_t>(kind::slow)) == 1);
  CHECK(files.faults().at(static_cast<std::size_t>(kind::hang)) == 1);
  CHECK(files.faults().at(static_cast<std::size_t>(kind::torn)) == 0);
}

TEST_CASE("a killed program gets no answers; the next one does", "[simulated_storage]") {
  virtual_time time;
  simulated_storage files{time.later(), ten_each()};
  const auto never = [](storage_result) { FAIL("answered"); };
  files.submit(ops::make_folder{"a/b"}, never);
  files.submit(ops::make_folder{"c"}, never);
  files.kill(1);
  CHECK(files.disk().entries().size() == 2);  // "a" and not "a/b"
  bool answered = false;
  files.submit(ops::list{"."}, [&](storage_result r) {
    answered = true;
    CHECK(r.names == std::vector<std::string>{"a"});
    CHECK(time.now.count() == 10);
  });
  time.run();
  CHECK(answered);
}

TEST_CASE("a crash loses changes that were not durable", "[simulated_storage]") {
  virtual_time time;
  simulated_storage files{time.later()};
  files.submit(ops::write{"a", {}}, [](storage_result) {});
  time.run();
  CHECK(files.disk().pending() == 2);
  files.crash(0, [](std::size_t) { return false; });
  CHECK(files.disk().pending() == 0);
  CHECK(files.disk().entries().size() == 1);
}

TEST_CASE("events scheduled by a destroyed storage do no harm", "[simulated_storage]") {
  virtual_time time;
  {
    simulated_storage files{time.later(), ten_each()};
    files.submit(ops::list{"."}, [](storage_result) { FAIL("answered"); });
  }
  time.run();
  CHECK(time.events.empty());
}
