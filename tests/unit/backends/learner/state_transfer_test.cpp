// Goal: receivers end with the donors' bytes, a damaged chunk is found, and after an abort only the
// missing chunks are sent.
#include "backends/learner/state_transfer.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "backends/forwarding_communicator.hpp"
#include "backends/inproc/inproc.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr std::size_t chunk_bytes = 64;

// Tensors smaller and larger than a chunk, and one without elements: 13 chunks.
replica_state sample_state() {
  replica_state state;
  state.digest = "d1";
  state.text = "the first donor's text";
  int value = 0;
  for (const std::size_t size : {3, 10, 0, 700, 1, 110}) {
    std::vector<std::byte> bytes(size);
    for (auto& one : bytes) one = static_cast<std::byte>(++value * 37);
    state.tensors.push_back({"t" + std::to_string(state.tensors.size()),
                             "U8",
                             {static_cast<std::int64_t>(size)},
                             std::make_shared<const std::vector<std::byte>>(std::move(bytes))});
  }
  return state;
}

bool equal(const replica_state& a, const replica_state& b) {
  return a.digest == b.digest && a.text == b.text &&
         std::ranges::equal(a.tensors, b.tensors, [](const auto& x, const auto& y) {
           return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape &&
                  *x.bytes == *y.bytes;
         });
}

struct rank_result {
  replica_state state;
  std::size_t sent = 0;
  std::string error;
};

struct transfer_job {
  std::int32_t world = 3;
  std::vector<std::int32_t> donors{0};
  replica_state state = sample_state();
  std::vector<std::shared_ptr<partial_state>> kept = std::vector<std::shared_ptr<partial_state>>(8);
  /// Wraps a rank's communicator.
  std::function<std::shared_ptr<communicator>(std::int32_t, std::shared_ptr<communicator>)> wrap;
};

std::vector<rank_result> run(const transfer_job& job) {
  inproc_backend backend;
  std::vector<rank_result> results(job.world);
  std::vector<std::shared_ptr<communicator>> worlds;
  for (std::int32_t rank = 0; rank < job.world; ++rank)
    worlds.push_back(backend.open({job_id{1}, generation_id{1}, rank, job.world}));
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < job.world; ++rank)
    threads.emplace_back([&, rank] {
      auto world = job.wrap ? job.wrap(rank, worlds[rank]) : worlds[rank];
      const bool gives = std::ranges::find(job.donors, rank) != job.donors.end();
      try {
        std::optional<replica_state> mine;
        if (gives) mine = job.state;
        if (gives && rank != job.donors.front()) mine->text = "another donor's text";
        state_transfer transfer{world, job.donors, std::move(mine), job.kept[rank], chunk_bytes};
        if (!transfer.go_on(true)) throw std::logic_error("a lane that can wait was sent back");
        results[rank] = {transfer.take(), transfer.chunks_sent(), {}};
      } catch (const std::exception& e) {
        results[rank].error = e.what();
        worlds[rank]->abort("a rank failed");
      }
    });
  for (auto& one : threads) one.join();
  return results;
}

/// Counts broadcasts of chunks, and calls `at` before each.
class watched final : public forwarding_communicator {
public:
  watched(std::shared_ptr<communicator> inner, std::function<void(int, buffer)> at)
      : forwarding_communicator(std::move(inner)), at_(std::move(at)) {}
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    const int number = count_++;
    auto work = forwarding_communicator::broadcast(data, root, among);
    if (number >= 2) roots.insert(root);
    if (number == 0 || (number == 1 && !with_header)) return work;
    return std::make_shared<later>(work, [=, this] { at_(number - 2, data); });
  }
  bool with_header = false;      ///< calls `at` for the header, too, with number -1
  std::set<std::int32_t> roots;  ///< ranks that sent chunks

private:
  struct later final : troupe::work {
    later(work_ptr inner, std::function<void()> then) : inner(inner), then(std::move(then)) {}
    work_result poll() override { return inner->poll(); }
    void wait() override {
      inner->wait();
      then();
    }
    work_ptr inner;
    std::function<void()> then;
  };
  std::function<void(int, buffer)> at_;
  int count_ = 0;
};

}  // namespace

TEST_CASE("every receiver ends with the donors' state", "[transfer]") {
  transfer_job job;
  job.world = 4;
  job.donors = GENERATE(std::vector<std::int32_t>{0}, std::vector<std::int32_t>{1, 3},
                        std::vector<std::int32_t>{0, 1, 2}, std::vector<std::int32_t>{0, 1, 2, 3});
  job.state.one_donor = GENERATE(false, true);
  for (const auto& end : run(job)) {
    CHECK(end.error.empty());
    CHECK(equal(end.state, job.state));
    CHECK(end.sent == (job.donors.size() < 4 ? 13 : 0));
  }
}

TEST_CASE("a state without tensors is transferred", "[transfer]") {
  transfer_job job;
  job.state.tensors.clear();
  for (const auto& end : run(job)) CHECK(equal(end.state, job.state));
}

TEST_CASE("donors with different digests are an internal error", "[transfer]") {
  inproc_backend backend;
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<communicator>> worlds;
  for (int rank = 0; rank < 2; ++rank)
    worlds.push_back(backend.open({job_id{1}, generation_id{1}, rank, 2}));
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto mine = sample_state();
      mine.digest += std::to_string(rank);
      try {
        state_transfer{worlds[rank], {0, 1}, mine, nullptr, chunk_bytes}.go_on(true);
      } catch (const std::exception& e) {
        errors[rank] = e.what();
        worlds[rank]->abort("a rank failed");
      }
    });
  for (auto& one : threads) one.join();
  CHECK_THAT(errors[1], Catch::Contains("different states"));
}

TEST_CASE("a flipped bit in a chunk is an error that names its tensors", "[transfer]") {
  transfer_job job;
  job.wrap = [&](std::int32_t rank, std::shared_ptr<communicator> world) {
    return std::make_shared<watched>(world, [rank](int number, buffer data) {
      if (rank == 2 && number == 0) static_cast<char*>(data.data)[20] ^= 4;
    });
  };
  const auto ends = run(job);
  CHECK_THAT(ends[2].error, Catch::Contains("chunk 0") && Catch::Contains("t0, t1, t3"));
}

TEST_CASE("a flipped bit in the header is an error", "[transfer]") {
  transfer_job job;
  job.wrap = [&](std::int32_t rank, std::shared_ptr<communicator> world) {
    auto one = std::make_shared<watched>(world, [rank](int number, buffer data) {
      if (rank == 2 && number == -1) static_cast<char*>(data.data)[8] ^= 4;  // in the digest
    });
    one->with_header = true;
    return one;
  };
  CHECK_THAT(run(job)[2].error, Catch::Contains("header") && Catch::Contains("damaged"));
}

TEST_CASE("a state that one donor is to send comes from the first one", "[transfer]") {
  transfer_job job;
  job.world = 4;
  job.donors = {0, 1, 2};
  job.state.one_donor = GENERATE(false, true);
  std::shared_ptr<watched> receiver;
  job.wrap = [&](std::int32_t rank, std::shared_ptr<communicator> world) {
    auto one = std::make_shared<watched>(world, [](int, buffer) {});
    if (rank == 3) receiver = one;
    return one;
  };
  run(job);
  CHECK(receiver->roots.size() == (job.state.one_donor ? 1 : 3));
}

TEST_CASE("after an aborted transfer only the missing chunks are sent", "[transfer]") {
  transfer_job job;
  for (auto& one : job.kept) one = std::make_shared<partial_state>();
  bool breaks = true;
  job.wrap = [&](std::int32_t rank, std::shared_ptr<communicator> world) {
    return std::make_shared<watched>(world, [rank, &breaks](int number, buffer) {
      if (breaks && rank == 2 && number == 5) throw std::runtime_error("rank 2 breaks");
    });
  };
  const auto aborted = run(job);
  CHECK(aborted[2].error == "rank 2 breaks");
  breaks = false;
  for (const auto& end : run(job)) {
    CHECK(equal(end.state, job.state));
    CHECK(end.sent == 8);  // rank 2 has 5 of 13
  }
  // Another state begins anew.
  run(job);
  breaks = true;
  run(job);
  breaks = false;
  job.state.digest = "d2";
  for (const auto& end : run(job)) {
    CHECK(equal(end.state, job.state));
    CHECK(end.sent == 13);
  }
}

TEST_CASE("a state that one donor is to send: no chunk of an earlier donor is used", "[transfer]") {
  transfer_job job;
  for (auto& one : job.kept) one = std::make_shared<partial_state>();
  job.donors = {1};
  job.state.one_donor = true;
  bool breaks = true;
  job.wrap = [&](std::int32_t rank, std::shared_ptr<communicator> world) {
    return std::make_shared<watched>(world, [rank, &breaks](int number, buffer) {
      if (breaks && rank == 2 && number == 5) throw std::runtime_error("rank 2 breaks");
    });
  };
  REQUIRE(run(job)[2].error == "rank 2 breaks");
  breaks = false;
  // Rank 0 has received the state. Bytes that the digest leaves out are its own.
  job.donors = {0, 1};
  for (auto& tensor : job.state.tensors)
    tensor.bytes = std::make_shared<const std::vector<std::byte>>(tensor.bytes->size());
  for (const auto& end : run(job)) CHECK(equal(end.state, job.state));
}
