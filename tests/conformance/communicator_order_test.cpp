// Goal: operations match by group and by order of submission, and ranks that disagree on an
// operation get an error.
#include "backends/collective/submission.hpp"
#include "tests/conformance/communicator_suite.hpp"
#include "tests/support/reference_reduction.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

using std::chrono::nanoseconds;

TEST_CASE("the bits of all_reduce do not depend on the order in which ranks arrive") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::vector<bytes> leaves;
    for (std::int32_t rank = 0; rank < world; ++rank)
      leaves.push_back(odd_values(dtype::f32, 5000, rank, 11));
    const auto expected = reference_reduction(dtype::f32, reduction::sum, leaves);
    std::vector<std::int32_t> order(world);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 24; ++round, std::next_permutation(order.begin(), order.end())) {
      auto memory = leaves;
      turnstile gate;
      ranks.run([&](communicator& c) {
        const auto rank = c.group().rank;
        const auto turn = std::find(order.begin(), order.end(), rank) - order.begin();
        gate.await(static_cast<int>(turn));
        const auto work = c.all_reduce(whole(memory[rank], dtype::f32), reduction::sum);
        gate.pass();
        work->wait();
      });
      for (const auto& result : memory) REQUIRE(same(result, expected));
    }
  });
}

TEST_CASE("an operation completes without a waiter once the last rank has arrived") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 100000);
    std::vector<work_ptr> works;
    for (std::int32_t rank = 0; rank < world; ++rank) {
      for (const auto& work : works) CHECK(work->poll().status == work_status::pending);
      CHECK(ranks[0].quiescent() == works.empty());
      works.push_back(ranks[rank].all_reduce(floats(memory[rank]), reduction::sum));
    }
    // Adapters with threads of their own need time to move data. wait() gives them that time.
    for (const auto& work : works) work->wait();
    for (const auto& work : works) CHECK(work->poll().status == work_status::ok);
    for (const auto& result : memory)
      CHECK(std::count(result.begin(), result.end(), static_cast<float>(world)) == 100000);
    CHECK(ranks[0].quiescent());
  });
}

TEST_CASE("operations submitted without waiting may reuse the same memory in order") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 50000);
    ranks.run([&](communicator& c) {
      std::vector<work_ptr> works;
      for (int i = 0; i < 4; ++i)
        works.push_back(c.all_reduce(floats(memory[c.group().rank]), reduction::sum));
      works.back()->wait();
      for (const auto& work : works) work->wait();
    });
    const auto expected = static_cast<float>(world * world * world * world);
    for (const auto& result : memory)
      CHECK(std::count(result.begin(), result.end(), expected) == 50000);
  });
}

TEST_CASE("a hundred operations in flight may be awaited in reverse order") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::vector<std::vector<std::vector<float>>> memory(100, ones(world, 333));
    ranks.run([&](communicator& c) {
      std::vector<work_ptr> works;
      for (int i = 0; i < 100; ++i)
        works.push_back(c.all_reduce(floats(memory[i][c.group().rank]), reduction::sum));
      for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
    });
    for (const auto& operation : memory)
      for (const auto& result : operation)
        REQUIRE(std::count(result.begin(), result.end(), static_cast<float>(world)) == 333);
  });
}

// A rank may be ahead of another by as many operations as it may have in flight.
TEST_CASE("as many operations in flight as there may be: no rank is refused or ended", "[many]") {
  constexpr std::size_t most = collectives::operations_max;
  for (const auto& adapter : communicator_adapters()) {
    INFO(adapter.name);
    const auto backend = adapter.make();
    // One adapter over sockets: on a busy machine each operation takes milliseconds there.
    if (!ends_at_once(*backend) && adapter.name != "tcp, one connection") continue;
    company ranks{*backend, 3};
    ranks.run([&](communicator& c) {
      std::deque<work_ptr> works;
      for (std::size_t i = 0; i < most; ++i) works.push_back(c.barrier("window"));
      for (int i = 0; i < 200; ++i) {
        works.front()->wait();
        works.pop_front();
        works.push_back(c.barrier("window"));
      }
      for (const auto& work : works) work->wait();
    });
  }
}

TEST_CASE("no rank leaves a barrier before the last rank has entered it") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::atomic<int> arrived{0};
    ranks.run([&](communicator& c) {
      for (int round = 1; round <= 50; ++round) {
        arrived.fetch_add(1);
        c.barrier("round")->wait();
        expect(arrived.load() >= round * world, "all ranks have entered the barrier");
        c.barrier("next")->wait();
      }
    });
  });
}

TEST_CASE("waiting() is true from another thread exactly while a rank waits for its peers") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    ranks.run([&](communicator& c) {
      expect(!c.waiting(), "no rank waits before it has called");
      if (c.group().rank == 0) {
        for (std::int32_t other = 1; other < world; ++other)
          while (!ranks[other].waiting()) std::this_thread::yield();
        c.barrier("they wait")->wait();
        for (std::int32_t other = 1; other < world; ++other)
          while (!ranks[other].waiting()) std::this_thread::yield();
        expect(c.decide(true, decision::all), "all agree");
      } else {
        c.barrier("they wait")->wait();
        expect(c.decide(true, decision::all), "all agree");
      }
    });
    for (std::int32_t rank = 0; rank < world; ++rank) CHECK_FALSE(ranks[rank].waiting());
  });
}

TEST_CASE("subgroups keep their own order and run side by side with the world") {
  for_each_world_from(3, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::vector<float> sums(world);
    std::vector<float> totals(world);
    ranks.run([&](communicator& c) {
      const auto rank = c.group().rank;
      subgroup mine;
      for (std::int32_t r = rank % 2; r < world; r += 2) mine.ranks.push_back(r);
      std::vector<float> small{static_cast<float>(rank)};
      std::vector<float> large{static_cast<float>(rank)};
      // Even ranks submit to their subgroup first, odd ranks to the world.
      work_ptr first;
      if (rank % 2 == 0) first = c.all_reduce(floats(small), reduction::sum, mine);
      const auto second = c.all_reduce(floats(large), reduction::sum);
      if (rank % 2 != 0) first = c.all_reduce(floats(small), reduction::sum, mine);
      second->wait();
      first->wait();
      c.barrier("among", nanoseconds{0}, mine)->wait();
      expect(c.decide(rank < 2, decision::any, mine), "one member of every subgroup votes yes");
      sums[rank] = small[0];
      totals[rank] = large[0];
    });
    for (std::int32_t rank = 0; rank < world; ++rank) {
      float expected = 0;
      for (std::int32_t r = rank % 2; r < world; r += 2) expected += static_cast<float>(r);
      CHECK(sums[rank] == expected);
      CHECK(totals[rank] == static_cast<float>(world * (world - 1)) / 2);
    }
  });
}

TEST_CASE("a rank may be in many subgroups, each with other ranks") {
  for_each_world_from(3, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    const auto mark = [](std::int32_t rank) { return static_cast<float>(1 << rank); };
    for (const std::size_t count : {1, 300001}) {
      CAPTURE(count);
      std::vector<int> wrong(world);
      ranks.run([&](communicator& c) {
        const auto rank = c.group().rank;
        const std::vector<float> mine(count, mark(rank));
        std::vector<std::vector<float>> sums(world, mine), sent(world, mine);
        std::vector<work_ptr> works;
        // Each rank calls its pairs in another order, starting with the rank after it.
        for (std::int32_t i = 1; i < world; ++i) {
          const auto other = (rank + i) % world;
          const subgroup pair{{std::min(rank, other), std::max(rank, other)}};
          works.push_back(c.all_reduce(floats(sums[other]), reduction::sum, pair));
          works.push_back(c.broadcast(floats(sent[other]), pair.ranks[1], pair));
        }
        for (const auto& work : works) work->wait();
        for (std::int32_t other = 0; other < world; ++other) {
          if (other == rank) continue;
          const std::vector<float> sum(count, mark(rank) + mark(other));
          const std::vector<float> of_root(count, mark(std::max(rank, other)));
          if (sums[other] != sum || sent[other] != of_root) ++wrong[rank];
        }
      });
      CHECK(wrong == std::vector<int>(world));
    }
  });
}

TEST_CASE("pieces and roots and subgroups of size one follow member order") {
  for_each_world_from(3, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    const std::int32_t last = world - 1;
    std::vector<std::vector<float>> gathered(world, std::vector<float>(2, -1));
    std::vector<float> sent(world, -1);
    ranks.run([&](communicator& c) {
      const auto rank = c.group().rank;
      std::vector<float> mine{static_cast<float>(rank)};
      if (rank == 1 || rank == last) {
        const subgroup pair{{1, last}};
        c.all_gather(floats(mine), floats(gathered[rank]), pair)->wait();
        std::vector<float> from_last{static_cast<float>(rank)};
        c.broadcast(floats(from_last), last, pair)->wait();
        sent[rank] = from_last[0];
      }
      c.all_reduce(floats(mine), reduction::max, {{rank}})->wait();
      expect(mine[0] == static_cast<float>(rank), "a reduction over one rank keeps its value");
    });
    const auto top = static_cast<float>(last);
    CHECK(gathered[1] == std::vector<float>{1, top});
    CHECK(gathered[last] == std::vector<float>{1, top});
    CHECK(sent[1] == top);
  });
}

TEST_CASE("naming all ranks as the subgroup equals naming none") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 10);
    subgroup everybody;
    for (std::int32_t rank = 0; rank < world; ++rank) everybody.ranks.push_back(rank);
    ranks.run([&](communicator& c) {
      const auto rank = c.group().rank;
      const auto& among = rank == 0 ? everybody : subgroup{};
      c.all_reduce(floats(memory[rank]), reduction::sum, among)->wait();
    });
    CHECK(memory[0][0] == static_cast<float>(world));
  });
}

TEST_CASE("an impossible call is refused with a clear text and nothing is submitted") {
  for_each_world_from(3, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    check_refusals(ranks[1]);
    // Nothing was submitted, so all ranks can still complete a barrier.
    ranks.run([](communicator& each) { each.barrier("after all that")->wait(); });
  });
}

TEST_CASE("an impossible call is refused as clearly while an operation is in flight") {
  for_each_world_from(3, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    auto memory = ones(world, 1000);
    const auto sum = [&](communicator& each) {
      return each.all_reduce(floats(memory[each.group().rank]), reduction::sum);
    };
    const auto first = sum(ranks[1]);
    check_refusals(ranks[1]);
    ranks.run([&](communicator& each) {
      (each.group().rank == 1 ? first : sum(each))->wait();
      each.barrier("after all that")->wait();
    });
    CHECK(memory[1][0] == static_cast<float>(world));
  });
}

TEST_CASE("ranks make different calls: the error shows all calls and no memory is written",
          "[many]") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    std::uint64_t generation = 1;
    for (const auto& which : disagreements())
      for (const std::int32_t odd : {0, world - 1})
        for (const bool odd_last : {false, true}) {
          INFO(which.name << ", odd rank " << odd << (odd_last ? " last" : " first"));
          company ranks{backend, world, generation++};
          auto memory = ones(world, 10);
          turnstile gate;
          const auto thrown = ranks.attempt([&](communicator& c) {
            const auto rank = c.group().rank;
            // The odd rank arrives first or last; the others arrive in any order.
            if (rank == odd && odd_last) gate.await(world - 1);
            if (rank != odd && !odd_last && which.name != "kind") gate.await(1);
            work_ptr work;
            try {
              work = (rank == odd ? which.odd : which.usual)(c, memory[rank]);
            } catch (...) {
              gate.pass();
              throw;
            }
            gate.pass();
            if (work) work->wait();
          });
          for (std::int32_t rank = 0; rank < world; ++rank) {
            const auto text = text_of<collective_mismatch>(thrown[rank]);
            CHECK_THAT(text, Catch::Contains("ranks disagree on collective 0: "));
            CHECK_THAT(text, Catch::Contains(which.usual_text));
            CHECK_THAT(text,
                       Catch::Contains("rank " + std::to_string(odd) + ": " + which.odd_text));
          }
          CHECK(memory == ones(world, 10));
          CHECK(ranks[0].aborted());
        }
  });
}

TEST_CASE("a mismatch of two ranks reads as in the documentation") {
  const auto backend = communicator_adapters()[0].make();
  company ranks{*backend, 2};
  std::vector<float> a(10);
  std::vector<float> b(10);
  const auto first = ranks[0].all_reduce(floats(a), reduction::sum);
  const auto second = ranks[1].broadcast(floats(b), 0);
  for (const auto& work : {first, second}) {
    const auto result = work->poll();
    CHECK(result.status == work_status::mismatch);
    CHECK(result.text ==
          "ranks disagree on collective 0: rank 0: all_reduce(sum, float32, 10), "
          "rank 1: broadcast(float32, 10 from 0)");
  }
}

TEST_CASE("a rank that skips an operation gets a mismatch at its next one") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    std::vector<std::vector<float>> large = ones(world, 20);
    std::vector<std::vector<float>> small = ones(world, 10);
    const auto thrown = ranks.attempt([&](communicator& c) {
      const auto rank = c.group().rank;
      c.barrier("start")->wait();
      if (rank != 1) c.all_reduce(floats(large[rank]), reduction::sum);
      c.all_reduce(floats(small[rank]), reduction::sum)->wait();
    });
    CHECK_THAT(text_of<collective_mismatch>(thrown[1]),
               Catch::Contains("collective 1: ") && Catch::Contains("float32, 20") &&
                   Catch::Contains("rank 1: all_reduce(sum, float32, 10)"));
    // The other ranks wait for a later operation, which the abort of the group ends.
    for (std::int32_t rank = 0; rank < world; ++rank)
      if (rank != 1)
        CHECK_THAT(text_of<generation_closed>(thrown[rank]), Catch::Contains("ranks disagree"));
    CHECK(large == ones(world, 20));
    CHECK(small == ones(world, 10));
  });
}

}  // namespace
}  // namespace troupe::testing
