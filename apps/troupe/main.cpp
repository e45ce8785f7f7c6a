// The `troupe` program: the built-in models and data sets.
#include <troupe/main.hpp>

#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  const auto code = troupe::application{{.name = "troupe"}}.run(count, arguments);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they report when they end
  std::fflush(nullptr);
  std::_Exit(code);  // LibTorch's destructors would take longer than a short command
#else
  return code;
#endif
}
