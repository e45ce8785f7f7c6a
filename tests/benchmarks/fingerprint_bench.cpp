// Measures what the fingerprint of an operation costs a rank: checking and recording its call,
// publishing it to the other ranks, and comparing theirs with it. For comparison: the least time of
// an in-place sum of 64 KiB by two ranks, in which each adds its half of two arrays and writes
// both.
#include "backends/collective/collective_call.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

using namespace troupe;

constexpr int times = 200'000;
constexpr std::size_t count = 16'384;  // floats: 64 KiB

// Nanoseconds of one `body`, the least of five rounds.
template <class Body>
double nanoseconds(Body&& body) {
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) body(i);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count() / times);
  }
  return least;
}

// Keeps the compiler from removing the computation.
void needed(const void* what) { asm volatile("" : : "g"(what) : "memory"); }

}  // namespace

int main() {
  std::vector<float> mine(count, 1), other(count, 0.5F);
  std::array<collective_call, 2> seats;
  bool same = true;
  const auto fingerprint = nanoseconds([&](int) {
    seats[0] = all_reduce_call({mine.data(), count, dtype::f32}, reduction::sum);
    needed(seats.data());
    seats[1] = seats[0];
    needed(seats.data());
    same = same && seats[0] == seats[1];
    needed(&same);
  });
  const auto sum = nanoseconds([&](int) {
    for (std::size_t i = 0; i < count / 2; ++i) mine[i] = other[i] = mine[i] + other[i];
    needed(mine.data());
    needed(other.data());
  });
  std::printf("fingerprint %.1f ns; half of a sum of 64 KiB of two ranks %.0f ns: %.2f %%\n",
              fingerprint, sum, 100 * fingerprint / sum);
  return same ? 0 : 1;
}
