// A callback of one's own: it remembers the step with the smallest loss. What it knows is saved
// with the checkpoints, so that a resumed run goes on from it.
#include <iostream>
#include <sstream>
#include <troupe/callback.hpp>
#include <troupe/data.hpp>
#include <troupe/trainer.hpp>

#include "apps/examples/classifier_recipe.hpp"

class smallest_loss : public troupe::callback {
public:
  explicit smallest_loss(std::int32_t rank) : rank_(rank) {}
  bool reads_gradients() const override { return false; }

  void on_train_batch_end(troupe::module&, const troupe::step_output& output, const troupe::batch&,
                          std::int64_t) override {
    ++steps_;
    if (!output.has_loss() || output.loss().item<double>() >= smallest_) return;
    smallest_ = output.loss().item<double>();
    found_in_ = steps_;
  }
  void on_train_end(troupe::module&) override {
    if (rank_ == 0)
      std::cout << "rank 0 had its smallest loss, " << smallest_ << ", in step " << found_in_
                << " of " << steps_ << '\n';
  }

  troupe::callback_state save_state() const override {
    std::ostringstream text;
    text << steps_ << ' ' << found_in_ << ' ' << smallest_;
    return {.json = '"' + text.str() + '"'};
  }
  void load_state(troupe::module&, const troupe::callback_state& from) override {
    std::istringstream{from.json.substr(1)} >> steps_ >> found_in_ >> smallest_;
  }

private:
  std::int32_t rank_;
  std::int64_t steps_ = 0;
  std::int64_t found_in_ = 0;
  double smallest_ = 1e9;
};

int main() {
  const auto of_rank = [](const troupe::learner_context& who) {
    return std::make_shared<smallest_loss>(who.rank);
  };
  troupe::trainer trainer{{.ranks = 2, .max_epochs = 2}};
  trainer.run(troupe::stage::train, classifier_on(troupe::synthetic(), {of_rank})).rethrow();
}
