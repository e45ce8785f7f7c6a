#include "backends/torch/fitted_classifier.hpp"

#include <map>
#include <mutex>
#include <optional>

#include "backends/torch/learner_json.hpp"
#include "backends/torch/rank_random.hpp"
#include "troupe/hyper_parameters.hpp"

namespace troupe {

namespace {

// The sizes of data that all ranks of a process share.
class shared_sizes {
public:
  data_sizes of(data_module& data, stage purpose) {
    const std::lock_guard one_reads{guard_};
    const auto found = known_.find(purpose);
    return found != known_.end() ? found->second
                                 : known_.emplace(purpose, sizes_of(data, purpose)).first->second;
  }

private:
  std::mutex guard_;
  std::map<stage, data_sizes> known_;
};

class fitted_classifier : public classifier {
public:
  fitted_classifier(const fitted_options& of, std::shared_ptr<shared_sizes> read)
      : classifier(of.options, layers::later), of_(of), read_(std::move(read)) {}

  // One rank reads for others: what its data draw does not move the generator of its weights.
  void setup(stage purpose) override {
    rank_random draws{0};
    const random_scope scope{draws};
    auto& data = *of_.data;
    sizes_ = known();
    if (sizes_) check_features(data, sizes_->features, purpose);
    if (find_model(of_.options.model).reads_images) check_images(data, of_.options.model, purpose);
    if (!sizes_) sizes_ = read_->of(data, of_.of_files && data.train() ? stage::train : purpose);
    save_hyperparameters(*sizes_);
  }

  // Without `setup` where a process warms up for later.
  void configure_model() override {
    if (sizes_) make_layers(sizes_->features, sizes_->classes);
  }

private:
  // Those of the weights that are evaluated, if they say so.
  std::optional<data_sizes> known() const {
    if (of_.made_with.classes > 0) return of_.made_with;
    const auto* how = strategy_in_use();
    if (!how || how->about().purpose == stage::train || !how->about().initial) return {};
    const auto named = learner_json::hyper_parameters_of_state(how->about().initial->state);
    if (!named.items.contains("classes")) return {};
    return hyper_parameters_from<data_sizes>(named);
  }

  fitted_options of_;
  std::shared_ptr<shared_sizes> read_;
  std::optional<data_sizes> sizes_;  // from setup on
};

}  // namespace

module_factory fitted_classifiers(fitted_options of) {
  return [of = std::move(of), read = std::make_shared<shared_sizes>()] {
    return std::make_shared<fitted_classifier>(of, read);
  };
}

}  // namespace troupe
