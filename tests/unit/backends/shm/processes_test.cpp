// Goal: the shm communicator works between processes: reduction in place, killed and stopped ranks,
// many generations, exhausted memory.
#include "backends/shm/control_segment.hpp"
#include "backends/shm/region.hpp"
#include "tests/support/reference_reduction.hpp"
#include "tests/unit/backends/shm/forked_ranks.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

using std::chrono::milliseconds;

// AddressSanitizer's allocator creates mappings of its own.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool maps_by_itself = true;
#else
constexpr bool maps_by_itself = false;
#endif

TEST_CASE("registered memory of processes is reduced in place with the canonical bits") {
  for (const std::int32_t world : {2, 3, 4, 7}) {
    const auto rendezvous = small_rendezvous();
    rank_processes ranks{world, [&](std::int32_t rank) {
                           shm_backend backend{rendezvous};
                           const auto c = open(backend, rank, world);
                           for (const std::size_t count : {5000, 70001, 300000})
                             for (const auto type : {dtype::f32, dtype::bf16}) {
                               std::vector<bytes> leaves;
                               for (std::int32_t r = 0; r < world; ++r)
                                 leaves.push_back(odd_values(type, count, r, 3));
                               const auto& mine = leaves[static_cast<std::size_t>(rank)];
                               const auto memory = c->allocate(mine.size());
                               std::memcpy(memory.get(), mine.data(), mine.size());
                               c->all_reduce({memory.get(), count, type}, reduction::mean)->wait();
                               const auto wanted =
                                   reference_reduction(type, reduction::mean, leaves);
                               expect(std::memcmp(memory.get(), wanted.data(), wanted.size()) == 0,
                                      "the bits of the canonical tree");
                             }
                         }};
    for (std::int32_t rank = 0; rank < world; ++rank) CHECK(ranks.end(rank) == 0);
  }
}

TEST_CASE("one rank's memory is registered and another's is not: the data goes through slots") {
  const auto rendezvous =
      shm_rendezvous::create({.slot_bytes = 4096, .registered_bytes = 2u << 20});
  rank_processes ranks{2, [&](std::int32_t rank) {
                         shm_backend backend{rendezvous};
                         const auto c = open(backend, rank, 2);
                         const std::size_t count = rank == 0 ? 100000 : 1000000;
                         const auto memory =
                             // for rank 1 this is ordinary memory
                             c->allocate(count * sizeof(float));
                         auto* values = static_cast<float*>(memory.get());
                         std::fill(values, values + 100000, static_cast<float>(rank + 1));
                         c->all_reduce({values, 100000, dtype::f32}, reduction::sum)->wait();
                         expect(std::count(values, values + 100000, 3.0f) == 100000, "the sum");
                       }};
  CHECK(ranks.end(0) == 0);
  CHECK(ranks.end(1) == 0);
}

// Ranks reduce forever without a deadline; rank 1 is killed at some point.
void kill_one(bool registered, std::size_t count, int when) {
  const auto rendezvous = small_rendezvous();
  std::array<int, 2> ready{};
  REQUIRE(pipe(ready.data()) == 0);
  rank_processes ranks{
      3, [&](std::int32_t rank) {
        shm_backend backend{rendezvous};
        const auto c = open(backend, rank, 3);
        std::vector<float> own(count);
        std::shared_ptr<void> given;
        if (registered) given = c->allocate(count * sizeof(float));
        auto* data = registered ? static_cast<float*>(given.get()) : own.data();
        std::fill(data, data + count, 0.0f);
        const auto reduce = [&] {
          for (int i = 0;; ++i) {
            if (i == 20 && rank == 1)
              expect(write(ready[1], "x", 1) == 1, "the test process is notified");
            c->all_reduce({data, count, dtype::f32}, reduction::sum)->wait();
          }
        };
        const auto text = text_of<generation_closed>(reduce);
        expect(has(text, "rank 1 is lost: its process "), text);
        while (!c->quiescent()) std::this_thread::yield();
        expect(has(text_of<generation_closed>([&] { c->barrier("x")->wait(); }), "rank 1 is lost"),
               "later operations report the first reason");
      }};
  close(ready[1]);  // so that ranks that end early cause an end of file
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  for (int i = 0; i < when; ++i) std::this_thread::yield();
  kill(ranks.pid(1), SIGKILL);
  CHECK(ranks.end(1) == -SIGKILL);
  CHECK(ranks.end(0) == 0);
  CHECK(ranks.end(2) == 0);
  close(ready[0]);
}

TEST_CASE("kill -9 of a rank ends the other ranks and the error names the lost rank") {
  for (int when = 0; when < 4; ++when) {
    kill_one(false, 100, when);
    kill_one(false, 400000, 3 * when);
    kill_one(true, 400000, 3 * when);
  }
}

TEST_CASE("a rank killed between operations is noticed by a rank that polls aborted()") {
  const auto rendezvous = small_rendezvous();
  rank_processes ranks{2, [&](std::int32_t rank) {
                         shm_backend backend{rendezvous};
                         const auto c = open(backend, rank, 2);
                         c->barrier("both")->wait();
                         if (rank == 1) raise(SIGKILL);
                         while (!c->aborted()) std::this_thread::yield();  // in no operation
                         expect(c->quiescent(), "the aborted group is quiescent");
                       }};
  CHECK(ranks.end(1) == -SIGKILL);
  CHECK(ranks.end(0) == 0);
}

TEST_CASE("a stopped rank is named by the deadline and gets a clean error when continued") {
  const auto rendezvous = small_rendezvous();
  rank_processes ranks{
      3, [&](std::int32_t rank) {
        shm_backend backend{rendezvous};
        const auto c = open(backend, rank, 3, 1, milliseconds{1000});
        std::vector<float> data(100000, 1.0f);
        c->barrier("all", std::chrono::minutes{1})->wait();
        if (rank == 1) {
          raise(SIGSTOP);
          const auto before = data;
          const auto late = c->all_reduce({data.data(), data.size(), dtype::f32}, reduction::sum);
          const auto text = text_of<generation_closed>([&] { late->wait(); });
          expect(has(text, "waited 1 s for rank 1"), text);
          expect(data == before, "its memory is unchanged");
          return;
        }
        const auto text = text_of<collective_timeout>([&] {
          c->all_reduce({data.data(), data.size(), dtype::f32}, reduction::sum)->wait();
        });
        expect(text == "all_reduce(sum, float32, 100000): waited 1 s for rank 1", text);
      }};
  CHECK(ranks.end(0) == 0);
  CHECK(ranks.end(2) == 0);
  kill(ranks.pid(1), SIGCONT);
  CHECK(ranks.end(1) == 0);
}

TEST_CASE("a rank stopped in the middle of an operation is named by the deadline") {
  const auto rendezvous = small_rendezvous();
  std::array<int, 2> ready{};
  REQUIRE(pipe(ready.data()) == 0);
  rank_processes ranks{
      2, [&](std::int32_t rank) {
        shm_backend backend{rendezvous};
        const auto c = open(backend, rank, 2, 1, milliseconds{1000});
        std::vector<float> data(1 << 20, 0.0f);
        c->barrier("both", std::chrono::minutes{1})->wait();
        const auto reduce = [&] {
          for (int i = 0;; ++i) {
            if (i == 5 && rank == 1)
              expect(write(ready[1], "x", 1) == 1, "the test process is notified");
            c->all_reduce({data.data(), data.size(), dtype::f32}, reduction::sum)->wait();
          }
        };
        if (rank == 0)
          expect(has(text_of<collective_timeout>(reduce), "for rank 1"),
                 "the timeout names rank 1");
        else
          text_of<generation_closed>(reduce);
      }};
  close(ready[1]);  // so that ranks that end early cause an end of file
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  kill(ranks.pid(1), SIGSTOP);
  CHECK(ranks.end(0) == 0);
  kill(ranks.pid(1), SIGCONT);
  CHECK(ranks.end(1) == 0);
  close(ready[0]);
}

// Ranks 0 and 2 continue without rank 1, which sleeps in the middle of an operation of generation
// 1.
void go_on_without(bool registered) {
  struct progress {
    std::array<std::atomic<int>, 3> sums;  // counted over all generations
    std::atomic<bool> enough;
  };
  auto& at = *static_cast<progress*>(
      mmap(nullptr, sizeof(progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  constexpr std::size_t count = 1 << 20;
  const auto rendezvous = small_rendezvous();
  rank_processes ranks{
      3, [&](std::int32_t rank) {
        auto& sums = at.sums[static_cast<std::size_t>(rank)];
        std::vector<float> own(count);  // also used by the younger generation
        shm_backend backend{rendezvous};
        const auto reduce = [&](communicator& c, float value, float sum) {
          std::shared_ptr<void> given;
          if (registered) given = c.allocate(count * sizeof(float));
          auto* data = registered ? static_cast<float*>(given.get()) : own.data();
          std::fill(data, data + count, value);
          c.all_reduce({data, count, dtype::f32}, reduction::sum)->wait();
          expect(std::count(data, data + count, sum) == std::ptrdiff_t{count}, "the sum");
          ++sums;
        };
        {
          const auto old = open(backend, rank, 3, 1, std::chrono::seconds{1});
          const auto text = text_of<std::exception>([&] {
            for (float i = 0;; ++i) reduce(*old, i + static_cast<float>(rank), 3 * i + 3);
          });
          expect(has(text, "waited 1 s for rank 1"), text);
        }
        if (rank == 1) return;
        const auto young = open(backend, rank / 2, 2, 2);
        sums = 1000;
        for (float i = 0; !young->decide(at.enough, decision::any); ++i)
          reduce(*young, -1000 * (i + static_cast<float>(rank)), -1000 * (2 * i + 2));
      }};
  const auto await = [&](std::size_t rank, int sums) {
    ranks.await(static_cast<std::int32_t>(rank), [&] { return at.sums[rank].load() >= sums; });
  };
  await(1, 5);
  kill(ranks.pid(1), SIGSTOP);
  for (const std::size_t rank : {0, 2}) await(rank, 1003);
  kill(ranks.pid(1), SIGCONT);
  CHECK(ranks.end(1) == 0);
  const int now = at.sums[0].load();
  for (const std::size_t rank : {0, 2}) await(rank, now + 3);
  at.enough = true;
  CHECK(ranks.end(0) == 0);
  CHECK(ranks.end(2) == 0);
  munmap(&at, sizeof(progress));
}

TEST_CASE("a rank that wakes up late writes nothing into the memory of a later generation") {
  go_on_without(false);
  go_on_without(true);
}

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  auto* open = opendir(folder);
  while (readdir(open)) ++count;
  closedir(open);
  return count;
}

std::size_t mappings() {
  std::ifstream file{"/proc/self/maps"};
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}, '\n'));
}

TEST_CASE("a thousand generations of two processes leak nothing") {
  const auto rendezvous = small_rendezvous();
  const auto empty = file_bytes(rendezvous);
  rank_processes ranks{2, [&](std::int32_t rank) {
                         shm_backend backend{rendezvous};
                         std::array<std::size_t, 4> before{};
                         for (std::uint64_t generation = 1; generation <= 1000; ++generation) {
                           {
                             const auto c = open(backend, rank, 2, generation);
                             const auto memory = c->allocate(100000);
                             auto* data = static_cast<float*>(memory.get());
                             std::fill(data, data + 25000, 1.0f);
                             c->all_reduce({data, 25000, dtype::f32}, reduction::sum)->wait();
                             expect(data[24999] == 2.0f, "the sum");
                           }
                           if (generation != 50 && generation != 1000) continue;
                           // A joined thread leaves /proc a bit later. A leaked one ends the time.
                           while (generation == 1000 && entries("/proc/self/task") > before[1])
                             std::this_thread::yield();
                           const std::array<std::size_t, 4> now{entries("/proc/self/fd"),
                                                                entries("/proc/self/task"),
                                                                mappings(), mallinfo2().uordblks};
                           if (generation == 50) before = now;
                           expect(now[0] == before[0], "no leaked descriptor");
                           expect(now[2] <= before[2] + 2 || maps_by_itself, "no leaked mapping");
                           expect(now[3] <= before[3] + 4096, "no leaked memory");
                         }
                       }};
  CHECK(ranks.end(0) == 0);
  CHECK(ranks.end(1) == 0);
  CHECK(file_bytes(rendezvous) == empty);
}

TEST_CASE("a process is killed with memory of a generation that it left: the file releases it") {
  const auto rendezvous = small_rendezvous();
  const auto empty = file_bytes(rendezvous);
  std::array<int, 2> left{};
  REQUIRE(pipe(left.data()) == 0);
  rank_processes holder{2, [&](std::int32_t rank) {
                          shm_backend backend{rendezvous};
                          auto c = open(backend, rank, 2);
                          const auto memory = rank == 0 ? c->allocate(1 << 20) : nullptr;
                          c->barrier("both are there")->wait();
                          c.reset();
                          char byte = 0;
                          if (rank == 1) return expect(write(left[1], "x", 1) == 1, "a byte");
                          expect(read(left[0], &byte, 1) == 1, "rank 1 has left, too");
                          std::memset(memory.get(), 7, 1 << 20);
                          raise(SIGKILL);
                        }};
  CHECK(holder.end(0) == -SIGKILL);
  CHECK(holder.end(1) == 0);
  for (const int end : left) close(end);
  rank_processes next{2, [&](std::int32_t rank) {
                        shm_backend backend{rendezvous};
                        open(backend, rank, 2, 2)->barrier("both")->wait();
                      }};
  for (const std::int32_t rank : {0, 1}) CHECK(next.end(rank) == 0);
  CHECK(file_bytes(rendezvous) == empty);
}

// Its first thread ends; another one reports its life and waits for the signal.
[[noreturn]] void live_without_first_thread(int to) {
  std::thread{[to] {
    const auto self = process_life::own();
    expect(write(to, &self, sizeof self) == sizeof self, "the test process is notified");
    for (;;) pause();
  }}.detach();
  syscall(SYS_exit, 0);
  std::abort();
}

char state_of(pid_t pid) {
  std::ifstream file{"/proc/" + std::to_string(pid) + "/stat"};
  std::string text;
  std::getline(file, text);
  return text.at(text.rfind(')') + 2);
}

TEST_CASE("a process whose first thread has ended is neither exiting nor over until it is killed") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  rank_processes alone{1, [&](std::int32_t) { live_without_first_thread(ends[1]); }};
  process_life life;
  REQUIRE(read(ends[0], &life, sizeof life) == sizeof life);
  alone.await(0, [&] { return state_of(alone.pid(0)) == 'Z'; });
  CHECK_FALSE(life.exiting());
  CHECK_FALSE(life.over());
  kill(alone.pid(0), SIGKILL);
  while (!life.over()) std::this_thread::yield();
  CHECK(alone.end(0) == -SIGKILL);
  CHECK(life.over());
  CHECK_FALSE(life.exiting());  // there is no such process any more
  for (const int end : ends) close(end);
}

TEST_CASE("a file size limit gives an error that names the limit instead of a signal") {
  rank_processes limited{1, [&](std::int32_t) {
                           const rlimit small{1 << 20, 1 << 20};
                           expect(setrlimit(RLIMIT_FSIZE, &small) == 0, "a limit");
                           const auto text = text_of<user_error>([] {
                             shm_backend backend{shm_rendezvous::create()};
                             open(backend, 0, 2);
                           });
                           expect(has(text, "ulimit -f unlimited"), text);
                         }};
  CHECK(limited.end(0) == 0);
}

TEST_CASE("no more shared memory: ranks still reduce and the error names the subgroup's state") {
  const auto rendezvous = small_rendezvous();
  rank_processes ranks{
      3, [&](std::int32_t rank) {
        shm_backend backend{rendezvous};
        const auto c = open(backend, rank, 3);
        c->barrier("all have what they need")->wait();
        if (rank == 1) {
          const rlimit full{1 << 20, 1 << 20};
          expect(setrlimit(RLIMIT_FSIZE, &full) == 0, "a full file system");
        }
        const auto memory = c->allocate(std::size_t{5} << 20);  // on rank 1 this is ordinary memory
        auto* data = static_cast<float*>(memory.get());
        constexpr std::size_t count = (std::size_t{5} << 20) / sizeof(float);
        for (int round = 0; round < 3; ++round) {
          std::fill(data, data + count, 1.0f);
          c->all_reduce({data, count, dtype::f32}, reduction::sum)->wait();
          expect(std::count(data, data + count, 3.0f) == static_cast<std::ptrdiff_t>(count), "sum");
        }
        if (rank == 1) {
          const auto text = text_of<user_error>([&] { c->barrier("new", {}, {{1, 2}}); });
          expect(has(text, "a subgroup's state"), text);
        }
        c->barrier("the world still meets")->wait();
      }};
  for (std::int32_t rank = 0; rank < 3; ++rank) CHECK(ranks.end(rank) == 0);
}

// Mounts a file system of 2 MiB that only this process sees. Returns false if that is not allowed.
bool mount_small_file_system(const char* where) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", where, "tmpfs", 0, "size=2m") == 0;
}

TEST_CASE("a full shared memory file system gives an error with the cause and a remedy") {
  constexpr int not_allowed = 77;
  rank_processes alone{
      1, [&](std::int32_t) {
        if (!mount_small_file_system("/tmp")) _exit(not_allowed);
        const file_descriptor file{::open("/tmp/region", O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
        expect(file.get() >= 0, "a file");
        constexpr std::size_t slot_bytes = std::size_t{512} << 10;
        const shm::region memory{file.get(), 0, {2, slot_bytes, std::size_t{64} << 20}, false};
        memory.reserve_seat(0, 0);
        const auto fill = [&](int value) {
          for (std::uint64_t set = 0; set < shm::slot_sets; ++set)
            std::memset(memory.slot(0, 0, set), value, slot_bytes);
        };
        fill(1);
        const auto text = text_of<user_error>([&] { memory.reserve_seat(0, 1); });
        expect(has(text, "1572864 bytes of shared memory for a rank's slots"), text);
        expect(has(text, std::strerror(ENOSPC)), text);
        expect(has(text, "give the job more memory or use fewer ranks"), text);
        expect(!memory.reserve_registered(memory.layout().registered(0), std::size_t{4} << 20),
               "no error where ordinary memory can be used");
        fill(2);
        expect(*memory.slot(0, 0, 2) == std::byte{2}, "existing slots still work");
      }};
  const auto end = alone.end(0);
  if (end == not_allowed) {
    WARN("SKIPPED: this process is not allowed to mount a file system");
    return;
  }
  CHECK(end == 0);
}

TEST_CASE("too little address space gives an error that says what to change") {
  if (maps_by_itself) {
    WARN("SKIPPED: AddressSanitizer needs more address space");
    return;
  }
  rank_processes limited{1, [&](std::int32_t) {
                           const rlimit small{rlim_t{4} << 30, rlim_t{4} << 30};
                           expect(setrlimit(RLIMIT_AS, &small) == 0, "a limit");
                           shm_backend backend{shm_rendezvous::create()};
                           const auto text = text_of<user_error>([&] { open(backend, 0, 2); });
                           expect(has(text, "fewer registered_bytes"), text);
                           expect(has(text, "use --communicator tcp"), text);
                         }};
  CHECK(limited.end(0) == 0);
}

TEST_CASE("a rank that cannot map its memory ends the other ranks although its process lives") {
  if (maps_by_itself) {
    WARN("SKIPPED: AddressSanitizer needs more address space");
    return;
  }
  const auto late = GENERATE(false, true);  // rank 1 opens before the others, or after them
  const auto rendezvous = shm_rendezvous::create({.registered_bytes = std::size_t{2} << 30});
  std::array<int, 2> opened{};  // each pipe is written by one side and read by the other
  std::array<int, 2> refused{};
  REQUIRE((pipe(opened.data()) == 0 && pipe(refused.data()) == 0));
  const auto answer = [](const std::array<int, 2>& from) {
    char byte = 0;
    expect(read(from[0], &byte, 1) == 1, "a byte from the other side");
  };
  rank_processes ranks{
      3, [&](std::int32_t rank) {
        close(rank == 1 ? opened[1] : refused[1]);
        shm_backend backend{rendezvous};
        if (rank == 1) {
          for (int i = 0; late && i < 2; ++i) answer(opened);
          const rlimit small{rlim_t{1} << 30, rlim_t{1} << 30};
          expect(setrlimit(RLIMIT_AS, &small) == 0, "a limit");
          const auto text = text_of<user_error>([&] { open(backend, 1, 3); });
          expect(has(text, "fewer registered_bytes"), text);
          expect(write(refused[1], "xx", 2) == 2, "the other ranks are notified");
          for (;;) pause();
        }
        if (!late) answer(refused);
        const auto c = open(backend, rank, 3);  // without any deadline
        if (late) expect(write(opened[1], "x", 1) == 1, "rank 1 is notified");
        const auto text = text_of<generation_closed>([&] { c->barrier("all")->wait(); });
        expect(has(text, late ? "rank 1 could not open its communicator: shm: no "
                              : "generation 1 is over: the ranks that opened it have left"),
               text);
        expect(!late || has(text, "fewer registered_bytes"), text);
      }};
  close(opened[1]);
  close(refused[1]);
  CHECK(ranks.end(0) == 0);
  CHECK(ranks.end(2) == 0);
  kill(ranks.pid(1), SIGKILL);
  CHECK(ranks.end(1) == -SIGKILL);
  close(opened[0]);
  close(refused[0]);
}

TEST_CASE("processes without a launcher find each other by a name") {
  const auto key = "a test's key " + std::to_string(getpid());
  rank_processes ranks{
      3, [&](std::int32_t rank) {
        shm_backend backend{shm_rendezvous::by_name(key, std::chrono::minutes{1}, small_sizes)};
        const auto c = open(backend, rank, 3);
        std::vector<float> data(10, 1.0f);
        c->all_reduce({data.data(), 10, dtype::f32}, reduction::sum)->wait();
        expect(data[9] == 3.0f, "the sum");
        c->barrier("the first one answers until all have met")->wait();
      }};
  for (std::int32_t rank = 0; rank < 3; ++rank) CHECK(ranks.end(rank) == 0);
}

}  // namespace
}  // namespace troupe::testing
