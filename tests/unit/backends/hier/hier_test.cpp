// Goal: with ranks on hosts of any shape, a host reduces only whole subtrees by itself, and the
// result has the same bits for every layout.
#include "backends/hier/hier.hpp"

#include "backends/collective/canonical_reduction.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/tcp/tcp.hpp"
#include "tests/support/reference_reduction.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using hosts = std::vector<std::int32_t>;

// Knows the hosts once so many ranks have said where they are.
class test_finder : public host_finder {
public:
  explicit test_finder(hosts layout) : layout_(std::move(layout)) {
    for (const auto ranks : layout_) missing_ += ranks;
  }
  void publish(const group_description&) override {
    const std::lock_guard hold{guard_};
    --missing_;
    changed_.notify_all();
  }
  std::optional<hosts> find(const group_description&, std::chrono::milliseconds patience) override {
    std::unique_lock hold{guard_};
    ++asked_;
    changed_.notify_all();
    if (fails_) throw std::runtime_error("the store has ended");
    const bool found = changed_.wait_for(hold, patience, [&] { return missing_ == 0; });
    return found ? std::optional{layout_} : std::nullopt;
  }
  void fail() {
    const std::lock_guard hold{guard_};
    fails_ = true;
  }
  void wait_until_asked() {
    std::unique_lock hold{guard_};
    changed_.wait(hold, [&] { return asked_ > 0; });
  }

private:
  const hosts layout_;
  std::mutex guard_;
  std::condition_variable changed_;
  std::int32_t missing_ = 0;
  int asked_ = 0;
  bool fails_ = false;
};

// Two ranks on one host, of which one has come.
struct first_of_two {
  std::shared_ptr<communicator> open(std::int32_t rank) {
    return host.open({.rank = rank, .world = 2});
  }
  std::shared_ptr<test_finder> finder = std::make_shared<test_finder>(hosts{2});
  hier_backend host{{.local = std::make_shared<inproc_backend>(),
                     .remote = std::make_shared<tcp_backend>(
                         tcp_options{.rendezvous = std::make_shared<tcp_address_book>()}),
                     .finder = finder,
                     .local_from = 0}};
  std::shared_ptr<communicator> all = open(0);
  std::vector<float> memory = std::vector<float>(100, 1.0F);
  buffer data{memory.data(), memory.size(), dtype::f32};
};

TEST_CASE("memory of ranks that look for their hosts is that of the host") {
  first_of_two job;
  std::shared_ptr<void> here;
  std::thread lane{[&] { here = job.all->allocate(4096); }};
  job.finder->wait_until_asked();
  CHECK(job.all->waiting());
  const auto other = job.open(1);
  lane.join();
  CHECK(here);
  CHECK_FALSE(job.all->waiting());
  auto right = job.memory;
  const auto work = job.all->all_reduce(job.data, reduction::sum);
  other->all_reduce({right.data(), right.size(), dtype::f32}, reduction::sum)->wait();
  work->wait();
  CHECK(job.memory == std::vector<float>(100, 2.0F));
  CHECK(right == job.memory);
}

TEST_CASE("an abort ends the search for hosts") {
  first_of_two job;
  std::thread lane{[&] { CHECK(job.all->allocate(4096)); }};
  job.finder->wait_until_asked();
  const auto work = job.all->all_reduce(job.data, reduction::sum);
  job.all->abort("enough");
  lane.join();
  CHECK_THROWS_WITH(work->wait(), Catch::Contains("enough"));
}

TEST_CASE("hosts that cannot be found any more abort all ranks with the reason") {
  first_of_two job;
  job.finder->fail();
  const auto other = job.open(1);
  auto right = job.memory;
  const auto work = job.all->all_reduce(job.data, reduction::sum);
  const auto theirs = other->all_reduce({right.data(), right.size(), dtype::f32}, reduction::sum);
  CHECK_THROWS_WITH(work->wait(), Catch::Contains("the store has ended"));
  CHECK_THROWS_WITH(theirs->wait(), Catch::Contains("the store has ended"));
}

TEST_CASE("hier takes the hosts or a finder, not both") {
  hier_options options{.local = std::make_shared<inproc_backend>(),
                       .remote = std::make_shared<tcp_backend>()};
  CHECK_THROWS_AS(hier_backend{options}, std::invalid_argument);
  options.finder = std::make_shared<test_finder>(hosts{1});
  CHECK_NOTHROW(hier_backend{options});
  options.hosts = [](const auto&) { return hosts{1}; };
  CHECK_THROWS_AS(hier_backend{options}, std::invalid_argument);
}

TEST_CASE("a block is the largest power of two of ranks that never spans two hosts") {
  CHECK(block_of({1}, 1) == 1);
  CHECK(block_of({2}, 2) == 2);
  CHECK(block_of({1, 1}, 2) == 1);
  CHECK(block_of({2, 2}, 4) == 2);
  CHECK(block_of({4, 3}, 7) == 4);
  CHECK(block_of({1, 3}, 4) == 1);
  CHECK(block_of({7}, 7) == 8);
  CHECK(block_of({4, 4, 2}, 10) == 4);
  CHECK(block_of({4, 2, 2}, 8) == 2);
  CHECK(block_of({8, 4, 4, 16}, 32) == 4);
  CHECK(block_of({2, 2, 3}, 7) == 2);
  CHECK_THROWS_AS(block_of({2, 2}, 5), std::invalid_argument);
}

TEST_CASE("the bits of all_reduce do not depend on the layout of hosts") {
  using testing::bytes;
  const auto layout = GENERATE(hosts{2, 2}, hosts{4, 3}, hosts{1, 3}, hosts{3, 1}, hosts{2, 2, 3},
                               hosts{2, 1}, hosts{1, 1});
  const auto finder = GENERATE(true, false) ? std::make_shared<test_finder>(layout) : nullptr;
  std::int32_t world = 0;
  for (const auto ranks : layout) world += ranks;
  const auto book = std::make_shared<tcp_address_book>();
  std::vector<std::shared_ptr<communicator>> ranks;
  for (const auto on_host : layout) {
    hier_options options{.local = std::make_shared<inproc_backend>(),
                         .remote = std::make_shared<tcp_backend>(tcp_options{.rendezvous = book}),
                         .finder = finder,
                         .local_from = 1000};
    if (!finder) options.hosts = [layout](const auto&) { return layout; };
    hier_backend host{options};
    for (std::int32_t i = 0; i < on_host; ++i)
      ranks.push_back(host.open({.rank = static_cast<std::int32_t>(ranks.size()), .world = world}));
  }
  for (const auto type : testing::all_dtypes)
    for (const auto operation : testing::all_reductions)
      for (const std::size_t count : {3, 1037}) {
        if (!refusal(type, operation).empty()) continue;
        CAPTURE(to_string(type), to_string(operation), count);
        std::vector<bytes> leaves;
        for (std::int32_t rank = 0; rank < world; ++rank)
          leaves.push_back(testing::odd_values(type, count, rank, count));
        auto memory = leaves;
        std::vector<work_ptr> works;
        for (std::size_t rank = 0; rank < ranks.size(); ++rank)
          works.push_back(ranks[rank]->all_reduce({memory[rank].data(), count, type}, operation));
        for (const auto& work : works) work->wait();
        const auto expected = testing::reference_reduction(type, operation, leaves);
        for (const auto& result : memory) REQUIRE(result == expected);
      }
}

}  // namespace
}  // namespace troupe
