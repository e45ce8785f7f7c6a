// Measures the cost of the control plane, with allocations counted, for 1, 2 and 4 ranks. Usage:
// control_bench [STEPS] [ROUNDS]. Prints one JSON object per line, as `troupe bench control --json`
// does.
#include "apps/bench/control_text.hpp"

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <new>

namespace {
std::atomic<std::int64_t> allocations{0};
}

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (auto* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int count, char** words) {
  troupe::program::control_question what;
  if (count > 1) what.steps = std::atoll(words[1]);
  if (count > 2) what.rounds = std::atoi(words[2]);
  what.allocations = [] { return allocations.load(std::memory_order_relaxed); };
  for (const int ranks : {1, 2, 4}) {
    what.ranks = ranks;
    std::cout << troupe::program::as_json(what, bench_control(what)) << std::endl;
  }
}
