// Goal: the hook that each lane of a process entered last can be read through another mapping of
// the page.
#include "backends/processes/black_box.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

black_box other_mapping(const black_box& of) {
  return black_box::adopt(::fcntl(of.descriptor(), F_DUPFD_CLOEXEC, 0));
}

}  // namespace

TEST_CASE("the last entered hook of each rank is read through another mapping of the page") {
  const auto reader = black_box::create();
  auto writer = other_mapping(reader);
  CHECK(reader.read().empty());
  position at;
  at.epoch = 2;
  for (at.step = 5; at.step < 8; ++at.step) writer.enter(3, hooks::training_step{{at}});
  CHECK(reader.read() == std::vector<last_hook>{{3, "training_step", 2, 7}});
  writer.enter(0, hooks::on_validation_model_zero_grad{{at}});
  // Has the slot of rank 3 by its number.
  const auto far = 3 + static_cast<std::int32_t>(black_box::ranks_max);
  writer.enter(far, hooks::backward{{at}});
  CHECK(reader.read() == std::vector<last_hook>{{0, "on_validation_model_zero_grad", 2, 8},
                                                {3, "training_step", 2, 7},
                                                {far, "backward", 2, 8}});
}

TEST_CASE("why a process ends is read through another mapping, a long text in part") {
  const auto reader = black_box::create();
  auto writer = other_mapping(reader);
  CHECK(reader.why_left().empty());
  writer.leave("no one reads");
  CHECK(reader.why_left() == "no one reads");
  writer.leave(std::string(1000, 'x'));
  CHECK(reader.why_left() == std::string(255, 'x'));
}

TEST_CASE("the thread that called show_life ends: the other mapping sees it, once") {
  auto reader = black_box::create();
  auto writer = std::make_unique<black_box>(other_mapping(reader));
  CHECK_FALSE(reader.life_ended());
  std::atomic<bool> shown{false};
  std::atomic<bool> ends{false};
  std::thread first([&] {
    writer->show_life();
    shown = true;
    while (!ends) std::this_thread::yield();
  });
  while (!shown) std::this_thread::yield();
  CHECK_FALSE(reader.life_ended());
  ends = true;
  first.join();
  CHECK(reader.life_ended());
  CHECK_FALSE(reader.life_ended());
}

TEST_CASE(
    "a black_box is destroyed after show_life: the other mapping reports no end of the thread") {
  auto reader = black_box::create();
  {
    auto writer = other_mapping(reader);
    writer.show_life();
    CHECK_FALSE(reader.life_ended());
  }
  CHECK_FALSE(reader.life_ended());
}

TEST_CASE("more ranks than slots: the first ranks keep their slots") {
  const auto reader = black_box::create();
  auto writer = other_mapping(reader);
  const auto most = static_cast<std::int32_t>(black_box::ranks_max);
  for (std::int32_t rank = 0; rank < most + 2; ++rank) writer.enter(rank, hooks::setup{});
  REQUIRE(reader.read().size() == black_box::ranks_max);
  CHECK(reader.read().back().rank == most - 1);
}

TEST_CASE("two lanes of a process enter hooks at once: each has its own last one") {
  const auto reader = black_box::create();
  auto writer = other_mapping(reader);
  const auto lane = [&](std::int32_t rank) {
    position at;
    for (at.step = 0; at.step <= 20'000; ++at.step) writer.enter(rank, hooks::backward{{at}});
  };
  std::thread first(lane, 1), second(lane, 65);
  first.join();
  second.join();
  CHECK(reader.read() == std::vector<last_hook>{{1, "backward", undefined, 20'000},
                                                {65, "backward", undefined, 20'000}});
}

TEST_CASE("a descriptor that is not a page of a black_box is refused") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  CHECK_THROWS_AS(black_box::adopt(ends[0]), internal_error);
  ::close(ends[0]);
  ::close(ends[1]);
}
