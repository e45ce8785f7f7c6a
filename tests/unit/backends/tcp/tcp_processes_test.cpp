// Goal: the tcp communicator works between processes that are killed, stopped and continued.
#include "backends/tcp/connection.hpp"
#include "backends/tcp/tcp.hpp"
#include "tests/support/reference_reduction.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t ranks_max = 4;

constexpr std::size_t generations_max = 2;

// Shared by the processes of a case: their ports, their progress, and their errors.
struct shared_page {
  using ports = std::array<std::atomic<std::uint16_t>, ranks_max>;
  std::array<ports, generations_max> places;
  std::array<std::atomic<int>, ranks_max> steps;
  std::array<std::array<char, 256>, ranks_max> last_words;
  std::atomic<bool> enough;
};

class shared_table final : public tcp_rendezvous {
public:
  explicit shared_table(shared_page& on) : on_(on) {}
  void publish(const group_description& who, const tcp_address& at) override {
    port(who, who.rank).store(at.port);
  }
  std::optional<tcp_address> find(const group_description& who, std::int32_t rank) override {
    const auto port = this->port(who, rank).load();
    if (port == 0) return {};
    return tcp_address{"127.0.0.1", port};
  }

private:
  std::atomic<std::uint16_t>& port(const group_description& who, std::int32_t rank) {
    return on_.places.at(who.generation.value() - 1)[static_cast<std::size_t>(rank)];
  }
  shared_page& on_;
};

using body = std::function<void(communicator&, shared_page&, tcp_backend&)>;

// One child process per rank. Children that still live at the end of a case are killed.
class processes {
public:
  processes(std::int32_t world, milliseconds deadline, const body& what, std::uint16_t streams = 4)
      : page_(*static_cast<shared_page*>(mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE,
                                              MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    for (std::int32_t rank = 0; rank < world; ++rank) {
      const auto child = fork();
      if (child == 0) live(rank, world, deadline, what, streams);
      children_.push_back(child);
    }
  }
  ~processes() {
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      signal(rank, SIGKILL);
      end(rank);
    }
    munmap(&page_, sizeof(shared_page));
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;

  void signal(std::size_t rank, int number) {
    if (children_[rank] > 0) kill(children_[rank], number);
  }
  shared_page& shared() { return page_; }
  /// Waits until the rank has reached `step`.
  void await_step(std::size_t rank, int step) {
    const file_descriptor life{static_cast<int>(syscall(SYS_pidfd_open, children_[rank], 0))};
    pollfd over{life.get(), POLLIN, 0};
    while (page_.steps[rank].load() < step && poll(&over, 1, 1) == 0) {
    }
    INFO("rank " << rank << ": " << page_.last_words[rank].data());
    REQUIRE(page_.steps[rank].load() >= step);
  }
  /// An empty text for a rank that succeeded; otherwise its error or the signal that ended it.
  std::string end(std::size_t rank) {
    if (children_[rank] <= 0) return {};
    int status = 0;
    waitpid(std::exchange(children_[rank], -1), &status, 0);
    if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
    return page_.last_words[rank].data();
  }

private:
  [[noreturn]] void live(std::int32_t rank, std::int32_t world, milliseconds deadline,
                         const body& what, std::uint16_t streams) {
    std::string said;
    try {
      tcp_backend backend{
          tcp_options{.rendezvous = std::make_shared<shared_table>(page_), .streams = streams}};
      const auto mine = backend.open({.job = job_id{1},
                                      .generation = generation_id{1},
                                      .rank = rank,
                                      .world = world,
                                      .deadline = deadline});
      what(*mine, page_, backend);
    } catch (const collective_timeout& error) {
      said = std::string{"timeout: "} + error.what();
    } catch (const generation_closed& error) {
      said = std::string{"closed: "} + error.what();
    } catch (const std::exception& error) {
      said = error.what();
    }
    auto& words = page_.last_words[static_cast<std::size_t>(rank)];
    std::strncpy(words.data(), said.c_str(), words.size() - 1);
    _exit(0);
  }

  shared_page& page_;
  std::vector<pid_t> children_;
};

void reduce_for_ever(communicator& c, shared_page& on, tcp_backend&) {
  std::vector<float> memory(3 << 20, 1.0f);
  c.barrier("all", std::chrono::minutes{1})->wait();
  for (;;) {
    c.all_reduce({memory.data(), memory.size(), dtype::f32}, reduction::mean)->wait();
    on.steps[static_cast<std::size_t>(c.group().rank)].fetch_add(1);
  }
}

TEST_CASE("processes reduce to the bits of the canonical tree") {
  using testing::bytes;
  const std::int32_t world = GENERATE(2, 3, 4);
  const std::size_t count = 700001;
  std::vector<bytes> leaves;
  for (std::int32_t rank = 0; rank < world; ++rank)
    leaves.push_back(testing::odd_values(dtype::bf16, count, rank, 5));
  const auto expected = testing::reference_reduction(dtype::bf16, reduction::sum, leaves);
  processes ranks{world, milliseconds{0}, [&](communicator& c, shared_page&, tcp_backend&) {
                    auto memory = leaves[static_cast<std::size_t>(c.group().rank)];
                    c.all_reduce({memory.data(), count, dtype::bf16}, reduction::sum)->wait();
                    if (memory != expected) throw std::logic_error("other bits");
                    if (c.decide(c.group().rank == 1, decision::all))
                      throw std::logic_error("not all");
                    c.barrier("end")->wait();
                  }};
  for (std::int32_t rank = 0; rank < world; ++rank)
    CHECK(ranks.end(static_cast<std::size_t>(rank)).empty());
}

TEST_CASE("a rank killed in the middle of a reduction is named by all others") {
  const std::uint16_t streams = GENERATE(1, 4);
  processes ranks{3, milliseconds{0}, reduce_for_ever, streams};
  for (std::size_t rank = 0; rank < 3; ++rank) ranks.await_step(rank, 3);
  ranks.signal(1, SIGKILL);
  CHECK(ranks.end(1) == "signal 9");
  for (const std::size_t rank : {0, 2})
    CHECK_THAT(ranks.end(rank), Catch::StartsWith("closed: rank 1 is lost: "));
}

TEST_CASE("a stopped rank is named by the deadline and gets a clean error when continued") {
  const std::uint16_t streams = GENERATE(1, 4);
  processes ranks{3, milliseconds{1000}, reduce_for_ever, streams};
  for (std::size_t rank = 0; rank < 3; ++rank) ranks.await_step(rank, 3);
  ranks.signal(2, SIGSTOP);
  std::vector<std::string> ends;
  for (const std::size_t rank : {0, 1}) {
    const auto text = ranks.end(rank);
    CHECK_THAT(text, Catch::EndsWith("all_reduce(mean, float32, 3145728): waited 1 s for rank 2"));
    ends.push_back(text.substr(0, text.find(':')));
  }
  // The first rank to notice gets the timeout; a rank in another operation gets its text as the
  // reason.
  CHECK(std::count(ends.begin(), ends.end(), "timeout") >= 1);
  ranks.signal(2, SIGCONT);
  CHECK_THAT(ranks.end(2), Catch::Contains("waited 1 s for rank"));
}

// Ranks 0 and 2 continue without rank 1, which sleeps in the middle of a broadcast into their
// memory.
TEST_CASE("a rank that wakes up late writes nothing into the memory of a later generation") {
  const std::uint16_t streams = GENERATE(1, 4);
  const auto go_on = [](communicator& old, shared_page& on, tcp_backend& backend) {
    const auto rank = old.group().rank;
    auto& steps = on.steps[static_cast<std::size_t>(rank)];
    constexpr std::size_t count = 3 << 20;
    const auto all_are = [](const std::vector<float>& memory, float value) {
      if (std::count(memory.begin(), memory.end(), value) != std::ptrdiff_t{count})
        throw std::logic_error("memory has other values");
    };
    std::vector<float> memory(count);
    try {
      for (;; ++steps) old.broadcast({memory.data(), count, dtype::f32}, 1)->wait();
    } catch (const collective_timeout&) {
      if (rank == 1) throw;
    } catch (const generation_closed&) {  // the deadline of another rank
      if (rank == 1) throw;
    }
    const auto young = backend.open(
        {.job = job_id{1}, .generation = generation_id{2}, .rank = rank / 2, .world = 2});
    std::fill(memory.begin(), memory.end(), 7.0f);
    std::vector<float> summed(count);
    steps = 1000;
    for (float i = 0; !young->decide(on.enough, decision::any); ++i, ++steps) {
      std::fill(summed.begin(), summed.end(), i + static_cast<float>(rank));
      young->all_reduce({summed.data(), count, dtype::f32}, reduction::sum)->wait();
      all_are(summed, 2 * i + 2);
      all_are(memory, 7.0f);
    }
  };
  processes ranks{3, std::chrono::seconds{1}, go_on, streams};
  ranks.await_step(0, 3);
  ranks.signal(1, SIGSTOP);
  for (const std::size_t rank : {0, 2}) ranks.await_step(rank, 1003);
  ranks.signal(1, SIGCONT);
  CHECK_THAT(ranks.end(1), Catch::Contains("waited 1 s for rank"));
  const int now = ranks.shared().steps[0].load();
  for (const std::size_t rank : {0, 2}) ranks.await_step(rank, now + 3);
  ranks.shared().enough = true;
  for (const std::size_t rank : {0, 2}) CHECK(ranks.end(rank).empty());
}

TEST_CASE("a rank that ends while others reduce without it does not disturb them") {
  processes ranks{3, milliseconds{0}, [](communicator& c, shared_page&, tcp_backend&) {
                    c.barrier("all")->wait();
                    if (c.group().rank == 2) return;
                    std::vector<double> memory(100000, 1.0);
                    for (int i = 0; i < 50; ++i)
                      c.all_reduce({memory.data(), memory.size(), dtype::f64}, reduction::max,
                                   {{0, 1}})
                          ->wait();
                  }};
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK(ranks.end(rank).empty());
}

// The limit on processes does not count for root.
int listen_without_a_thread() {
  constexpr uid_t nobody = 65534;
  rlimit limit{};
  if (geteuid() == 0 && setresuid(nobody, nobody, nobody) != 0) return 77;
  if (getrlimit(RLIMIT_NPROC, &limit) != 0) return 77;
  const rlimit none{0, limit.rlim_max};
  const auto book = std::make_shared<tcp_address_book>();
  tcp_backend first{tcp_options{.rendezvous = book}};
  tcp_backend second{tcp_options{.rendezvous = book}};
  const auto open = [](tcp_backend& of, std::int32_t rank, std::uint64_t generation) {
    return of.open({.job = job_id{1},
                    .generation = generation_id{generation},
                    .rank = rank,
                    .world = 2,
                    .deadline = std::chrono::seconds{20}});
  };
  std::string said;
  setrlimit(RLIMIT_NPROC, &none);
  try {
    open(first, 0, 1);
  } catch (const std::exception& error) {
    said = error.what();
  }
  setrlimit(RLIMIT_NPROC, &limit);
  const auto a = open(first, 0, 2);
  const auto b = open(second, 1, 2);
  const auto both = a->barrier("both");
  b->barrier("both")->wait();
  both->wait();
  return said.find("raise the limit (ulimit -u)") == std::string::npos ? 2 : 0;
}

TEST_CASE("a rank without a thread for its listener has one in the next generation") {
  const auto child = fork();
  if (child == 0) {
    try {
      _exit(listen_without_a_thread());
    } catch (const std::exception&) {
      _exit(1);
    }
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    WARN("SKIPPED: this process cannot become another user");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace troupe
