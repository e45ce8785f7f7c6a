// Goal: the code around NCCL is right: rendezvous, order, errors, abort. The GPUs are simulated;
// only the last case needs a real one.
#include "backends/nccl/nccl.hpp"
#include "backends/collective/submission.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/nccl/library.hpp"
#include "tests/unit/backends/nccl/fake_gpus.hpp"
#include "troupe/communicator.hpp"

#include <dlfcn.h>

#include <deque>
#include <functional>
#include <thread>

#include "tests/support/thrown.hpp"

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

nccl_options made_up(int devices = 8) {
  fake_gpus::reset(devices);
  nccl_options options;
  options.functions = fake_gpus::functions();
  return options;
}

// The memory of a simulated GPU is host memory, so that a test can read it.
struct tensor {
  std::shared_ptr<void> memory;
  std::size_t count = 0;

  tensor(communicator& of, std::size_t size, float value)
      : memory(of.allocate(size * sizeof(float))), count(size) {
    std::fill(data(), data() + count, value);
  }
  float* data() const { return static_cast<float*>(memory.get()); }
  buffer view() const { return {memory.get(), count, dtype::f32}; }
  std::vector<float> values() const { return {data(), data() + count}; }
};

class company {
public:
  company(communicator_backend& backend, std::int32_t world, std::uint64_t generation = 1,
          std::chrono::nanoseconds deadline = std::chrono::nanoseconds{0}) {
    for (std::int32_t rank = 0; rank < world; ++rank)
      handles_.push_back(
          backend.open({job_id{3}, generation_id{generation}, rank, world, deadline}));
  }
  communicator& operator[](std::size_t rank) { return *handles_[rank]; }

  std::vector<std::exception_ptr> attempt(const std::function<void(communicator&)>& body) {
    std::vector<std::exception_ptr> thrown(handles_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < handles_.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(*handles_[rank]);
        } catch (...) {
          thrown[rank] = std::current_exception();
        }
      });
    for (auto& one : threads) one.join();
    return thrown;
  }
  void run(const std::function<void(communicator&)>& body) {
    for (const auto& error : attempt(body))
      if (error) std::rethrow_exception(error);
  }

private:
  std::vector<std::shared_ptr<communicator>> handles_;
};

// A thread of the backend releases closed groups later.
fake_counts counts_when_closed() {
  while (fake_gpus::counts().streams > 0) std::this_thread::yield();
  return fake_gpus::counts();
}

void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string{"expected: "} + what);
}

}  // namespace

TEST_CASE("without a GPU the backend says what is missing") {
  nccl_backend real{std::make_shared<inproc_backend>()};
  if (real.unusable().empty()) {
    WARN("SKIPPED: this machine has a GPU");
    return;
  }
  CAPTURE(real.unusable());
  CHECK_THROWS_AS(real.open({}), user_error);
  nccl_backend none{std::make_shared<inproc_backend>(), made_up(0)};
  CHECK(none.unusable() == "there is no GPU in this machine");
}

TEST_CASE("host memory is reduced by the host communicator of nccl") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 2};
  ranks.run([](communicator& c) {
    const std::shared_ptr<communicator> world{std::shared_ptr<void>{}, &c};
    const auto host = host_collectives(world);
    expect(carries(c, "cuda") && !carries(c, "cpu"), "GPUs only");
    expect(!carries(*host, "cuda") && host_collectives(host) == host, "no GPUs");
    std::int64_t mine = c.group().rank + 1;
    host->all_reduce({&mine, 1, dtype::i64}, reduction::sum)->wait();
    expect(mine == 3, "the sum of both ranks");
    const tensor of_gpu{c, 4, 2};
    c.all_reduce(of_gpu.view(), reduction::sum)->wait();
    expect(of_gpu.values() == std::vector<float>(4, 4), "the sum on the GPUs");
  });
}

TEST_CASE("tensors are reduced on the GPUs and barriers and votes run on the host") {
  const auto world = GENERATE(1, 2, 3);
  CAPTURE(world);
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  fake_gpus::slow_start(3);
  {
    company ranks{backend, world};
    ranks.run([world](communicator& c) {
      const auto rank = c.group().rank;
      const auto n = static_cast<std::size_t>(world);
      const auto sum = static_cast<float>(world * (world + 1)) / 2;
      const tensor a{c, 100, static_cast<float>(rank + 1)};
      c.all_reduce(a.view(), reduction::sum)->wait();
      expect(a.values() == std::vector<float>(100, sum), "the sum of all ranks");
      c.all_reduce(a.view(), reduction::mean)->wait();
      expect(a.values() == std::vector<float>(100, sum), "the mean of equal values");
      const tensor b{c, 10, static_cast<float>(rank)};
      c.broadcast(b.view(), world - 1)->wait();
      expect(b.values() == std::vector<float>(10, static_cast<float>(world - 1)),
             "the root's values");
      const tensor piece{c, 4, static_cast<float>(rank)};
      const tensor whole{c, 4 * n, 0};
      c.all_gather(piece.view(), whole.view())->wait();
      for (std::size_t i = 0; i < 4 * n; ++i)
        expect(whole.values()[i] == static_cast<float>(i / 4), "pieces in rank order");
      c.reduce_scatter(whole.view(), piece.view(), reduction::sum)->wait();
      expect(piece.values() == std::vector<float>(4, static_cast<float>(rank * world)), "a piece");
      expect(
          c.decide(rank == 0, decision::any) && c.decide(rank == 0, decision::all) == (world == 1),
          "a decision");
      c.barrier("over")->wait();
      c.all_reduce({nullptr, 0, dtype::f32}, reduction::sum)->wait();
      expect(c.quiescent() || !c.aborted(), "no abort of the group");
    });
  }
  const auto left = counts_when_closed();
  CHECK(left.aborts == 0);
  CHECK(left.communicators == 0);
  CHECK(left.allocations == 0);
}

TEST_CASE("a rank may leave as soon as its last operation has ended") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  {
    company ranks{backend, 1};
    const tensor a{ranks[0], 8, 1};
    fake_gpus::hold_after_end(true);
    ranks[0].all_reduce(a.view(), reduction::sum)->wait();
  }
  fake_gpus::hold_after_end(false);
  CHECK(counts_when_closed().aborts == 0);
}

TEST_CASE("each subgroup has its own NCCL communicator") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 3};
  ranks.run([](communicator& c) {
    const auto rank = c.group().rank;
    const tensor a{c, 5, static_cast<float>(rank)};
    const subgroup outer{{0, 2}};
    if (rank != 1) c.all_reduce(a.view(), reduction::sum, outer)->wait();
    if (rank != 1) c.broadcast(a.view(), 2, outer)->wait();
    expect(a.values() == std::vector<float>(5, rank == 1 ? 1 : 2), "the sum of ranks 0 and 2");
    c.all_reduce(a.view(), reduction::sum)->wait();
    expect(a.values() == std::vector<float>(5, 5), "the sum of all ranks");
  });
}

TEST_CASE("many operations in flight complete in order without a waiter") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 2};
  ranks.run([](communicator& c) {
    std::vector<tensor> memory;
    std::vector<work_ptr> works;
    for (int i = 0; i < 50; ++i) {
      memory.emplace_back(c, 8, 1.0f);
      works.push_back(c.all_reduce(memory.back().view(), reduction::sum));
    }
    while (works.back()->poll().status == work_status::pending) std::this_thread::yield();
    for (std::size_t i = 0; i < works.size(); ++i) {
      expect(works[i]->poll().status == work_status::ok, "earlier operations have completed");
      expect(memory[i].values() == std::vector<float>(8, 2), "the sum of both ranks");
    }
  });
}

TEST_CASE("as many operations in flight as there may be: an ended one does not count") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 2, 1, std::chrono::seconds{20}};
  ranks.run([](communicator& c) {
    const tensor memory{c, 8, 0.0f};
    c.all_reduce(memory.view(), reduction::sum)->wait();  // until both are connected, fewer may be
    std::deque<work_ptr> works;
    for (std::size_t i = 0; i < collectives::operations_max + 500; ++i) {
      if (works.size() == collectives::operations_max) {
        while (works.front()->poll().status == work_status::pending) {
        }
        works.pop_front();
      }
      works.push_back(c.all_reduce(memory.view(), reduction::sum));
    }
    for (const auto& one : works) one->wait();
  });
}

namespace {

/// An event of the simulated GPUs, as LibTorch's would be.
struct given_event : device_event {
  explicit given_event(cudaEvent_t which) : event(which) {}
  bool done() const override { return true; }
  void wait() const override {}
  void* native() const override { return event; }
  cudaEvent_t event;
};

}  // namespace

TEST_CASE("an operation begins after its buffer's event and ends as an event of the GPU") {
  const auto options = made_up();
  nccl_backend backend{std::make_shared<inproc_backend>(), options};
  company ranks{backend, 2};
  fake_gpus::stall(true);
  ranks.run([&](communicator& c) {
    cudaEvent_t event = nullptr;
    options.functions->event_create(&event, 0);
    const tensor a{c, 10, 1};
    auto memory = a.view();
    memory.device = c.group().rank;
    memory.ready = std::make_shared<given_event>(event);
    const auto work = c.all_reduce(memory, reduction::sum);
    const auto end = work->on_device();
    expect(fake_gpus::waited_for(event), "the kernel begins after the event");
    expect(end && end->native() && !end->done(), "the kernel has not run");
    expect(work->poll().status == work_status::pending, "the operation has not ended");
    expect(a.values() == std::vector<float>(10, 1), "nothing is summed yet");
    c.barrier("both have looked")->wait();
    if (c.group().rank == 0) fake_gpus::stall(false);
    end->wait();
    expect(end->done() && a.values() == std::vector<float>(10, 2), "the sum of both ranks");
    work->wait();
    options.functions->event_destroy(event);
    expect(!c.all_reduce({nullptr, 0, dtype::f32}, reduction::sum)->on_device(), "nothing to do");
  });
}

TEST_CASE("the group ends while a call waits for an operation's event: the call throws") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 2};
  const auto thrown = ranks.attempt([](communicator& c) {
    const tensor a{c, 10, 1};
    if (c.group().rank == 1) return c.abort("enough");
    c.all_reduce(a.view(), reduction::sum)->on_device();
  });
  CHECK(text_of<generation_closed>(thrown[0]) == "enough");
}

TEST_CASE("a refused call is not submitted and the group stays usable") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  const auto c = backend.open({.rank = 0, .world = 1});
  std::vector<float> host(4);
  CHECK_THROWS_WITH(c->all_reduce({host.data(), 4, dtype::f32}, reduction::sum),
                    Catch::Contains("not memory of a GPU"));
  const tensor a{*c, 4, 1};
  CHECK_THROWS_WITH(c->all_reduce({a.data(), 4, dtype::i16}, reduction::sum),
                    Catch::Contains("int32"));
  CHECK_THROWS_WITH(c->all_reduce({a.data(), 1, dtype::c64}, reduction::product),
                    Catch::Contains("complex"));
  CHECK_THROWS_AS(c->broadcast(a.view(), 7), std::invalid_argument);
  auto elsewhere = a.view();
  elsewhere.device = 3;
  CHECK_THROWS_WITH(c->all_reduce(elsewhere, reduction::sum),
                    Catch::Contains("the memory is device 3's"));
  c->all_reduce(a.view(), reduction::sum)->wait();
  CHECK_FALSE(c->aborted());
}

TEST_CASE("ranks make different calls: the error shows both calls and no kernel starts") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 2};
  const auto thrown = ranks.attempt([](communicator& c) {
    const tensor a{c, 10, 1};
    if (c.group().rank == 0)
      c.all_reduce(a.view(), reduction::sum)->wait();
    else
      c.broadcast(a.view(), 0)->wait();
  });
  for (const auto& error : thrown) {
    const auto text = text_of<collective_mismatch>(error);
    CHECK_THAT(text, Catch::Contains("rank 0: all_reduce(sum, float32, 10)"));
    CHECK_THAT(text, Catch::Contains("rank 1: broadcast(float32, 10 from 0)"));
    CHECK_THAT(text, !Catch::Contains("barrier"));
  }
  CHECK(fake_gpus::counts().kernels == 0);
}

TEST_CASE("two ranks that share one GPU are named") {
  auto options = made_up();
  options.device_of = [](const group_description& who) { return who.rank == 2 ? 0 : who.rank; };
  nccl_backend backend{std::make_shared<inproc_backend>(), options};
  company ranks{backend, 3};
  const auto thrown = ranks.attempt([](communicator& c) {
    const tensor a{c, 10, 1};
    c.all_reduce(a.view(), reduction::sum)->wait();
  });
  for (const auto& error : thrown)
    CHECK_THAT(text_of<generation_closed>(error),
               Catch::Contains("ranks 0 and 2 share the GPU 0000:00:00.0"));
  options.device_of = [](const group_description&) { return 8; };
  nccl_backend beyond{std::make_shared<inproc_backend>(), options};
  CHECK_THROWS_AS(beyond.open({}), user_error);
}

TEST_CASE("a deadline names the missing rank") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 3, 1, std::chrono::milliseconds{500}};
  const auto thrown = ranks.attempt([](communicator& c) {
    c.barrier("all", std::chrono::minutes{1})->wait();
    if (c.group().rank == 2) return;
    const tensor a{c, 10, 1};
    c.all_reduce(a.view(), reduction::sum)->wait();
  });
  CHECK_FALSE(thrown[2]);
  for (const std::size_t rank : {0, 1})
    CHECK(text_of<collective_timeout>(thrown[rank]) ==
          "all_reduce(sum, float32, 10): waited 0.5 s for rank 2");
}

TEST_CASE("a kernel that never ends aborts the group after the deadline") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 2, 1, std::chrono::milliseconds{500}};
  fake_gpus::stall(true);
  const auto thrown = ranks.attempt([](communicator& c) {
    c.barrier("all", std::chrono::minutes{1})->wait();
    const tensor a{c, 8, 1};
    c.all_reduce(a.view(), reduction::sum)->wait();
  });
  fake_gpus::stall(false);
  for (const auto& error : thrown)
    CHECK(thrown_by<generation_closed>([&] { std::rethrow_exception(error); }) ==
          "nccl: all_reduce(sum, float32, 8) has not ended 0.5 s after all ranks had called it");
}

TEST_CASE("abort ends kernels that would never finish") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  {
    company ranks{backend, 2};
    fake_gpus::stall(true);
    const auto thrown = ranks.attempt([&ranks](communicator& c) {
      const tensor a{c, 10, 1};
      const auto work = c.all_reduce(a.view(), reduction::sum);
      if (c.group().rank == 0) {
        while (fake_gpus::counts().kernels < 2) std::this_thread::yield();
        ranks[1].abort("enough");
        ranks[1].abort("another reason");
      }
      work->wait();
    });
    for (const auto& error : thrown) CHECK(text_of<generation_closed>(error) == "enough");
    CHECK(ranks[0].aborted());
    CHECK(ranks[0].quiescent());
    CHECK(ranks[1].quiescent());
    CHECK(fake_gpus::counts().aborts == 2);
  }
  fake_gpus::stall(false);
  CHECK(counts_when_closed().communicators == 0);
}

TEST_CASE("an asynchronous error aborts the group with the text of NCCL") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  company ranks{backend, 2};
  const auto thrown = ranks.attempt([](communicator& c) {
    const tensor a{c, 10, 1};
    c.all_reduce(a.view(), reduction::sum)->wait();
    c.barrier("both")->wait();
    if (c.group().rank == 0) {
      fake_gpus::stall(true);
      fake_gpus::fail_next(ncclRemoteError);
    }
    c.all_reduce(a.view(), reduction::sum)->wait();
  });
  for (const auto& error : thrown)
    CHECK_THAT(text_of<generation_closed>(error), Catch::Contains("fake error: the cable is out"));
  fake_gpus::stall(false);
}

TEST_CASE("a thousand generations leak no communicator or event or memory") {
  nccl_backend backend{std::make_shared<inproc_backend>(), made_up()};
  for (std::uint64_t generation = 1; generation <= 1000; ++generation) {
    company ranks{backend, 2, generation};
    const bool ends_badly = generation % 3 == 0;
    ranks.attempt([ends_badly](communicator& c) {
      const tensor a{c, 10, 1};
      c.all_reduce(a.view(), reduction::sum)->wait();
      if (ends_badly && c.group().rank == 0) c.abort("a bad end");
      if (ends_badly) c.barrier("never")->wait();
    });
  }
  const auto left = counts_when_closed();
  CHECK(left.communicators == 0);
  CHECK(left.events == 0);
  CHECK(left.allocations == 0);
}

namespace {

// Copies between GPU and host memory through the runtime that the backend has loaded.
class gpu_memory {
public:
  gpu_memory(communicator& of, const std::vector<float>& values, const nccl::library& loaded)
      : count_(values.size()), memory_(of.allocate(count_ * sizeof(float))) {
    for (const auto& one : loaded.open)
      if (auto* found = ::dlsym(one.get(), "cudaMemcpy"))
        copy_ = reinterpret_cast<decltype(copy_)>(found);
    if (!copy_) throw std::logic_error("the CUDA runtime has no cudaMemcpy");
    move(memory_.get(), values.data(), cudaMemcpyHostToDevice);
  }
  buffer view() const { return {memory_.get(), count_, dtype::f32}; }
  std::vector<float> values() const {
    std::vector<float> result(count_);
    move(result.data(), memory_.get(), cudaMemcpyDeviceToHost);
    return result;
  }

private:
  void move(void* to, const void* from, cudaMemcpyKind how) const {
    if (copy_(to, from, count_ * sizeof(float), how) != cudaSuccess)
      throw std::logic_error("cudaMemcpy failed");
  }

  std::size_t count_;
  std::shared_ptr<void> memory_;
  cudaError_t (*copy_)(void*, const void*, std::size_t, cudaMemcpyKind) = nullptr;
};

void every_operation(communicator& c, const nccl::library& loaded) {
  const std::vector<float> given{1, -2, 3.5F, 0};
  const gpu_memory a{c, given, loaded};
  const gpu_memory b{c, {9, 9, 9, 9}, loaded};
  c.all_reduce(a.view(), reduction::sum)->wait();
  expect(a.values() == given, "the sum of one rank");
  c.all_reduce(a.view(), reduction::mean)->wait();
  c.broadcast(a.view(), 0)->wait();
  expect(a.values() == given, "the root's values");
  c.all_gather(a.view(), b.view())->wait();
  expect(b.values() == given, "the only piece");
  c.reduce_scatter(a.view(), b.view(), reduction::max)->wait();
  expect(b.values() == given, "the piece of one rank");
  c.barrier("all here")->wait();
  expect(c.decide(true, decision::all), "a decision");
  std::vector<float> on_host(4);
  try {
    c.all_reduce({on_host.data(), 4, dtype::f32}, reduction::sum)->wait();
    expect(false, "host memory is refused");
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace

TEST_CASE("on a real GPU one rank runs every operation and survives twenty aborts") {
  nccl_backend backend{std::make_shared<inproc_backend>()};
  if (const auto why = backend.unusable(); !why.empty()) {
    WARN("SKIPPED: needs a GPU (" << why << ")");
    return;
  }
  const auto loaded = nccl::load({}).functions;
  for (std::uint64_t generation = 1; generation <= 20; ++generation) {
    company rank{backend, 1, generation};
    rank.run([&](communicator& c) { every_operation(c, *loaded); });
    rank[0].abort("enough");
    const gpu_memory late{rank[0], {1}, *loaded};
    CHECK_THROWS_AS(rank[0].all_reduce(late.view(), reduction::sum)->wait(), generation_closed);
  }
}

}  // namespace troupe::testing
