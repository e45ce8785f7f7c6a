// Goal: our programs' allocator keeps what is freed, for every thread.
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/support/catch.hpp"

namespace {

constexpr int rounds = 4;

long faults() {
  rusage now{};
  getrusage(RUSAGE_THREAD, &now);
  return now.ru_minflt;
}

// Page faults of this thread while it takes 80 MiB, writes them and lets go of them again: more
// than glibc by itself ever keeps, and more than one heap of a thread's own arena has room for.
long faults_of_rounds() {
  constexpr std::size_t bytes = std::size_t{80} << 20;
  long before = 0;
  for (int i = 0; i <= rounds; ++i) {
    if (i == 1) before = faults();  // the first is fresh in any case
    auto* volatile block = std::malloc(bytes);
    std::memset(block, i, bytes);
    std::free(block);
  }
  return faults() - before;
}

long on_a_thread() {
  long counted = 0;
  std::thread{[&] { counted = faults_of_rounds(); }}.join();
  return counted;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("the main thread and rank threads keep freed memory for reuse", "[memory]") {
  // glibc by itself has 160 here, where a fault brings 2 MiB, or 82,000 of 4 KiB.
  CHECK(faults_of_rounds() < rounds);
  CHECK(on_a_thread() < rounds);
}
#endif
