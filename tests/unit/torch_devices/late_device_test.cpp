// Goal: the test accelerator shows a forgotten wait every time, and otherwise computes what the CPU
// computes. So the tests on it can be believed.
#include <ATen/ATen.h>

#include "backends/torch/rank_random.hpp"
#include "tests/support/late_device.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// A sum that one stream computes and another one reads.
double read_from_another_stream() {
  const auto late = late_accelerator();
  const auto device = late_device(1);
  const auto producer = late->new_stream(device), consumer = late->new_stream(device);
  const auto here = late->make_current(device);
  const auto x = at::ones({1000}).to(device);
  late->synchronize(device);
  at::Tensor made;
  {
    const auto in = late->use(producer);
    made = x * 3;
  }
  const auto ready = late->record(producer);
  late->block(consumer, *ready);
  at::Tensor sum;
  {
    const auto in = late->use(consumer);
    sum = made.sum();
    return sum.to(at::kCPU).item<double>();
  }
}

}  // namespace

TEST_CASE("late device: a copy without a wait shows old memory, a wait shows the result") {
  const auto late = late_accelerator();
  const auto device = late_device();
  const auto x = at::full({4}, 2.0).to(device);
  auto host = at::zeros({4}).pin_memory();
  REQUIRE(host.is_pinned());
  host.copy_(x * 5, /*non_blocking=*/true);
  CHECK(host.sum().item<double>() == 0);
  late->synchronize(device);
  CHECK(host.sum().item<double>() == 40);
  CHECK((x * 5).sum().item<double>() == 40);
}

TEST_CASE("late device: memory that is staged is read late, other memory at once") {
  const auto late = late_accelerator();
  const auto device = late_device();
  auto staged = late->staged(at::ones({8}));
  auto plain = at::ones({8});
  const auto of_staged = staged.to(device, /*non_blocking=*/true);
  const auto of_plain = plain.to(device, /*non_blocking=*/true);
  staged.fill_(7);
  plain.fill_(7);
  CHECK(of_staged.sum().item<double>() == 56);
  CHECK(of_plain.sum().item<double>() == 8);
}

TEST_CASE("late device: an event orders two streams, and without it the reader is wrong") {
  CHECK(read_from_another_stream() == 3000);
  const without_event_waits off;
  CHECK_FALSE(read_from_another_stream() == 3000);
}

TEST_CASE("late device: an event is done once its stream has reached it") {
  const auto late = late_accelerator();
  const auto device = late_device(2);
  const auto stream = late->new_stream(device);
  const auto in = late->use(stream);
  const auto here = late->make_current(device);
  const auto x = at::ones({4}, at::TensorOptions{}.device(device));
  const auto ready = late->record(stream);
  ready->wait();
  CHECK(ready->done());
  CHECK(late->stream(device) == stream);
}

TEST_CASE("late device: mixed devices are errors that name the operator") {
  late_accelerator();
  const auto x = at::ones({4}).to(late_device(0));
  CHECK_THROWS_WITH(x + at::ones({4}), Catch::Contains("add"));
  CHECK_THROWS_WITH(x + at::ones({4}).to(late_device(1)), Catch::Contains("late:1"));
  CHECK((x + 1).sum().item<double>() == 8);
}

TEST_CASE("late device: few operators have to wait for shapes") {
  late_accelerator();
  const auto device = late_device();
  auto x = at::ones({16, 16}).to(device);
  const auto before = late_operators();
  for (int i = 0; i < 10; ++i) x = at::relu(at::mm(x, x.t()).add_(1).mul(0.01));
  const auto after = late_operators();
  CHECK(after.operators - before.operators >= 40);
  CHECK(after.waited == before.waited);
}

TEST_CASE("the accelerator's figures: memory in use and its peak") {
  const auto late = late_accelerator();
  const auto before = late->memory(late_device());
  const auto kept = at::empty({1 << 20}, at::TensorOptions{}.device(late_device()));
  const auto after = late->memory(late_device());
  CHECK(after.allocated - before.allocated == 4 << 20);
  CHECK(after.peak >= after.allocated);
  CHECK(after.total == -1);
  CHECK(late->count() == 3);
  CHECK(late->unusable().empty());
}

TEST_CASE("random numbers of a rank on a device follow its keys") {
  const auto late = late_accelerator();
  const auto device = late_device(1);
  rank_random draws{3};
  draws.add_device(late->generator(device));
  const random_scope scope{draws};
  const auto drawn = [&](std::int64_t batch) {
    draws.reset({.epoch = 1, .batch = batch, .purpose = "step"});
    return at::dropout(at::ones({64}, at::TensorOptions{}.device(device)), 0.5, true).to(at::kCPU);
  };
  const auto first = drawn(1), second = drawn(2);
  CHECK_FALSE(at::equal(first, second));
  CHECK(at::equal(first, drawn(1)));
}
