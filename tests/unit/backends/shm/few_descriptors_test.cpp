// Goal: a rank without a free descriptor takes no living rank for an ended one.
#include "backends/local/process_life.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/unit/backends/shm/forked_ranks.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

constexpr std::size_t given_bytes = 1 << 20;

/// Holds all descriptors that the process may still have.
class no_descriptors {
public:
  no_descriptors() {
    rlimit limit{};
    expect(getrlimit(RLIMIT_NOFILE, &limit) == 0, "a limit");
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 256);
    expect(setrlimit(RLIMIT_NOFILE, &limit) == 0, "a small limit");
    for (;;) {
      file_descriptor next{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
      if (next.get() < 0) return;
      taken_.push_back(std::move(next));
    }
  }

private:
  std::vector<file_descriptor> taken_;
};

class pipe_of_words {
public:
  pipe_of_words() { REQUIRE(pipe(ends_.data()) == 0); }
  ~pipe_of_words() {
    for (const int end : ends_) close(end);
  }
  pipe_of_words(const pipe_of_words&) = delete;
  pipe_of_words& operator=(const pipe_of_words&) = delete;
  template <class T>
  void put(const T& what) const {
    expect(write(ends_[1], &what, sizeof what) == sizeof what, "a word is sent");
  }
  template <class T = char>
  T take() const {
    T what{};
    expect(read(ends_[0], &what, sizeof what) == sizeof what, "a word comes");
    return what;
  }

private:
  std::array<int, 2> ends_{};
};

TEST_CASE("a process without a free descriptor takes no living process for an ended one") {
  if (needs_descriptors) {
    WARN("SKIPPED: UndefinedBehaviorSanitizer needs a free descriptor");
    return;
  }
  const pipe_of_words full;
  rank_processes ranks{2, [&](std::int32_t rank) {
                         if (rank == 1) {
                           full.put(process_life::own());
                           for (;;) pause();
                         }
                         const auto other = full.take<process_life>();
                         expect(other.birth != 0, "it is known when the other began");
                         const no_descriptors none;
                         expect(process_life::of_child(other.pid).birth == 0, "nothing to read");
                         expect(other.visible(), "the number counts here");
                         expect(other.watch().get() < 0, "no watch");
                         expect(!other.exiting(), "it is not exiting");
                         expect(!other.over(), "it is not over");
                       }};
  CHECK(ranks.end(0) == 0);
  const auto life = process_life::of_child(ranks.pid(1));
  auto unread = life;
  unread.birth = 0;  // as its own process notes it when it has no free descriptor
  CHECK_FALSE(unread.over());
  CHECK(unread.watch().get() >= 0);
  kill(ranks.pid(1), SIGKILL);
  CHECK(ranks.end(1) == -SIGKILL);
  CHECK(life.over());
  CHECK(unread.over());
}

TEST_CASE("a rank runs out of descriptors before another one comes: both work, and memory stays") {
  if (needs_descriptors) {
    WARN("SKIPPED: UndefinedBehaviorSanitizer needs a free descriptor");
    return;
  }
  const auto rendezvous = small_rendezvous();
  const pipe_of_words full, left;
  rank_processes ranks{2, [&](std::int32_t rank) {
                         shm_backend backend{rendezvous};
                         if (rank == 1) full.take();
                         auto c = open(backend, rank, 2);
                         if (rank == 1) {
                           const auto memory = c->allocate(given_bytes);
                           std::memset(memory.get(), 7, given_bytes);
                           while (c->decide(true, decision::all)) {
                           }
                           left.take();
                           const auto* bytes = static_cast<const char*>(memory.get());
                           expect(std::count(bytes, bytes + given_bytes, 7) == given_bytes,
                                  "rank 0 left and released no memory of rank 1");
                           return;
                         }
                         const no_descriptors none;
                         full.put('x');
                         // Longer than the progress thread needs for some looks at rank 1.
                         const auto until =
                             std::chrono::steady_clock::now() + std::chrono::milliseconds{100};
                         bool more = true;
                         while (more) {
                           more = std::chrono::steady_clock::now() < until;
                           c->decide(more, decision::all);
                         }
                         c.reset();
                         left.put('x');
                       }};
  for (const std::int32_t rank : {0, 1}) CHECK(ranks.end(rank) == 0);
}

TEST_CASE("a rank is killed that could not be watched for want of a descriptor: it is named") {
  if (needs_descriptors) {
    WARN("SKIPPED: UndefinedBehaviorSanitizer needs a free descriptor");
    return;
  }
  const auto rendezvous = small_rendezvous();
  const pipe_of_words full;
  rank_processes ranks{
      2, [&](std::int32_t rank) {
        shm_backend backend{rendezvous};
        if (rank == 1) full.take();
        auto c = open(backend, rank, 2, 1, std::chrono::seconds{20});
        {
          const auto none = rank == 0 ? std::make_unique<no_descriptors>() : nullptr;
          if (rank == 0) full.put('x');
          c->barrier("both")->wait();
          if (rank == 1) raise(SIGKILL);
        }
        const auto text = text_of<generation_closed>([&] { c->barrier("one")->wait(); });
        expect(has(text, "rank 1 is lost: its process "), text);
      }};
  CHECK(ranks.end(1) == -SIGKILL);
  CHECK(ranks.end(0) == 0);
}

}  // namespace
}  // namespace troupe::testing
