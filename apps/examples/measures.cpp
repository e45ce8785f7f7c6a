// Measures over all samples of all ranks: accuracy, F1 and which classes are taken for which.
#include <array>
#include <iostream>

#include "apps/examples/classifier.hpp"

namespace measures = troupe::measures;

struct judged : classifier {
  void on_test_epoch_start() override { accuracy.reset(), f1.reset(), taken_for.reset(); }
  troupe::step_output test_step(const troupe::batch& b, int64_t) override {
    const auto scores = net->forward(b[0]);
    for (auto* one : all) one->update(scores, b[1]);
    return {};
  }
  void on_test_epoch_end() override {  // every rank gets the same numbers
    log("test/accuracy", accuracy.compute(*this));
    log("test/f1", f1.compute(*this));
    const auto counts = taken_for.compute(*this);
    log("test/wrong", counts.sum() - counts.trace());
  }

  measures::accuracy accuracy{{.classes = 10, .how = measures::average::micro}};
  measures::f1 f1{{.classes = 10}};
  measures::confusion_matrix taken_for{{.classes = 10}};
  std::array<measures::measure*, 3> all{&accuracy, &f1, &taken_for};
};

int main() {
  const auto data = troupe::synthetic({.evaluation = 333, .spread = 4});
  troupe::trainer trainer{{.ranks = 2, .max_steps = 3}};  // not yet right in all cases
  trainer.fit<judged>(data).rethrow();
  const auto tested = trainer.test<judged>(data);
  tested.rethrow();
  const auto right = 333 - tested.last.at("test/wrong");
  std::cout << "accuracy " << tested.last.at("test/accuracy") << ", f1 "
            << tested.last.at("test/f1") << ", " << right << " of 333 samples are right\n";
}
