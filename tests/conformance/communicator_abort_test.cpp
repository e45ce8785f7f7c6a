// The communicator port: abort, deadlines, ranks that go, generations that follow each other.
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

// Quiescence comes by itself; how soon is not what is asked here.
void await_quiescence(const communicator& c) {
  while (!c.quiescent()) std::this_thread::yield();
}

TEST_CASE("an abort ends what waits, with its reason, and what comes later") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::atomic<int> waiting{0};
    auto memory = ones(world, 100);
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      if (rank == 0) {  // never takes part; knows that the others are in it
        while (waiting.load() != world - 1) std::this_thread::yield();
        c.abort("rank 0 failed");
        c.abort("another reason");
        expect(c.aborted(), "aborted at once");
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

TEST_CASE("an abort with a hundred operations queued ends each of them once") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 5000);
    std::vector<std::vector<work_ptr>> works(world);
    for (std::int32_t rank = 1; rank < world; ++rank)
      for (int i = 0; i < 100; ++i)
        works[rank].push_back(ranks[rank].all_reduce(floats(memory[rank]), reduction::sum));
    // Rank 0 meets the first forty.
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
        else  // rank 0 had all that it needed, which says nothing about the others
          CHECK(works[rank][i]->poll().status != work_status::pending);
    }
    await_quiescence(ranks[0]);
  });
}

TEST_CASE("an abort that races with completion: one end for all, memory free when quiescent",
          "[many]") {
  std::mt19937_64 random{20240607};
  for_each_world_from(2, [&](communicator_backend& backend, std::int32_t world) {
    const auto before = ones(world, 30000);
    const std::vector<float> after(30000, static_cast<float>(world));
    for (int round = 0; round < 60; ++round) {
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
      memory.reset();  // under AddressSanitizer: nobody may write there any more
    }
  });
}

TEST_CASE("a deadline names who is missing, on every rank that waits", "[many]") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world, 1, milliseconds{200}};
    std::vector<work_ptr> works(world);
    std::atomic<int> ended{0};
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      c.barrier("connected", std::chrono::minutes{1})->wait();
      if (rank % 2 != 0) {  // odd ranks come when they have heard that it is too late
        while (ended.load() != (world + 1) / 2) std::this_thread::yield();
        while (!c.aborted()) std::this_thread::yield();
      }
      works[rank] = c.barrier("x");
      if (rank % 2 == 0 && rank != 0)  // one that polls instead of waiting
        while (works[rank]->poll().status == work_status::pending) std::this_thread::yield();
      ended.fetch_add(rank % 2 == 0 && rank != 0);
      try {
        works[rank]->wait();
      } catch (...) {
        ended.fetch_add(rank == 0);
        throw;
      }
    });
    std::string expected = "barrier \"x\": waited 0.2 s for rank 1";
    if (world == 4) expected = "barrier \"x\": waited 0.2 s for ranks 1, 3";
    if (world == 7) expected = "barrier \"x\": waited 0.2 s for ranks 1, 3, 5";
    std::vector<std::int32_t> missing;
    for (std::int32_t rank = 1; rank < world; rank += 2) missing.push_back(rank);
    for (std::int32_t rank = 0; rank < world; ++rank) {
      const auto result = works[rank]->poll();
      if (rank % 2 == 0) {
        CHECK(text_of<collective_timeout>(thrown[rank]) == expected);
        CHECK(result.status == work_status::timed_out);
        CHECK(result.missing == missing);
      } else {  // a clean error, and nothing that it could have written to
        CHECK(text_of<generation_closed>(thrown[rank]) == expected);
        CHECK(result.status == work_status::aborted);
      }
    }
    CHECK(ranks[0].aborted());
  });
}

TEST_CASE("a barrier's own deadline goes before the group's, and a met one is over") {
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

TEST_CASE("an operation more on one rank ends in a deadline that names the others", "[many]") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world, 1, milliseconds{200}};
    auto memory = ones(world, 8);
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      c.barrier("connected", std::chrono::minutes{1})->wait();
      c.all_reduce(floats(memory[rank]), reduction::sum)->wait();
      if (rank == 1) c.all_reduce(floats(memory[rank]), reduction::sum)->wait();
    });
    CHECK_THAT(text_of<collective_timeout>(thrown[1]),
               Catch::StartsWith("all_reduce(sum, float32, 8): waited 0.2 s for rank"));
    for (const auto& result : memory)
      CHECK(result == std::vector<float>(8, static_cast<float>(world)));
  });
}

TEST_CASE("a rank that goes while others need it ends the group, and says who went") {
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

TEST_CASE("a rank that goes with work in flight of its own ends the group") {
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

TEST_CASE("a rank that aborts and goes at once has aborted") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    ranks.run([](communicator& c) { c.barrier("connected")->wait(); });
    ranks[1].abort("enough");
    ranks.close(1);
    await_abort(ranks[0]);
    CHECK_THROWS_WITH(ranks[0].barrier("x")->wait(), "enough");
  });
}

TEST_CASE("a rank that has gone is found out by the next operation that needs it") {
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
                      "barrier \"with it\" can not be met: rank 1 has closed its communicator");
    await_abort(ranks[2]);
  });
}

TEST_CASE("an exception on one rank releases the others when its handle goes") {
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

TEST_CASE("works outlive the handles that made them") {
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

TEST_CASE("generations and jobs do not meet") {
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

TEST_CASE("a description that makes no sense is refused") {
  const auto backend = communicator_adapters()[0].make();
  CHECK_THROWS_AS(backend->open({.rank = 0, .world = 0}), std::invalid_argument);
  CHECK_THROWS_AS(backend->open({.rank = 2, .world = 2}), std::invalid_argument);
  CHECK_THROWS_AS(backend->open({.rank = -1, .world = 2}), std::invalid_argument);
  const auto first = backend->open({.rank = 0, .world = 2});
  CHECK_THROWS_AS(backend->open({.rank = 0, .world = 2}), internal_error);
  const auto waiting = first->barrier("x");
  CHECK_THROWS_WITH(backend->open({.rank = 1, .world = 3}),
                    Catch::Contains("rank 1 says its world is 3, others said 2"));
  CHECK_THROWS_AS(waiting->wait(), generation_closed);  // not left hanging
}

TEST_CASE("memory of the communicator is aligned and reduces like any other") {
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

// This process's, what its children share with it included, and those of ranks elsewhere.
std::vector<footprint> footprints_of(const communicator_backend& backend) {
  auto all = rank_footprints(backend);
  all.push_back(footprint_now());
  all.back().bytes += shared_heap_bytes();
  return all;
}

// Generations `from` to `from + count - 1`: three of four end by abort, half with work pending.
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

// The least of twenty moments, a generation apart.
std::vector<footprint> least_footprints(communicator_backend& backend, std::uint64_t from) {
  auto least = footprints_of(backend);
  for (std::uint64_t i = 0; i < 20; ++i) {
    live_through(backend, from + i, 1);
    const auto now = footprints_of(backend);
    for (std::size_t at = 0; at < now.size(); ++at) least[at] = least_of(least[at], now[at]);
  }
  return least;
}

TEST_CASE("a thousand generations leave no memory, descriptor or thread behind", "[generations]") {
  for (const auto& adapter : communicator_adapters()) {
    INFO(adapter.name);
    const auto backend = adapter.make();
    live_through(*backend, 1, 100);
    const auto before = least_footprints(*backend, 101);
    live_through(*backend, 200, adapter.generations);
    const auto after = least_footprints(*backend, 200 + adapter.generations);
    for (std::size_t at = 0; at < after.size(); ++at) {
      INFO((at + 1 == after.size() ? "here" : "rank " + std::to_string(at)));
      // Half of 64 bytes a generation, the least block of the shared heap.
      CHECK(after[at].bytes <= before[at].bytes + 32 * adapter.generations);
      CHECK(after[at].descriptors == before[at].descriptors);
      CHECK(after[at].threads == before[at].threads);
    }
  }
}

}  // namespace
}  // namespace troupe::testing
