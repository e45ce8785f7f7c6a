#include "tests/support/runner.hpp"

int main(int count, char** arguments) { return troupe::testing::run_tests(count, arguments); }
