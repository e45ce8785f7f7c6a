// A program: trains the module on two ranks, then tests it.
#include <iostream>
#include <troupe/troupe.hpp>

#include "apps/examples/classifier.hpp"

int main() {
  auto data = troupe::synthetic();  // troupe::fashion_mnist() reads the Debian package
  troupe::trainer trainer{{.ranks = 2, .max_epochs = 2}};
  auto fitted = trainer.fit<classifier>(data, 32);  // a value or the first failure, never a hang
  fitted.rethrow();                                 // the original exception, if there was one
  auto tested = trainer.test<classifier>(data, 32);
  tested.rethrow();
  std::cout << "steps " << fitted.loop.steps << ", test accuracy "
            << tested.last.at("test/accuracy") << '\n';
}
