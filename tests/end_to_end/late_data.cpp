// A program with a data set that is usable only after `setup`: before, its getters throw. Its fits
// keep three checkpoints, by a callback.
#include <troupe/callback.hpp>
#include <troupe/data.hpp>
#include <troupe/main.hpp>
#include <troupe/strategy.hpp>

#include "apps/examples/classifier_recipe.hpp"

#include <mutex>
#include <set>
#include <stdexcept>

namespace {

using troupe::stage;

struct late_settings {
  bool has_test = true;
  bool has_train = true;
  bool fails = false;  // in `setup` for a test
  std::int64_t evaluation = 40;
  std::int64_t batch_size = 0;  // in training; 0: the job's
  bool drop_last = false;
  template <class F>
  void fields(F&& f) {
    f("has_test", has_test), f("has_train", has_train), f("fails", fails),
        f("evaluation", evaluation), f("batch_size", batch_size), f("drop_last", drop_last);
  }
};

class late_data : public troupe::data_module {
public:
  explicit late_data(const late_settings& how)
      : how_(how), all_(troupe::synthetic({.samples = 64, .evaluation = how.evaluation})) {}

  void setup(stage purpose) override {
    if (purpose == stage::test && how_.fails) throw std::runtime_error("the test lies elsewhere");
    const std::lock_guard hold{guard_};
    ready_.insert(purpose);
  }
  troupe::dataset_ptr train() override {
    auto all = after_setup(stage::train).train();
    return how_.has_train ? all : nullptr;
  }
  std::vector<troupe::dataset_ptr> validation() override {
    return after_setup(stage::train, stage::validate).validation();
  }
  std::vector<troupe::dataset_ptr> test() override {
    auto all = after_setup(stage::test).test();
    if (!how_.has_test) all.clear();
    return all;
  }
  std::vector<troupe::dataset_ptr> predict() override {
    return after_setup(stage::predict).predict();
  }
  troupe::data_loading loading(stage purpose, std::int32_t) override {
    troupe::data_loading all{.drop_last = how_.drop_last};
    if (purpose == stage::train && how_.batch_size > 0) all.batch_size = how_.batch_size;
    return all;
  }

private:
  template <class... Purposes>
  troupe::data_module& after_setup(Purposes... of) {
    const std::lock_guard hold{guard_};
    if (!(ready_.contains(of) || ...)) throw std::logic_error("a getter before its setup");
    return *all_;
  }

  const late_settings how_;
  const troupe::data_ptr all_;
  std::mutex guard_;
  std::set<stage> ready_;
};

}  // namespace

int main(int count, char** arguments) {
  return troupe::application{}
      .model<classifier_sizes>("classifier", "one hidden layer", make_classifier)
      .data<late_settings>("late", "images that need a setup",
                           [](const late_settings& how) -> troupe::data_ptr {
                             return std::make_shared<late_data>(how);
                           })
      .plugins([](troupe::torch_plugins& p) {
        p.callbacks = {troupe::model_checkpoint{{.keep_last = 3}}};
      })
      .run(count, arguments);
}
