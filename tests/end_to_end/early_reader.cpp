// Preloaded into the program. It causes the race of pytorch/pytorch#188792 in every run; without it
// one run in hundreds is affected. oneMKL's vector functions call this function to get the kind of
// processor. As in oneMKL, the first caller stores an unfinished value and later the final one, and
// every other caller uses the stored value. The first caller continues when another thread has read
// the unfinished value, or after a second.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

constexpr int unknown = -1;
constexpr int unfinished =
    9;  // selects a kernel of low accuracy although high accuracy is requested

std::atomic<int> stored{unknown};
std::atomic<bool> read_too_early{false};

}  // namespace

extern "C" int mkl_vml_serv_cpu_detect() {
  int value = unknown;
  if (!stored.compare_exchange_strong(value, unfinished)) {
    if (value == unfinished) read_too_early = true;
    return value;
  }
  const auto real = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_vml_serv_cpu_detect"));
  const auto final_value = real();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!read_too_early && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  stored = final_value;
  return final_value;
}
