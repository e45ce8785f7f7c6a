// Preloaded into the program: no file system has symbolic links.
#include <cerrno>

extern "C" int symlink(const char* /*target*/, const char* /*path*/) noexcept {
  errno = EPERM;
  return -1;
}
