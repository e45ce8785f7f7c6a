// Goal: every communicator adapter handles abort, deadlines, ranks that close early, and successive
// generations.
#include "tests/conformance/communicator_suite.hpp"
#include "tests/support/rank_processes.hpp"
#include "tests/support/reference_reduction.hpp"
#include "tests/support/shared_heap.hpp"

#include <algorithm>
#include <atomic>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// An adapter reaches quiescence by itself. These tests do not measure how soon.
void await_quiescence(const communicator& c) {
  while (!c.quiescent()) std::this_thread::yield();
}

TEST_CASE("abort ends pending and later operations with its first reason") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::atomic<int> waiting{0};
    auto memory = ones(world, 100);
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      if (rank == 0) {  // takes no part; aborts once the others wait
        while (waiting.load() != world - 1) std::this_thread::yield();
        c.abort("rank 0 failed");
        c.abort("another reason");
        expect(c.aborted(), "the group is aborted at once");
      }
      const auto work = c.all_reduce(floats(memory[rank]), reduction::sum);
      waiting.fetch_add(1);
      work->wait();
    });
    for (const auto& error : thrown) CHECK(text_of<generation_closed>(error) == "rank 0 failed");
    auto& c = ranks[world - 1];
    CHECK(c.aborted());
    await_quiescence(c);
    CHECK(memory == ones(world, 100));
    for (const auto& work : {c.barrier("late"), c.all_reduce(floats(memory[0]), reduction::sum),
                             c.barrier("alone", nanoseconds{0}, {{world - 1}})}) {
      CHECK(work->poll().status == work_status::aborted);
      CHECK(work->poll().text == "rank 0 failed");
      CHECK_THROWS_AS(work->wait(), generation_closed);
    }
    CHECK_THROWS_AS(c.decide(true, decision::all), generation_closed);
    CHECK_THROWS_AS(c.decide(true, decision::all, {{world - 1}}), generation_closed);
  });
}

TEST_CASE("abort with a hundred queued operations ends each of them exactly once") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 5000);
    std::vector<std::vector<work_ptr>> works(world);
    for (std::int32_t rank = 1; rank < world; ++rank)
      for (int i = 0; i < 100; ++i)
        works[rank].push_back(ranks[rank].all_reduce(floats(memory[rank]), reduction::sum));
    // Rank 0 takes part in the first forty operations.
    for (int i = 0; i < 40; ++i)
      works[0].push_back(ranks[0].all_reduce(floats(memory[0]), reduction::sum));
    works[0].back()->wait();
    std::thread aborter{[&] { ranks[0].abort("enough"); }};
    std::vector<std::exception_ptr> thrown = ranks.attempt([&](communicator& c) {
      if (c.group().rank != 0) works[c.group().rank].back()->wait();
    });
    aborter.join();
    for (std::int32_t rank = 1; rank < world; ++rank) {
      CHECK(text_of<generation_closed>(thrown[rank]) == "enough");
      for (int i = 0; i < 100; ++i)
        if (i >= 40)
          CHECK(works[rank][i]->poll().status == work_status::aborted);
        else if (ends_at_once(backend))
          CHECK(works[rank][i]->poll().status == work_status::ok);
        else  // rank 0 completed these; the other ranks may not have
          CHECK(works[rank][i]->poll().status != work_status::pending);
    }
    await_quiescence(ranks[0]);
  });
}

TEST_CASE(
    "abort races with completion: each rank has one result and memory is free after quiescence",
    "[many]") {
  std::mt19937_64 random{20240607};
  for_each_world_from(2, [&](communicator_backend& backend, std::int32_t world) {
    const auto before = ones(world, 30000);
    const std::vector<float> after(30000, static_cast<float>(world));
    for (int round = 0; round < (sanitized ? 20 : 60); ++round) {
      company ranks{backend, world, static_cast<std::uint64_t>(round) + 1};
      auto memory = std::make_unique<std::vector<std::vector<float>>>(before);
      std::vector<work_ptr> works(world);
      std::atomic<int> ready{0};
      const auto delay = random() % (round % 2 == 0 ? 300 : 6000);
      const int arrived = 1 + static_cast<int>(random() % world);
      std::thread aborter{[&] {
        while (ready.load() < arrived) std::this_thread::yield();
        for (std::atomic<std::uint64_t> i = 0; i < delay; ++i) {
        }
        ranks[0].abort("race");
      }};
      const auto thrown = ranks.attempt([&](communicator& c) {
        const auto rank = c.group().rank;
        ready.fetch_add(1);
        works[rank] = c.all_reduce(floats((*memory)[rank]), reduction::sum);
        works[rank]->wait();
      });
      aborter.join();
      CHECK(ranks[0].aborted());
      for (std::int32_t rank = 0; rank < world; ++rank) {
        await_abort(ranks[rank]);
        await_quiescence(ranks[rank]);
      }
      for (std::int32_t rank = 0; rank < world; ++rank) {
        const auto end = works[rank]->poll().status;
        if (ends_at_once(backend)) CHECK(end == works[0]->poll().status);
        if (end == work_status::ok) {
          CHECK(!thrown[rank]);
          CHECK(same(std::as_bytes(std::span{(*memory)[rank]}), std::as_bytes(std::span{after})));
        } else {
          CHECK(text_of<generation_closed>(thrown[rank]) == "race");
        }
      }
      memory.reset();  // under AddressSanitizer a late write to this memory is an error
    }
  });
}

TEST_CASE("deadline: every waiting rank reports which ranks are missing", "[many]") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world, 1, milliseconds{500}};
    std::vector<work_ptr> works(world);
    std::atomic<int> ended{0};
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      c.barrier("connected", std::chrono::minutes{1})->wait();
      if (rank % 2 != 0) {  // odd ranks arrive only after the timeout has reached them
        while (ended.load() != (world + 1) / 2) std::this_thread::yield();
        while (!c.aborted()) std::this_thread::yield();
      }
      works[rank] = c.barrier("x");
      if (rank % 2 == 0 && rank != 0)  // this rank polls instead of waiting
        while (works[rank]->poll().status == work_status::pending) std::this_thread::yield();
      ended.fetch_add(rank % 2 == 0 && rank != 0);
      try {
        works[rank]->wait();
      } catch (...) {
        ended.fetch_add(rank == 0);
        throw;
      }
    });
    std::string expected = "barrier \"x\": waited 0.5 s for rank 1";
    if (world == 4) expected = "barrier \"x\": waited 0.5 s for ranks 1, 3";
    if (world == 7) expected = "barrier \"x\": waited 0.5 s for ranks 1, 3, 5";
    std::vector<std::int32_t> missing;
    for (std::int32_t rank = 1; rank < world; rank += 2) missing.push_back(rank);
    for (std::int32_t rank = 0; rank < world; ++rank) {
      const auto result = works[rank]->poll();
      if (rank % 2 == 0) {
        CHECK(text_of<collective_timeout>(thrown[rank]) == expected);
        CHECK(result.status == work_status::timed_out);
        CHECK(result.missing == missing);
      } else {  // a late rank gets a clean error and its memory is not written
        CHECK(text_of<generation_closed>(thrown[rank]) == expected);
        CHECK(result.status == work_status::aborted);
      }
    }
    CHECK(ranks[0].aborted());
  });
}

TEST_CASE("a barrier's own deadline overrides the group's and ends with the barrier") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world, 1, std::chrono::hours{1}};
    ranks.run([](communicator& c) {
      for (int i = 0; i < 20; ++i) c.barrier("met", std::chrono::minutes{5})->wait();
    });
    CHECK_THROWS_WITH(ranks[0].barrier("short", milliseconds{5})->wait(),
                      Catch::StartsWith("barrier \"short\": waited 0.005 s for rank"));
    await_abort(ranks[1]);
    CHECK_THROWS_WITH(ranks[1].barrier("after", milliseconds{5})->wait(),
                      Catch::StartsWith("barrier \"short\": waited 0.005 s"));
  });
}

TEST_CASE("one rank calls one operation more: its deadline names the other ranks", "[many]") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world, 1, milliseconds{500}};
    auto memory = ones(world, 8);
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      c.barrier("connected", std::chrono::minutes{1})->wait();
      c.all_reduce(floats(memory[rank]), reduction::sum)->wait();
      if (rank == 1) c.all_reduce(floats(memory[rank]), reduction::sum)->wait();
    });
    CHECK_THAT(text_of<collective_timeout>(thrown[1]),
               Catch::StartsWith("all_reduce(sum, float32, 8): waited 0.5 s for rank"));
    for (const auto& result : memory)
      CHECK(result == std::vector<float>(8, static_cast<float>(world)));
  });
}

TEST_CASE("a rank closes while others need it: the group aborts and names that rank") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 8);
    const auto work = ranks[0].all_reduce(floats(memory[0]), reduction::sum);
    ranks.close(1);
    CHECK_THROWS_WITH(work->wait(),
                      "rank 1 closed its communicator while "
                      "all_reduce(sum, float32, 8) was in flight");
    CHECK(ranks[0].aborted());
    CHECK(ranks[0].quiescent());
  });
}

TEST_CASE("a rank closes with its own operation in flight: the group aborts") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = std::make_unique<std::vector<float>>(8);
    const auto work = ranks[1].all_reduce(floats(*memory), reduction::sum);
    ranks.close(1);
    memory.reset();
    CHECK(work->poll().status == work_status::aborted);
    CHECK_THROWS_AS(work->wait(), generation_closed);
    await_abort(ranks[0]);
    CHECK_THROWS_AS(ranks[0].barrier("x")->wait(), generation_closed);
  });
}

TEST_CASE("a rank aborts and closes at once: the others still get the abort reason") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    ranks.run([](communicator& c) { c.barrier("connected")->wait(); });
    ranks[1].abort("enough");
    ranks.close(1);
    await_abort(ranks[0]);
    CHECK_THROWS_WITH(ranks[0].barrier("x")->wait(), "enough");
  });
}

TEST_CASE("a closed rank is reported by the next operation that needs it") {
  for_each_world_from(3, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    ranks.run([](communicator& c) { c.barrier("all")->wait(); });
    ranks.close(1);
    const subgroup others{{0, 2}};
    const auto first = ranks[0].barrier("without it", nanoseconds{0}, others);
    ranks[2].barrier("without it", nanoseconds{0}, others)->wait();
    first->wait();
    CHECK_FALSE(ranks[0].aborted());
    CHECK_THROWS_WITH(ranks[0].barrier("with it")->wait(),
                      "barrier \"with it\" cannot be met: rank 1 has closed its communicator");
    await_abort(ranks[2]);
  });
}

TEST_CASE("an exception on one rank releases the others when its handle is destroyed") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 8);
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      if (rank == 1) {
        try {
          c.all_reduce({memory[rank].data(), 8, dtype::i32}, reduction::mean);
        } catch (...) {
          ranks.close(1);
          throw;
        }
      }
      c.all_reduce(floats(memory[rank]), reduction::sum)->wait();
    });
    CHECK_THAT(text_of<std::invalid_argument>(thrown[1]), Catch::Contains("int32 has no mean"));
    for (std::int32_t rank = 0; rank < world; ++rank)
      if (rank != 1)
        CHECK_THAT(text_of<generation_closed>(thrown[rank]), Catch::Contains("rank 1"));
  });
}

TEST_CASE("work handles stay valid after their communicators are destroyed") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    work_ptr done;
    {
      company ranks{backend, world};
      std::vector<work_ptr> works;
      for (std::int32_t rank = 0; rank < world; ++rank) works.push_back(ranks[rank].barrier("x"));
      for (const auto& work : works) work->wait();
      done = works.front();
    }
    done->wait();
    CHECK(done->poll().status == work_status::ok);
  });
}

TEST_CASE("operations of different generations never match each other") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company old{backend, world, 1};
    company young{backend, world, 2};
    auto memory = ones(world, 4);
    const auto late = old[0].all_reduce(floats(memory[0]), reduction::sum);
    young.run([](communicator& c) { c.barrier("young")->wait(); });
    CHECK(late->poll().status == work_status::pending);
    old[1].abort("superseded");
    CHECK_THROWS_AS(late->wait(), generation_closed);
    CHECK_FALSE(young[0].aborted());
    young.run([](communicator& c) { c.barrier("young")->wait(); });
  });
}

TEST_CASE("opening a group with an impossible rank or world is refused") {
  const auto backend = communicator_adapters()[0].make();
  CHECK_THROWS_AS(backend->open({.rank = 0, .world = 0}), std::invalid_argument);
  CHECK_THROWS_AS(backend->open({.rank = 2, .world = 2}), std::invalid_argument);
  CHECK_THROWS_AS(backend->open({.rank = -1, .world = 2}), std::invalid_argument);
  const auto first = backend->open({.rank = 0, .world = 2});
  CHECK_THROWS_AS(backend->open({.rank = 0, .world = 2}), internal_error);
  const auto waiting = first->barrier("x");
  CHECK_THROWS_WITH(backend->open({.rank = 1, .world = 3}),
                    Catch::Contains("rank 1 says its world is 3, others said 2"));
  CHECK_THROWS_AS(waiting->wait(), generation_closed);  // the refusal also ends the waiting rank
}

TEST_CASE("memory from allocate is aligned and can be reduced") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::vector<std::shared_ptr<void>> memory(world);
    const std::size_t count = (std::size_t{5} << 20) / sizeof(float) + 3;
    ranks.run([&](communicator& c) {
      const auto rank = c.group().rank;
      memory[rank] = c.allocate(count * sizeof(float));
      auto* values = static_cast<float*>(memory[rank].get());
      std::fill(values, values + count, static_cast<float>(rank + 1));
      c.all_reduce({values, count, dtype::f32}, reduction::sum)->wait();
    });
    for (const auto& m : memory) {
      CHECK(reinterpret_cast<std::uintptr_t>(m.get()) % 64 == 0);
      const auto* values = static_cast<const float*>(m.get());
      CHECK(std::count(values, values + count, static_cast<float>(world * (world + 1) / 2)) ==
            static_cast<std::ptrdiff_t>(count));
    }
    CHECK(ranks[0].allocate(0) != nullptr);
    CHECK_THROWS_AS(ranks[0].allocate(SIZE_MAX), std::bad_alloc);
  });
}

// The footprint of this process, with the heap that its children share, and those of ranks in other
// processes.
std::vector<footprint> footprints_of(const communicator_backend& backend) {
  auto all = rank_footprints(backend);
  all.push_back(footprint_now());
  all.back().bytes += shared_heap_bytes();
  return all;
}

// Runs generations `from` to `from + count - 1`. Three of four end by abort, half of them with work
// pending.
void live_through(communicator_backend& backend, std::uint64_t from, std::uint64_t count) {
  auto memory = ones(3, 64);
  for (auto generation = from; generation < from + count; ++generation) {
    {
      company ranks{backend, 3, generation};
      std::vector<work_ptr> works;
      for (std::int32_t rank = 0; rank < 3; ++rank) {
        works.push_back(ranks[rank].all_reduce(floats(memory[rank]), reduction::max));
        if (rank < 2) works.push_back(ranks[rank].barrier("pair", nanoseconds{0}, {{0, 1}}));
        if (rank < 1 && generation % 2 != 0) works.push_back(ranks[rank].barrier("pending"));
      }
      if (generation % 4 != 0) ranks[2].abort("end");
      if (generation % 4 == 0) ranks[0].barrier("open", nanoseconds{0}, {{0, 2}});
    }
    settle(backend);
  }
}

// The least footprint of twenty samples, taken one generation apart.
std::vector<footprint> least_footprints(communicator_backend& backend, std::uint64_t from) {
  auto least = footprints_of(backend);
  for (std::uint64_t i = 0; i < 20; ++i) {
    live_through(backend, from + i, 1);
    const auto now = footprints_of(backend);
    for (std::size_t at = 0; at < now.size(); ++at) least[at] = least_of(least[at], now[at]);
  }
  return least;
}

TEST_CASE("a thousand generations leak no memory or descriptor or thread", "[generations]") {
  for (const auto& adapter : communicator_adapters()) {
    INFO(adapter.name);
    const auto backend = adapter.make();
    live_through(*backend, 1, 100);
    const auto before = least_footprints(*backend, 101);
    live_through(*backend, 200, adapter.generations);
    const auto after = least_footprints(*backend, 200 + adapter.generations);
    for (std::size_t at = 0; at < after.size(); ++at) {
      INFO((at + 1 == after.size() ? "here" : "rank " + std::to_string(at)));
      // Allows half of 64 bytes per generation: 64 bytes is the smallest block of the shared heap.
      CHECK(after[at].bytes <= before[at].bytes + 32 * adapter.generations);
      CHECK(after[at].descriptors == before[at].descriptors);
      CHECK(after[at].threads == before[at].threads);
    }
  }
}

}  // namespace
}  // namespace troupe::testing
