// Goal: the hook that a lane entered last can be read through another mapping of the page.
#include "backends/processes/black_box.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("the last entered hook is read through another mapping of the page") {
  const auto reader = black_box::create();
  auto writer = black_box::adopt(::fcntl(reader.descriptor(), F_DUPFD_CLOEXEC, 0));
  CHECK(reader.read() == last_hook{});
  position at;
  at.epoch = 2;
  for (at.step = 5; at.step < 8; ++at.step) writer.enter(hooks::training_step{{at}});
  CHECK(reader.read() == last_hook{"training_step", 2, 7});
  writer.enter(hooks::on_validation_model_zero_grad{{at}});
  CHECK(reader.read() == last_hook{"on_validation_model_zero_grad", 2, 8});
}

TEST_CASE("a descriptor that is no such page is refused") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  CHECK_THROWS_AS(black_box::adopt(ends[0]), internal_error);
  ::close(ends[0]);
  ::close(ends[1]);
}
