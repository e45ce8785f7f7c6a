#include "backends/torch/lane_thread.hpp"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <cstdint>

namespace troupe {

namespace {

/// A function of LibTorch, or of a library that it loaded; null if there is none.
void* function_of_torch(const char* name) {
  void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* function = dlsym(torch ? torch : RTLD_DEFAULT, name);
  if (torch) dlclose(torch);
  return function;
}

/// oneMKL 2024.2, which LibTorch 2.13 contains, detects the processor in the process's first call
/// of a vector function. It stores an unfinished value for a moment. A thread that reads
/// this value computes one call with a kernel of lower accuracy (pytorch/pytorch#188792). With Adam
/// that call is its square root, which all ranks of a process reach at the same time. So the first
/// call is made here, once, while the program loads: before any lane, and before threads of the
/// host.
struct vector_functions_ready {
  vector_functions_ready() {
    constexpr std::int64_t high_accuracy = 2;
    using square_root = void (*)(int count, const float* in, float* out, std::int64_t mode);
    const float one = 1;
    float root = 0;
    if (const auto call = reinterpret_cast<square_root>(function_of_torch("vmsSqrt")))
      call(1, &one, &root, high_accuracy);
  }
} const made_ready_while_loading;

/// The OpenMP runtime that LibTorch itself uses. A program may contain several, and setting the
/// number of threads of another one has no effect. A LibTorch without OpenMP has none to set.
struct openmp {
  int (*threads)() = nullptr;
  void (*set_threads)(int) = nullptr;

  openmp() {
    threads = reinterpret_cast<int (*)()>(function_of_torch("omp_get_max_threads"));
    set_threads = reinterpret_cast<void (*)(int)>(function_of_torch("omp_set_num_threads"));
  }
  explicit operator bool() const { return threads && set_threads; }
};

}  // namespace

lane_thread::lane_thread() {
  // LibTorch sets a thread's number of threads in the first query, so ours must be set after it.
  at::get_num_threads();
  const openmp runtime;
  if (!runtime) return;
  before_ = runtime.threads();
  runtime.set_threads(1);
}

lane_thread::~lane_thread() {
  const openmp runtime;
  if (runtime && before_ > 0) runtime.set_threads(before_);
}

}  // namespace troupe
