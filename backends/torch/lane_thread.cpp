#include "backends/torch/lane_thread.hpp"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace troupe {

namespace {

/// The OpenMP runtime that LibTorch itself uses: a program may hold several, and setting another's
/// number changes nothing. A LibTorch built without OpenMP has no threads to set here.
struct openmp {
  int (*threads)() = nullptr;
  void (*set_threads)(int) = nullptr;

  openmp() {
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void* where = torch ? torch : RTLD_DEFAULT;
    threads = reinterpret_cast<int (*)()>(dlsym(where, "omp_get_max_threads"));
    set_threads = reinterpret_cast<void (*)(int)>(dlsym(where, "omp_set_num_threads"));
    if (torch) dlclose(torch);
  }
  explicit operator bool() const { return threads && set_threads; }
};

}  // namespace

lane_thread::lane_thread() {
  // The first question in a thread makes LibTorch set the thread's number, so ours comes after it.
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
