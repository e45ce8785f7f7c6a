#include "backends/torch/lane_thread.hpp"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include "messages/failure.hpp"

namespace troupe {

namespace {

/// The OpenMP runtime that LibTorch itself uses: a program may hold several, and setting another's
/// number changes nothing.
class openmp {
public:
  openmp()
      : get_(find<int (*)()>("omp_get_max_threads")),
        set_(find<void (*)(int)>("omp_set_num_threads")) {}
  int threads() const { return get_(); }
  void set_threads(int n) const { set_(n); }

private:
  template <class Function>
  static Function find(const char* name) {
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void* found = dlsym(torch ? torch : RTLD_DEFAULT, name);
    if (torch) dlclose(torch);
    if (!found)
      throw internal_error("LibTorch was built without OpenMP: a rank's thread cannot be set up");
    return reinterpret_cast<Function>(found);
  }

  int (*get_)();
  void (*set_)(int);
};

}  // namespace

lane_thread::lane_thread() {
  // The first question in a thread makes LibTorch set the thread's number, so ours comes after it.
  at::get_num_threads();
  const openmp runtime;
  before_ = runtime.threads();
  runtime.set_threads(1);
}

lane_thread::~lane_thread() { openmp{}.set_threads(before_); }

}  // namespace troupe
