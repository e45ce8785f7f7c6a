// Goal: after the death of ranks that are processes, the other ranks and new processes form the
// next generations from the same backends and rendezvous, for every communicator between processes.
#include "tests/conformance/replaceable_ranks.hpp"
#include "tests/support/sanitized.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

using act = rank_order::act;

constexpr std::size_t large = std::size_t{12} << 20;
constexpr std::size_t small = std::size_t{200} << 10;

std::string kind_of_case() { return GENERATE("shm", "tcp", "hier"); }

std::string name_of(std::int32_t rank) { return "rank " + std::to_string(rank); }

// All ranks are in the middle of large sums.
void set_to_work(replaceable_ranks& ranks, bool registered) {
  ranks.all({.what = act::reduce, .bytes = large, .registered = registered}, "at work");
}

void check_closed(replaceable_ranks& ranks, std::int32_t rank, const std::string& part) {
  INFO("rank " << rank);
  const std::string text = ranks.next_report(rank).text.data();
  CHECK_THAT(text, Catch::StartsWith("closed: "));
  CHECK_THAT(text, Catch::Contains(part));
}

void check_sums(replaceable_ranks& ranks) {
  for (const bool registered : {false, true})
    ranks.all({.what = act::sum, .bytes = large, .registered = registered}, "ok");
  ranks.all({.what = act::sum, .bytes = small}, "ok");
}

TEST_CASE("a rank killed in a large sum is replaced: the next generation has the right sums") {
  const auto kind = kind_of_case();
  const std::int32_t victim = GENERATE(0, 2);
  CAPTURE(kind, victim);
  replaceable_ranks ranks{kind, 3};
  ranks.start_all();
  for (std::uint64_t generation = 1; generation <= (sanitized ? 2 : 3); ++generation) {
    ranks.all({.what = act::open, .generation = generation}, "opened");
    check_sums(ranks);
    set_to_work(ranks, generation % 2 == 0);
    ranks.signal(victim, SIGKILL);
    for (std::int32_t rank = 0; rank < ranks.world(); ++rank)
      if (rank != victim) check_closed(ranks, rank, name_of(victim) + " is lost: ");
    ranks.start(victim);
  }
}

enum class moment { before_open, in_open, after_open };

// The supervisor of a job notices the death and closes the generation, as the test does here.
TEST_CASE("a new process is killed while it opens: the generation after that works") {
  const auto kind = kind_of_case();
  const std::int32_t victim = sanitized ? 0 : GENERATE(0, 2);
  const auto when = GENERATE(moment::before_open, moment::in_open, moment::after_open);
  CAPTURE(kind, victim, static_cast<int>(when));
  replaceable_ranks ranks{kind, 3};
  ranks.start_all();
  ranks.all({.what = act::open, .generation = 1}, "opened");
  set_to_work(ranks, true);
  ranks.signal(victim, SIGKILL);
  for (std::int32_t rank = 0; rank < ranks.world(); ++rank)
    if (rank != victim) check_closed(ranks, rank, name_of(victim) + " is lost: ");

  ranks.start(victim);
  if (when != moment::before_open) ranks.order(victim, {.what = act::open, .generation = 2});
  if (when == moment::after_open)
    REQUIRE(ranks.next_report(victim).text.data() == std::string{"opened"});
  ranks.all({.what = act::open, .generation = 2}, "opened", victim);
  for (std::int32_t rank = 0; rank < ranks.world(); ++rank)
    if (rank != victim) ranks.order(rank, {.what = act::sum, .bytes = large});
  ranks.signal(victim, SIGKILL);
  // shm sees the process that has opened by itself. A connection of tcp or hier may not exist yet.
  if (when != moment::after_open || kind != "shm")
    for (std::int32_t rank = 0; rank < ranks.world(); ++rank)
      if (rank != victim) ranks.order(rank, {.what = act::abort});
  for (std::int32_t rank = 0; rank < ranks.world(); ++rank)
    if (rank != victim) check_closed(ranks, rank, "");

  ranks.start(victim);
  ranks.all({.what = act::open, .generation = 3}, "opened");
  check_sums(ranks);
}

TEST_CASE("two ranks are killed at once and replaced: the next generation has the right sums") {
  const auto kind = kind_of_case();
  CAPTURE(kind);
  replaceable_ranks ranks{kind, 4};
  ranks.start_all();
  ranks.all({.what = act::open, .generation = 1}, "opened");
  set_to_work(ranks, true);
  for (const std::int32_t victim : {0, 2}) ranks.signal(victim, SIGKILL);
  for (const std::int32_t rank : {1, 3}) check_closed(ranks, rank, " is lost: ");
  for (const std::int32_t victim : {2, 0}) ranks.start(victim);
  ranks.all({.what = act::open, .generation = 2}, "opened");
  check_sums(ranks);
  ranks.all({.what = act::forget}, "forgotten");
  check_sums(ranks);
}

// The stopped process may be inside a sum of generation 1, so generation 1 need not be quiescent.
TEST_CASE("a stopped rank is replaced, wakes up, and does not disturb the next generation") {
  const auto kind = kind_of_case();
  const std::int32_t victim = GENERATE(0, 2);
  CAPTURE(kind, victim);
  replaceable_ranks ranks{kind, 3};
  ranks.start_all();
  ranks.all({.what = act::open, .generation = 1}, "opened");
  set_to_work(ranks, true);
  ranks.signal(victim, SIGSTOP);
  for (std::int32_t rank = 0; rank < ranks.world(); ++rank)
    if (rank != victim) ranks.order(rank, {.what = act::abort});
  for (std::int32_t rank = 0; rank < ranks.world(); ++rank)
    if (rank != victim) check_closed(ranks, rank, "the test ends this generation");
  auto old = ranks.take(victim);
  ranks.start(victim);
  ranks.all({.what = act::open, .generation = 2}, "opened");
  check_sums(ranks);

  REQUIRE(kill(old.pid, SIGCONT) == 0);
  CHECK_THAT(ranks.next_report(old).text.data(), Catch::StartsWith("closed: the test ends"));
  replaceable_ranks::order(old, {.what = act::open, .generation = 1});
  CHECK_THAT(ranks.next_report(old).text.data(),
             Catch::StartsWith("error: generation 1 of job 3: "));
  check_sums(ranks);
  ranks.reap(old);
  ranks.all({.what = act::forget}, "forgotten");
  check_sums(ranks);
}

// The memory of the files that ranks inherit.
std::int64_t file_bytes(const rendezvous& place) {
  std::int64_t bytes = 0;
  for (const auto file : place.descriptors()) {
    struct stat about {};
    REQUIRE(fstat(file, &about) == 0);
    bytes += about.st_blocks * 512;
  }
  return bytes;
}

std::int64_t own_descriptors() {
  int count = 0;
  for (int one = 0; one < 1024; ++one) count += fcntl(one, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

struct figures {
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t mappings = 0;
  std::int64_t heap = 0;
  std::int64_t file = 0;
  std::int64_t here = 0;  ///< descriptors of this process
};

figures figures_now(replaceable_ranks& ranks, std::int32_t rank) {
  ranks.order(rank, {.what = act::measure});
  const auto of = ranks.next_report(rank);
  return {of.descriptors,   of.threads, of.mappings, of.heap, file_bytes(ranks.place()),
          own_descriptors()};
}

figures least_of(const figures& a, const figures& b) {
  return {std::min(a.descriptors, b.descriptors),
          std::min(a.threads, b.threads),
          std::min(a.mappings, b.mappings),
          std::min(a.heap, b.heap),
          std::min(a.file, b.file),
          std::min(a.here, b.here)};
}

void print(const std::string& name, const figures& all) {
  const std::array<std::int64_t, 5> numbers{all.descriptors, all.threads, all.mappings,
                                            all.heap >> 10, all.file >> 10};
  std::printf("%s: descriptors, threads, mappings, heap KiB, shared files KiB:", name.c_str());
  for (const auto number : numbers) std::printf(" %lld", static_cast<long long>(number));
  std::printf("\n");
}

// Rank 1 is killed in the middle of a reduction of every generation, and replaced. Figures are the
// least of five generations: a rank may still close what belongs to the generation before.
void replace_for_ever(const std::string& kind, std::int64_t generations) {
  constexpr std::int64_t warm = 20;
  constexpr std::int64_t samples = 5;
  replaceable_ranks ranks{kind, 3};
  ranks.start_all();
  figures before;
  figures after;
  const auto last = warm + generations;
  for (std::int64_t generation = 1; generation <= last; ++generation) {
    ranks.all({.what = act::open, .generation = static_cast<std::uint64_t>(generation)}, "opened");
    ranks.all({.what = act::forget}, "forgotten");
    ranks.all({.what = act::reduce, .bytes = small, .registered = generation % 2 == 0}, "at work");
    ranks.signal(1, SIGKILL);
    for (const std::int32_t rank : {0, 2}) check_closed(ranks, rank, "rank 1 is lost: ");
    ranks.start(1);
    for (const auto& [until, least] : {std::pair{warm, &before}, std::pair{last, &after}})
      if (generation == until - samples)
        *least = figures_now(ranks, 2);
      else if (generation > until - samples && generation <= until)
        *least = least_of(*least, figures_now(ranks, 2));
  }
  print(kind + " before", before);
  print(kind + " after " + std::to_string(generations), after);
  // Fewer are no leak: before, a rank may have had something of an older generation still open. On
  // a loaded machine one may be open in each of the samples (hier: one run of some hundred).
  constexpr std::int64_t closing = 3;
  CHECK(after.descriptors <= before.descriptors + closing);
  CHECK(after.threads <= before.threads + closing);
  // Far less than one per generation: the allocator of a sanitizer maps some as it goes.
  CHECK(after.mappings <= before.mappings + 20);
  CHECK(after.heap <= before.heap + 65536 + 64 * generations);
  CHECK(after.file <= before.file + (std::int64_t{1} << 20));
  CHECK(after.here <= before.here);
}

TEST_CASE("generations in which a rank is killed leak nothing", "[generations]") {
  const auto kind = kind_of_case();
  CAPTURE(kind);
  replace_for_ever(kind, 60);
}

TEST_CASE("a thousand generations in which a rank is killed leak nothing", "[.minutes]") {
  const auto kind = kind_of_case();
  CAPTURE(kind);
  replace_for_ever(kind, 1000);
}

// How long after the kill the last survivor left the sum, and the process ended for its parent.
struct delays {
  double survivors_ms = 0;
  double ended_ms = 0;
};

delays time_a_kill(replaceable_ranks& ranks, std::uint64_t generation, std::size_t resident) {
  constexpr std::int32_t victim = 1;
  ranks.all({.what = act::open, .generation = generation}, "opened");
  ranks.order(victim, {.what = act::fill, .bytes = resident});
  REQUIRE(ranks.next_report(victim).text.data() == std::string{"filled"});
  ranks.all({.what = act::reduce, .bytes = large, .registered = true}, "at work");
  const file_descriptor life{static_cast<int>(syscall(SYS_pidfd_open, ranks.pid(victim), 0))};
  const auto begun = replaceable_ranks::clock::now();
  const auto since = [&](std::int64_t at) {
    return static_cast<double>(at - begun.time_since_epoch().count()) / 1e6;
  };
  ranks.signal(victim, SIGKILL);
  delays took;
  pollfd ended{life.get(), POLLIN, 0};
  REQUIRE(poll(&ended, 1, 60'000) == 1);
  took.ended_ms = since(replaceable_ranks::clock::now().time_since_epoch().count());
  for (const std::int32_t rank : {0, 2}) {
    const auto said = ranks.next_report(rank);
    REQUIRE_THAT(said.text.data(), Catch::Contains("rank 1 is lost: "));
    took.survivors_ms = std::max(took.survivors_ms, since(said.at));
  }
  ranks.start(victim);
  return took;
}

// A loaded machine may keep a survivor from looking while the process ends, so one of five counts.
TEST_CASE("shm: survivors leave before the kernel has freed a dead rank's memory") {
  replaceable_ranks ranks{"shm", 3};
  ranks.start_all();
  bool sooner = false;
  for (std::uint64_t generation = 1; generation <= 5 && !sooner; ++generation) {
    const auto took = time_a_kill(ranks, generation, std::size_t{1} << 30);
    CAPTURE(took.survivors_ms, took.ended_ms);
    sooner = took.survivors_ms < 0.6 * took.ended_ms;
  }
  CHECK(sooner);
}

TEST_CASE("milliseconds from a kill to the last survivor", "[.timing]") {
  const auto kind = kind_of_case();
  const std::size_t resident = GENERATE(std::size_t{0}, std::size_t{1} << 30);
  replaceable_ranks ranks{kind, 3};
  ranks.start_all();
  std::vector<double> survivors;
  std::vector<double> ended;
  for (std::uint64_t generation = 1; generation <= 20; ++generation) {
    const auto took = time_a_kill(ranks, generation, resident);
    survivors.push_back(took.survivors_ms);
    ended.push_back(took.ended_ms);
  }
  std::sort(survivors.begin(), survivors.end());
  std::sort(ended.begin(), ended.end());
  std::printf("%s, %zu MiB: survivors median %.1f worst %.1f ms; pidfd median %.1f worst %.1f ms\n",
              kind.c_str(), resident >> 20, survivors[10], survivors.back(), ended[10],
              ended.back());
}

}  // namespace
}  // namespace troupe::testing
