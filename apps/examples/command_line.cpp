// A program with the command line of `troupe`, for a model and data of its own:
//
//   example_command_line fit --ranks 4 --set model.hidden=32 --set data.samples=1024
#include <troupe/data.hpp>
#include <troupe/main.hpp>

#include "apps/examples/classifier_recipe.hpp"

namespace {

struct blob_settings {
  std::int64_t samples = 512;  // of training
  double spread = 1;
  template <class F>
  void fields(F&& f) {
    f("samples", samples), f("spread", spread);
  }
};

troupe::data_ptr blobs(const blob_settings& how) {
  return troupe::synthetic({.samples = how.samples, .evaluation = 100, .spread = how.spread});
}

}  // namespace

int main(int count, char** arguments) {
  return troupe::application{}
      .model<classifier_sizes>("classifier", "one hidden layer", make_classifier)
      .data<blob_settings>("blobs", "made-up images in 10 classes", blobs)
      .run(count, arguments);
}
