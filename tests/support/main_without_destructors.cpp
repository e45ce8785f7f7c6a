// The main function of test programs with LibTorch, whose destructors take as long as a short test.
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "tests/support/runner.hpp"

int main(int count, char** arguments) {
  const auto code = troupe::testing::run_tests(count, arguments);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they report when they end
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
#else
  return code;
#endif
}
