// The guard (delivery.hpp): replaces functions of the C library that reach the outside. A program
// that links it calls these first, and so do its shared libraries, among them the C++ library's
// clocks, streams, threads and random_device. Each records the call in its thread's delivery and
// calls the real function.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "apps/testing/delivery.hpp"

namespace {

void seen(const char* call) noexcept {
  auto& now = troupe::testing::delivery::here();
  if (now.watched && !now.breach) now.breach = call;
}

// Resolved at the first call, which may precede every constructor of this program.
template <class Function>
Function* real(std::atomic<Function*>& known, const char* name) noexcept {
  auto* found = known.load(std::memory_order_relaxed);
  if (!found) {
    found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
    if (!found) std::abort();
    known.store(found, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace

// Makes the linker keep all of the library (see CMakeLists.txt).
extern "C" const int troupe_guard_linked = 1;

// Defined by their names in the binary, so that declarations in headers do not conflict.
#define TROUPE_GUARD(result, symbol, label, parameters, arguments)      \
  extern "C" result guard_##symbol parameters noexcept __asm__(#label); \
  result guard_##symbol parameters noexcept {                           \
    using type = result parameters;                                     \
    static constinit std::atomic<type*> known{nullptr};                 \
    seen(#symbol);                                                      \
    return real<type>(known, #label) arguments;                         \
  }
#define TROUPE_GUARD_C(result, symbol, parameters, arguments) \
  TROUPE_GUARD(result, symbol, symbol, parameters, arguments)

// clang-format off
// Clocks, and what waits for them.
TROUPE_GUARD_C(int, clock_gettime, (int clock, void* out), (clock, out))
TROUPE_GUARD_C(int, gettimeofday, (void* out, void* zone), (out, zone))
TROUPE_GUARD_C(long, time, (void* out), (out))
TROUPE_GUARD_C(long, clock, (), ())
TROUPE_GUARD_C(int, timespec_get, (void* out, int base), (out, base))
TROUPE_GUARD_C(int, nanosleep, (const void* t, void* left), (t, left))
TROUPE_GUARD_C(int, clock_nanosleep, (int c, int f, const void* t, void* left), (c, f, t, left))
TROUPE_GUARD_C(int, usleep, (unsigned t), (t))
TROUPE_GUARD_C(unsigned, sleep, (unsigned t), (t))

// Files.
TROUPE_GUARD_C(int, open, (const char* path, int flags, unsigned mode), (path, flags, mode))
TROUPE_GUARD_C(int, open64, (const char* path, int flags, unsigned mode), (path, flags, mode))
TROUPE_GUARD_C(int, openat, (int at, const char* path, int flags, unsigned mode),
               (at, path, flags, mode))
TROUPE_GUARD_C(int, openat64, (int at, const char* path, int flags, unsigned mode),
               (at, path, flags, mode))
TROUPE_GUARD_C(int, creat, (const char* path, unsigned mode), (path, mode))
TROUPE_GUARD_C(void*, fopen, (const char* path, const char* mode), (path, mode))
TROUPE_GUARD_C(void*, fopen64, (const char* path, const char* mode), (path, mode))
TROUPE_GUARD_C(void*, opendir, (const char* path), (path))
TROUPE_GUARD_C(int, stat, (const char* path, void* out), (path, out))
TROUPE_GUARD_C(int, stat64, (const char* path, void* out), (path, out))
TROUPE_GUARD_C(int, lstat, (const char* path, void* out), (path, out))
TROUPE_GUARD_C(int, lstat64, (const char* path, void* out), (path, out))
TROUPE_GUARD_C(int, access, (const char* path, int mode), (path, mode))
TROUPE_GUARD_C(int, unlink, (const char* path), (path))
TROUPE_GUARD_C(int, remove, (const char* path), (path))
TROUPE_GUARD_C(int, rename, (const char* from, const char* to), (from, to))
TROUPE_GUARD_C(int, mkdir, (const char* path, unsigned mode), (path, mode))
TROUPE_GUARD_C(int, rmdir, (const char* path), (path))
TROUPE_GUARD_C(long, readlink, (const char* path, char* out, std::size_t size), (path, out, size))
TROUPE_GUARD_C(char*, getcwd, (char* out, std::size_t size), (out, size))
TROUPE_GUARD_C(int, mkstemp, (char* path), (path))

// The environment, and the identity and location of the process.
TROUPE_GUARD_C(char*, getenv, (const char* name), (name))
TROUPE_GUARD_C(char*, secure_getenv, (const char* name), (name))
TROUPE_GUARD_C(int, gethostname, (char* out, std::size_t size), (out, size))
TROUPE_GUARD_C(int, getpid, (), ())

// Entropy. The C++ library's random_device reads the processor, not the C library.
TROUPE_GUARD_C(long, getrandom, (void* out, std::size_t size, unsigned flags), (out, size, flags))
TROUPE_GUARD_C(int, getentropy, (void* out, std::size_t size), (out, size))
TROUPE_GUARD_C(int, rand, (), ())
TROUPE_GUARD_C(long, random, (), ())
TROUPE_GUARD_C(unsigned, arc4random, (), ())
TROUPE_GUARD_C(unsigned, arc4random_uniform, (unsigned bound), (bound))
TROUPE_GUARD(unsigned, random_device, _ZNSt13random_device9_M_getvalEv, (void* self), (self))

// Threads, processes, sockets.
TROUPE_GUARD_C(int, pthread_create, (void* out, const void* how, void* (*body)(void*), void* with),
               (out, how, body, with))
TROUPE_GUARD_C(int, fork, (), ())
TROUPE_GUARD_C(int, posix_spawn,
               (void* out, const char* path, const void* actions, const void* how,
                void* arguments, void* environment),
               (out, path, actions, how, arguments, environment))
TROUPE_GUARD_C(int, posix_spawnp,
               (void* out, const char* path, const void* actions, const void* how,
                void* arguments, void* environment),
               (out, path, actions, how, arguments, environment))
TROUPE_GUARD_C(int, system, (const char* command), (command))
TROUPE_GUARD_C(int, socket, (int family, int kind, int protocol), (family, kind, protocol))
TROUPE_GUARD_C(int, connect, (int at, const void* to, unsigned size), (at, to, size))
// clang-format on
