// Goal: what the shm communicator promises beyond the port, tested within one process.
#include "backends/shm/shm.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

std::shared_ptr<communicator> open(shm_backend& backend, std::int32_t rank, std::int32_t world,
                                   std::uint64_t generation = 1, std::uint64_t job = 1) {
  return backend.open(
      {.job = job_id{job}, .generation = generation_id{generation}, .rank = rank, .world = world});
}

TEST_CASE("backends of one rendezvous form a group and those of another do not") {
  const auto rendezvous = shm_rendezvous::create();
  shm_backend one{rendezvous};
  shm_backend two{shm_rendezvous::adopt(rendezvous.descriptor())};
  shm_backend other{shm_rendezvous::create()};
  const auto first = open(one, 0, 2);
  const auto second = open(two, 1, 2);
  const auto stranger = open(other, 1, 2);
  const auto work = first->barrier("x");
  CHECK(stranger->barrier("x")->poll().status == work_status::pending);
  CHECK(work->poll().status == work_status::pending);
  second->barrier("x")->wait();
  work->wait();
}

TEST_CASE("a descriptor that is no rendezvous of this version is refused") {
  CHECK_THROWS_WITH(shm_rendezvous::adopt(-1), Catch::Contains("not open"));
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK_THROWS_WITH(shm_rendezvous::adopt(null), Catch::Contains("something else"));
  close(null);
  const int empty = memfd_create("empty", MFD_CLOEXEC);
  CHECK_THROWS_AS(shm_rendezvous::adopt(empty), user_error);
  REQUIRE(ftruncate(empty, 1 << 20) == 0);
  CHECK_THROWS_AS(shm_rendezvous::adopt(empty), user_error);
  close(empty);
  const auto rendezvous = shm_rendezvous::create();
  const std::uint32_t version = 77;
  REQUIRE(pwrite(rendezvous.descriptor(), &version, sizeof version, 8) == sizeof version);
  CHECK_THROWS_WITH(shm_rendezvous::adopt(rendezvous.descriptor()), Catch::Contains("version 77"));
  CHECK_THROWS_AS(shm_rendezvous::create({.slot_bytes = 100}), std::invalid_argument);
  CHECK_THROWS_AS(shm_rendezvous::by_name("short", std::chrono::seconds{1}), std::invalid_argument);
}

TEST_CASE("a rendezvous is found by its name while a process holds it") {
  const std::string key = fmt::format("found by name {:08}", getpid());
  const auto find = [&] { return shm_rendezvous::find(key, std::chrono::seconds{20}); };
  CHECK_THROWS_WITH(find(),
                    Catch::Contains("does not answer") && Catch::Contains("share its network"));
  {
    const auto held = shm_rendezvous::by_name(key, std::chrono::seconds{20});
    struct stat one {};
    struct stat other {};
    REQUIRE(fstat(held.descriptor(), &one) == 0);
    REQUIRE(fstat(find().descriptor(), &other) == 0);
    CHECK(one.st_ino == other.st_ino);
  }
  CHECK_THROWS_AS(find(), user_error);
}

std::atomic<int> signals_handled{0};

// Interrupts the thread `number`, which asks for the file, in its sleep. Then sends it the file.
void interrupt_and_answer(int listener, pthread_t asking, pid_t number, int file) {
  const int guest = accept(listener, nullptr, nullptr);
  for (int n = 1; n <= 3; ++n) {
    for (char state = 'R'; state != 'S';) {
      std::ifstream about{fmt::format("/proc/self/task/{}/stat", number)};
      std::string text;
      std::getline(about, text);
      state = text.at(text.rfind(')') + 2);
    }
    pthread_kill(asking, SIGUSR1);
    while (signals_handled.load() < n) std::this_thread::yield();
  }
  char byte = 1;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof file)> room{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  auto* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof file);
  std::memcpy(CMSG_DATA(head), &file, sizeof file);
  sendmsg(guest, &message, MSG_NOSIGNAL);
  close(guest);
}

TEST_CASE("signals come while a rank waits for the file of a rendezvous: it still gets it") {
  const std::string key = fmt::format("interrupted now {:08}", getpid());
  const auto name = "troupe-shm-" + key;
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path + 1, name.data(), name.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(bind(listener, reinterpret_cast<const sockaddr*>(&at), length) == 0);
  REQUIRE(listen(listener, 1) == 0);
  struct sigaction before {};
  struct sigaction count {};
  count.sa_handler = [](int) { ++signals_handled; };
  REQUIRE(sigaction(SIGUSR1, &count, &before) == 0);
  const auto made = shm_rendezvous::create();
  std::thread holder{interrupt_and_answer, listener, pthread_self(), gettid(), made.descriptor()};
  std::string text;
  try {
    shm_rendezvous::find(key, std::chrono::seconds{20});
  } catch (const user_error& error) {
    text = error.what();
  }
  // A rank that gave up is not asleep in the kernel any more, but it sleeps in this join.
  holder.join();
  CHECK(text.empty());
  sigaction(SIGUSR1, &before, nullptr);
  close(listener);
}

TEST_CASE("the file of a rendezvous cannot be truncated") {
  const auto rendezvous = shm_rendezvous::create();
  CHECK(ftruncate(rendezvous.descriptor(), 0) != 0);
}

TEST_CASE("a rank that opens a past generation gets an error and disturbs no other rank") {
  shm_backend backend{shm_rendezvous::create()};
  {
    const auto early = open(backend, 0, 2, 4);  // rank 1 never opened it
  }
  const auto given_up = open(backend, 1, 2, 4);
  CHECK(given_up->aborted());
  CHECK_THROWS_WITH(given_up->barrier("x")->wait(),
                    "generation 4 is over: the ranks that opened it have left");
  const auto young = open(backend, 0, 2, 5);
  const auto late = open(backend, 1, 2, 3);
  CHECK(late->aborted());
  CHECK(late->quiescent());
  CHECK_THROWS_WITH(late->barrier("x")->wait(), "generation 3 is over: generation 5 has begun");
  CHECK_FALSE(young->aborted());
  CHECK_FALSE(open(backend, 0, 2, 3, 2)->aborted());  // another job
}

TEST_CASE("a rank that opens an aborted generation gets the abort reason") {
  shm_backend backend{shm_rendezvous::create()};
  const auto first = open(backend, 0, 2);
  first->abort("disk full");
  const auto second = open(backend, 1, 2);
  CHECK(second->aborted());
  CHECK_THROWS_WITH(second->barrier("x")->wait(), "disk full");
}

TEST_CASE("impossible groups are refused and a disagreement on the world ends the group") {
  shm_backend backend{shm_rendezvous::create()};
  CHECK_THROWS_AS(open(backend, 0, 0), std::invalid_argument);
  CHECK_THROWS_AS(open(backend, 2, 2), std::invalid_argument);
  CHECK_THROWS_AS(open(backend, 0, 257), user_error);
  const auto first = open(backend, 0, 2);
  CHECK_THROWS_AS(open(backend, 0, 2), internal_error);
  const auto waiting = first->barrier("x");
  CHECK_THROWS_WITH(open(backend, 1, 3), Catch::Contains("rank 1 says its world is 3"));
  CHECK_THROWS_AS(waiting->wait(), generation_closed);
}

TEST_CASE("a long abort reason is cut and long labels are compared whole") {
  shm_backend backend{shm_rendezvous::create()};
  const auto first = open(backend, 0, 2);
  const auto second = open(backend, 1, 2);
  const auto work = first->barrier(std::string(500, 'a') + "b");
  const auto met = second->barrier(std::string(500, 'a') + "b");
  work->wait();
  met->wait();
  const auto one = first->barrier(std::string(500, 'a') + "b");
  const auto other = second->barrier(std::string(500, 'a') + "c");
  CHECK_THROWS_AS(one->wait(), collective_mismatch);
  CHECK_THROWS_AS(other->wait(), collective_mismatch);
  const auto alone = open(backend, 0, 2, 2);
  alone->abort(std::string(10000, 'z'));
  CHECK(alone->barrier("x")->poll().text == std::string(3072, 'z'));
}

TEST_CASE("too many operations in flight are refused and the rank can continue later") {
  shm_backend backend{shm_rendezvous::create()};
  const auto ahead = open(backend, 0, 2);
  const auto behind = open(backend, 1, 2);
  std::vector<work_ptr> works;
  for (int i = 0; i < 4096; ++i) works.push_back(ahead->barrier("x"));
  CHECK_THROWS_WITH(ahead->barrier("x"), Catch::Contains("4096 operations in flight already"));
  for (int i = 0; i < 4096; ++i) works.push_back(behind->barrier("x"));
  for (const auto& work : works) work->wait();
  const auto work = ahead->barrier("y");
  behind->barrier("y")->wait();
  work->wait();
}

TEST_CASE("too many subgroups are refused") {
  shm_backend backend{shm_rendezvous::create()};
  const auto c = open(backend, 0, 12);
  int opened = 0;
  const auto open_all = [&] {
    for (std::int32_t mask = 1; mask < 1 << 11; ++mask) {
      subgroup some{{0}};
      for (std::int32_t rank = 1; rank < 12; ++rank)
        if ((mask >> (rank - 1) & 1) != 0) some.ranks.push_back(rank);
      if (some.ranks.size() == 12) continue;
      c->barrier("x", std::chrono::nanoseconds{0}, some);
      ++opened;
    }
  };
  CHECK_THROWS_WITH(open_all(), Catch::Contains("64 subgroups, the most there may be"));
  CHECK(opened == 63);
}

std::size_t file_blocks(const shm_rendezvous& rendezvous) {
  struct stat about {};
  REQUIRE(fstat(rendezvous.descriptor(), &about) == 0);
  return static_cast<std::size_t>(about.st_blocks);
}

TEST_CASE("memory from allocate is aligned and returned to the kernel when freed") {
  const auto rendezvous = shm_rendezvous::create();
  shm_backend backend{rendezvous};
  const auto c = open(backend, 0, 2);
  const auto small = c->allocate(1);
  const auto before = file_blocks(rendezvous);
  auto large = c->allocate(std::size_t{8} << 20);
  CHECK(reinterpret_cast<std::uintptr_t>(small.get()) % 64 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(large.get()) % (2u << 20) == 0);
  auto* at = static_cast<std::uint8_t*>(large.get());
  std::fill(at, at + (8u << 20), 7);
  CHECK(std::count(at, at + (8u << 20), 7) == 8 << 20);
  CHECK(file_blocks(rendezvous) == before + (8u << 20) / 512);
  large.reset();
  CHECK(file_blocks(rendezvous) == before);
}

TEST_CASE("all ranks have left a generation: memory from allocate keeps its contents until freed") {
  const auto rendezvous = shm_rendezvous::create();
  const auto empty = file_blocks(rendezvous);
  shm_backend backend{rendezvous};
  constexpr std::size_t bytes = std::size_t{1} << 20;
  std::shared_ptr<void> kept;
  {
    const auto one = open(backend, 0, 2);
    const auto other = open(backend, 1, 2);
    kept = one->allocate(bytes);
    std::memset(kept.get(), 7, bytes);
  }
  const auto* at = static_cast<const std::uint8_t*>(kept.get());
  CHECK(std::count(at, at + bytes, 7) == static_cast<std::ptrdiff_t>(bytes));
  kept.reset();
  CHECK(file_blocks(rendezvous) == empty);
}

// The kernel's entry `what` for the mapping that contains the address; empty if there is none.
std::string said_of(const void* address, const std::string& what) {
  std::ifstream maps{"/proc/self/smaps"};
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) here = begin <= at && at < end;
    if (here && line.rfind(what + ":", 0) == 0) return line.substr(what.size() + 1) + " ";
  }
  return {};
}

TEST_CASE("huge pages are requested as the options say") {
  const auto rendezvous = shm_rendezvous::create();
  shm_backend wishes{rendezvous};
  shm_backend plain{rendezvous, {.huge_pages = false}};
  const auto first = open(wishes, 0, 2);
  const auto second = open(plain, 1, 2);
  const auto wished = first->allocate(std::size_t{8} << 20);
  const auto other = second->allocate(std::size_t{8} << 20);
  const auto bytes = std::size_t{4} << 20;
  auto* probe = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(probe != MAP_FAILED);
  const bool can = madvise(probe, bytes, MADV_HUGEPAGE) == 0;
  const bool shown = said_of(probe, "VmFlags").find(" hg ") != std::string::npos;
  munmap(probe, bytes);
  if (!can || !shown) {
    WARN("SKIPPED: this kernel has no huge pages, or does not show requests for them");
    return;
  }
  CHECK_THAT(said_of(wished.get(), "VmFlags"), Catch::Contains(" hg "));
  CHECK_THAT(said_of(other.get(), "VmFlags"), !Catch::Contains(" hg "));
  std::ifstream allowed{"/sys/kernel/mm/transparent_hugepage/shmem_enabled"};
  std::string word;
  while (allowed >> word)
    if (word == "[always]" || word == "[within_size]" || word == "[advise]" || word == "[force]")
      CHECK_THAT(said_of(wished.get(), "ShmemPmdMapped"), !Catch::Contains(" 0 kB"));
}

}  // namespace
}  // namespace troupe::testing
