#include "troupe/testing/tensors.hpp"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "apps/testing/delivery.hpp"
#include "apps/testing/tensors/simulated_learner.hpp"
#include "apps/testing/tensors/tensor_states.hpp"
#include "backends/torch/classifier.hpp"
#include "backends/torch/ordered_dataset.hpp"
#include "troupe/data.hpp"

namespace troupe::testing {

namespace {

module_factory model_of(const tensors_options& from) {
  if (from.make_module) return from.make_module;
  classifier_options how;
  how.layers.hidden = from.hidden;
  how.layers.dropout = from.dropout;
  how.layers.features = from.features;
  how.layers.classes = from.classes;
  how.optimizer = from.optimizer;
  how.learning_rate = from.learning_rate;
  return [how] { return std::make_shared<classifier>(how); };
}

class first_samples final : public dataset {
public:
  first_samples(dataset_ptr all, std::int64_t count) : all_(std::move(all)), count_(count) {}
  std::int64_t size() const override { return count_; }
  value get(std::span<const std::int64_t> indices) const override { return all_->get(indices); }
  value get_keyed(std::span<const std::int64_t> indices, const sample_keys& keys) const override {
    return all_->get_keyed(indices, keys);
  }

private:
  const dataset_ptr all_;
  const std::int64_t count_;
};

// Jobs of an exploration differ in their number of samples.
class first_of final : public data_module {
public:
  first_of(data_ptr all, std::int64_t count) : all_(std::move(all)), count_(count) {
    all_->prepare_data();
    all_->setup(stage::train);
    const auto there = all_->train() ? all_->train()->size() : 0;
    if (there < count)
      throw user_error(errc::bad_configuration,
                       "tensors_options::data has " + std::to_string(there) +
                           " samples of training, the job trains " + std::to_string(count) +
                           ": supply as many, or lower job_spec::samples");
    const auto how = all_->loading(stage::train, 0);
    if (how.batch_size || !how.shuffle || how.drop_last || how.order ||
        dynamic_cast<const ordered_dataset*>(all_->train().get()) != nullptr)
      throw user_error(errc::bad_configuration,
                       "tensors_options::data has an order or a batch size of its own, and the "
                       "reference of a simulated run has the job's: leave batch_size, shuffle, "
                       "drop_last and order of its loading(train, 0) as they are, and give one "
                       "dataset instead of a combined one");
  }
  void prepare_data() override { all_->prepare_data(); }
  void setup(stage purpose) override { all_->setup(purpose); }
  dataset_ptr train() override { return std::make_shared<first_samples>(all_->train(), count_); }
  value on_before_batch_transfer(value batch, std::int32_t dataloader) override {
    return all_->on_before_batch_transfer(std::move(batch), dataloader);
  }
  value on_after_batch_transfer(value batch, std::int32_t dataloader) override {
    return all_->on_after_batch_transfer(std::move(batch), dataloader);
  }
  std::string state() const override { return all_->state(); }
  void load_state(const std::string& json) override { all_->load_state(json); }

private:
  const data_ptr all_;
  const std::int64_t count_;
};

data_ptr data_of(const tensors_options& from, std::int64_t samples) {
  if (from.data) return std::make_shared<first_of>(from.data, samples);
  synthetic_options made_up;
  made_up.samples = samples;
  made_up.evaluation = 1;
  made_up.shape = {from.features};
  made_up.classes = from.classes;
  auto made = synthetic(made_up);
  made->setup(stage::train);
  return made;
}

class tensors_of_job final : public payload_job {
public:
  tensors_of_job(const job_spec& what, const tensors_options& options)
      : job_{model_of(options), data_of(options, what.samples), what.options()},
        compared_(options.reference) {
    if (compared_) states_with({});
  }

  recipe_ptr recipe(payload_ground ground) const override {
    return simulated_recipe(job_, std::move(ground));
  }
  std::optional<std::uint64_t> digest_after(std::int64_t steps, const poisons& applied) override {
    if (!compared_) return std::nullopt;
    return states_with(applied).digests.at(static_cast<std::size_t>(steps));
  }
  std::optional<difference> compare(const snapshot& is, std::int64_t steps,
                                    const poisons& applied) override {
    if (!compared_ || steps == 0) return std::nullopt;
    const auto& should = states_with(applied);
    const auto at = static_cast<std::size_t>(steps);
    if (auto wrong = first_difference(is.model, should.models.at(at))) return wrong;
    return first_difference(is.optimizer, should.optimizers.at(at));
  }

private:
  const tensor_states& states_with(const poisons& applied) {
    const std::lock_guard lock{mutex_};
    if (const auto known = states_.find(applied); known != states_.end()) return known->second;
    const not_delivering own;
    return states_.emplace(applied, reference_states(job_, applied)).first->second;
  }

  const tensor_job job_;
  const bool compared_;
  std::mutex mutex_;  // repetitions for the determinism check run at once
  std::map<poisons, tensor_states> states_;
};

class tensors final : public payload {
public:
  explicit tensors(tensors_options options) : options_(std::move(options)) {}
  std::string_view name() const override { return usual() ? "tensors" : "own_tensors"; }
  bool waits() const override { return true; }
  bool varies_samples() const override { return options_.vary_samples || !own(); }
  bool varies_accumulation() const override { return options_.reference; }
  std::shared_ptr<payload_job> of(const job_spec& what) override {
    const key k{what.ranks, what.steps, what.samples, what.batch_size, what.accumulate, what.seed};
    const std::lock_guard lock{mutex_};
    for (const auto& [known, job] : known_)
      if (known == k) return job;
    constexpr std::size_t most = 16;
    if (known_.size() >= most) known_.erase(known_.begin());
    return known_.emplace_back(k, std::make_shared<tensors_of_job>(what, options_)).second;
  }

private:
  using key = std::tuple<std::int32_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::uint64_t>;
  bool own() const { return options_.make_module || options_.data; }
  // Whether `tensors_payload()` trains the same.
  bool usual() const {
    const tensors_options as;
    const auto& o = options_;
    return !own() && o.hidden == as.hidden && o.features == as.features &&
           o.classes == as.classes && o.dropout == as.dropout && o.optimizer == as.optimizer &&
           o.learning_rate == as.learning_rate;
  }

  const tensors_options options_;
  std::mutex mutex_;  // repetitions for the determinism check run at once
  std::vector<std::pair<key, std::shared_ptr<tensors_of_job>>> known_;
};

}  // namespace

std::shared_ptr<payload> tensors_payload(tensors_options options) {
  return std::make_shared<tensors>(std::move(options));
}

}  // namespace troupe::testing
