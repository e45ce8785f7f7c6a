// The `troupe` program: the built-in models and data sets.
#include <troupe/main.hpp>

int main(int count, char** arguments) {
  return troupe::application{{.name = "troupe"}}.run(count, arguments);
}
