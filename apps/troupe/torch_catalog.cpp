#include "apps/troupe/torch_catalog.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/bench/recovery.hpp"
#include "apps/troupe/build_facts.hpp"
#include "apps/troupe/own_parts.hpp"
#include "apps/troupe/torch_own.hpp"
#include "backends/torch/accelerators/adapters.hpp"
#include "backends/torch/callback_catalog.hpp"
#include "backends/torch/characters.hpp"
#include "backends/torch/classifier.hpp"
#include "backends/torch/data_catalog.hpp"
#include "backends/torch/fitted_classifier.hpp"
#include "backends/torch/lane_thread.hpp"
#include "backends/torch/models.hpp"
#include "backends/torch/rank_random.hpp"
#include "backends/torch/torch_export.hpp"
#include "backends/torch/version.hpp"
#include "troupe/hyper_parameters.hpp"
#include "troupe/module.hpp"
#include "troupe/precision.hpp"
#include "troupe/testing/tensors.hpp"
#include "troupe/tuner.hpp"

namespace troupe::program {

namespace {

// Adds the indices of the samples to a batch.
class numbered_samples : public dataset {
public:
  explicit numbered_samples(dataset_ptr inner) : inner_(std::move(inner)) {}
  std::int64_t size() const override { return inner_->size(); }
  value get(std::span<const std::int64_t> indices) const override {
    auto numbers = at::zeros({static_cast<std::int64_t>(indices.size())}, at::kLong);
    std::ranges::copy(indices, numbers.mutable_data_ptr<std::int64_t>());
    auto batch = inner_->get(indices);
    auto items = std::move(batch.get_if<value_tuple>()->items);
    items.push_back(boxed(std::move(numbers)));
    return value_tuple{std::move(items)};
  }

private:
  dataset_ptr inner_;
};

class numbered_data : public data_module {
public:
  explicit numbered_data(data_ptr inner) : inner_(std::move(inner)) {}
  std::string name() const override { return "numbered " + inner_->name(); }
  dataset_ptr train() override { return std::make_shared<numbered_samples>(inner_->train()); }

private:
  data_ptr inner_;
};

class ledger_classifier : public classifier {
public:
  ledger_classifier(classifier_options options, std::int64_t samples)
      : classifier(std::move(options)),
        consumed_(register_parameter(recovery_ledger, at::zeros({samples}))) {}

  // The gradient of the second part is -1 / (samples of the step) for each sample of the step.
  step_output training_step(const batch& b, std::int64_t index) override {
    return classifier::training_step(b, index).loss() - consumed_.index_select(0, b[2]).mean();
  }

private:
  at::Tensor consumed_;
};

// What `troupe bench recovery` trains: a classifier whose weights count the samples that they have
// used (apps/bench/recovery.hpp). For plain SGD.
recipe_ptr ledger_recipe(torch_plugins plugins, data_ptr data, const classifier_options& options) {
  const auto samples = data->train()->size();
  return recipe_for<ledger_classifier>(std::move(plugins),
                                       data_ptr{std::make_shared<numbered_data>(std::move(data))},
                                       options, samples);
}

void refuse_mismatch(const learning& what, const data_entry& data) {
  if (what.model == recovery_model && !data.is_text) return;
  const auto& model = find_model(what.model == recovery_model ? "mlp" : what.model);
  // Those of other files are looked at when they are read.
  if (model.reads_images && data.name == "csv")
    throw user_error(
        errc::bad_configuration,
        fmt::format("the data {} are rows of numbers, and the model {} reads images of (1, 28, "
                    "28): use --model mlp",
                    what.data, what.model));
  const bool reads_text = model.reads_text;
  if (reads_text == data.is_text) return;
  throw user_error(
      errc::bad_configuration,
      reads_text ? fmt::format("the model {} reads text, but the data {} are none: use --data text",
                               what.model, what.data)
                 : fmt::format("the data {} are text, which the model {} cannot read: use --model "
                               "gpt",
                               what.data, what.model));
}

// Numbers of characters, int64 (T).
std::string text_of(const at::Tensor& numbers) {
  const auto bytes = numbers.to(at::kByte).contiguous();
  return characters::text_of(
      {bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel())});
}

std::uint8_t next_character(classifier& writer, const std::vector<std::uint8_t>& so_far,
                            const writing& what, const at::Generator& random) {
  const auto seen = std::min<std::ptrdiff_t>(std::ssize(so_far), characters::context);
  auto last = at::empty({1, seen}, at::kLong);
  std::copy(so_far.end() - seen, so_far.end(), last.mutable_data_ptr<std::int64_t>());
  const auto logits = tensors_of(writer.predict_step(batch{boxed(last), 1}, 0)).front();
  const auto scores = logits.select(0, 0).select(1, seen - 1).to(at::kDouble);
  if (!scores.isfinite().all().item<bool>())
    throw user_error(errc::job_failed,
                     fmt::format("the weights of {} give no finite scores: the training diverged; "
                                 "write with an earlier checkpoint, or train with a lower "
                                 "--learning-rate",
                                 what.checkpoint));
  // The largest score becomes 0, so that no quotient is infinite but those of chance 0.
  const auto chosen =
      what.temperature == 0
          ? scores.argmax()
          : ((scores - scores.max()) / what.temperature).softmax(0).multinomial(1, false, random);
  return static_cast<std::uint8_t>(chosen.item<std::int64_t>());
}

std::vector<std::string> names_of(const auto& table) {
  std::vector<std::string> names;
  for (const auto& [name, make] : table) names.push_back(name);
  return names;
}

template <class Made>
const detail::own_part<Made>* find_own(const std::vector<detail::own_part<Made>>& all,
                                       const std::string& name) {
  const auto found = std::ranges::find(all, name, &detail::own_part<Made>::name);
  return found == all.end() ? nullptr : &*found;
}

classifier_options options_of(const learning& what) {
  classifier_options options;
  options.model = what.model;
  options.layers.hidden = what.hidden;
  options.layers.dropout = what.dropout;
  options.optimizer = what.optimizer;
  options.learning_rate = what.learning_rate;
  options.momentum = what.momentum;
  options.weight_decay = what.weight_decay;
  options.scheduler = what.scheduler;
  options.warmup_epochs = what.warmup_epochs;
  options.epochs = what.epochs;
  return options;
}

class catalog_of_torch : public catalog {
public:
  catalog_of_torch(detail::own_parts own, torch_plugins plugins)
      : own_(std::move(own)), plugins_(std::move(plugins)) {
    std::vector<std::string> models, data;
    for (const auto& entry : model_catalog()) models.emplace_back(entry.name);
    for (const auto& entry : data_catalog()) data.emplace_back(entry.name);
    check(own_, models, data);
    if (own_.change_plugins) own_.change_plugins(plugins_);
  }

  std::vector<model_facts> models() const override {
    std::vector<model_facts> all;
    for (const auto& one : own_.models)
      all.push_back(
          {one.name, one.summary, true, settings_of(one.settings, "the model " + one.name)});
    for (const auto& entry : model_catalog())
      all.push_back({std::string{entry.name}, std::string{entry.summary}});
    return all;
  }

  std::int64_t parameters(const std::string& model) const override {
    return parameter_count(*made(model));
  }

  std::string layers(const std::string& model) const override {
    return to_string(summarize(*made(model)));
  }

  std::vector<data_facts> data_sets() const override {
    std::vector<data_facts> all;
    for (const auto& one : own_.data)
      all.push_back(
          {one.name, one.summary, {}, true, settings_of(one.settings, "the data set " + one.name)});
    for (const auto& entry : data_catalog())
      all.push_back({std::string{entry.name}, std::string{entry.summary},
                     entry.name == "fashion_mnist" ? "/usr/share/datasets/fashion-mnist"
                     : entry.is_text               ? "/usr/share/games/fortunes"
                                                   : ""});
    return all;
  }

  recipe_ptr recipe(const learning& what) const override {
    const auto plugins = plugins_for(what);
    const auto* own_model = find_own(own_.models, what.model);
    const auto* own_data = find_own(own_.data, what.data);
    if (!own_model && !own_data) refuse_mismatch(what, find_data(what.data));
    const auto data = data_of(what);
    if (own_model)
      return make_recipe(
          [one = *own_model, fields = fields_of(what.model_settings)] {
            return make_own(one, fields);
          },
          data, plugins, identity_text(what.model, what.model_settings));
    auto options = options_of(what);
    if (what.model == recovery_model) {
      options.model = "mlp";
      return ledger_recipe(plugins, data, options);
    }
    const bool sized =
        own_data ? !find_model(what.model).reads_text : find_data(what.data).sized_by_files;
    if (!sized) return recipe_for<classifier>(plugins, data, options);
    return make_recipe(fitted_classifiers({.data = data,
                                           .of_files = !own_data,
                                           .options = options,
                                           .made_with = {what.features, what.classes}}),
                       data, plugins);
  }

  void configure(const learning& what, trainer_options& options) const override {
    make_recipe({}, {}, plugins_for(what))->configure(options);
  }

  std::shared_ptr<const checkpoint_io> checkpoints() const override { return plugins_.checkpoints; }

  void take_sizes(const std::string& checkpoint, learning& of) const override {
    if (find_own(own_.models, of.model)) return;
    const auto named = read_module(checkpoint, plugins_.checkpoints.get()).hyper_parameters;
    if (!named.items.contains("classes")) return;
    const auto sizes = hyper_parameters_from<data_sizes>(named);
    of.features = sizes.features;
    of.classes = sizes.classes;
  }

  // What a user's data throw here, the ranks of the test report.
  bool has_test(const learning& what, std::uint64_t seed) const override {
    if (!find_own(own_.data, what.data)) return !find_data(what.data).sized_by_files;
    const lane_thread as_in_a_lane;
    rank_random draws{seed};
    const random_scope scope{draws};
    try {
      const auto data = held_data_of(what);
      data->setup(stage::test);
      return !data->test().empty();
    } catch (...) {
      return true;
    }
  }

  void search_rate(const rate_search& how, learning& of, trainer_options& options) const override {
    learning_rate_range_options range{.min = how.min, .max = how.max, .steps = how.steps};
    if (how.linear) range.mode = learning_rate_range_options::growth::linear;
    options = learning_rate_range{range}.options(options);
    of.callbacks.push_back(fmt::format("lr_range,min={},max={},steps={},growth={},stop_at={}",
                                       how.min, how.max, how.steps,
                                       how.linear ? "linear" : "exponential", how.stop_at));
  }

  rate_curve rates_found(const job_outcome& outcome) const override {
    auto curve = curve_of(outcome);
    const auto suggestion = curve.suggestion();
    return {std::move(curve.rates), std::move(curve.losses), suggestion};
  }

  std::int64_t search_batch_size(
      const size_search& how, const std::function<job_outcome(std::int64_t)>& run) const override {
    batch_size_search search{
        .first = how.first, .max_trials = how.trials, .margin = how.margin, .max = how.max};
    if (how.bisects) search.mode = batch_size_search::search::bisect;
    return find_batch_size(search, [&](std::int64_t size) { return fits_memory(run(size)); });
  }

  std::shared_ptr<testing::payload> tensors() const override { return testing::tensors_payload(); }

  file_pieces torch_checkpoint(const snapshot& what) const override {
    return encode_torch_checkpoint(what);
  }

  std::vector<std::string> predictions(const std::string& model,
                                       const value& result) const override {
    if (find_own(own_.models, model)) return own_predictions(result);
    std::vector<std::string> lines;
    for (const auto& scores : tensors_of(result)) {
      const auto [chance, chosen] = scores.softmax(1).max(1);
      if (scores.dim() == 3) {
        for (std::int64_t row = 0; row < scores.size(0); ++row)
          lines.push_back(nlohmann::ordered_json{{"schema", "troupe.prediction/1"},
                                                 {"sample", lines.size()},
                                                 {"text", text_of(chosen[row])},
                                                 {"probability", chance[row].mean().item<double>()}}
                              .dump());
        continue;
      }
      for (std::int64_t row = 0; row < scores.size(0); ++row)
        lines.push_back(nlohmann::ordered_json{{"schema", "troupe.prediction/1"},
                                               {"sample", lines.size()},
                                               {"class", chosen[row].item<std::int64_t>()},
                                               {"probability", chance[row].item<double>()}}
                            .dump());
    }
    return lines;
  }

  std::string write(const writing& what) const override {
    const lane_thread alone;
    const at::NoGradGuard no_gradients;
    auto random = at::make_generator<at::CPUGeneratorImpl>(what.seed);
    classifier writer{{.model = "gpt"}};
    load_into(writer, read_module(what.checkpoint, plugins_.checkpoints.get()));
    auto numbers = characters::numbers_of(what.prompt);
    if (numbers.empty()) numbers.push_back(0);
    for (std::int64_t i = 0; i < what.characters; ++i)
      numbers.push_back(next_character(writer, numbers, what, random));
    return characters::text_of(numbers);
  }

  std::map<std::string, std::string> versions() const override {
    return {{"libtorch", torch_version()}, {"troupe", std::string{build_facts::version}}};
  }

  std::vector<device_facts> devices() const override {
    std::vector<device_facts> all;
    for (const auto& [name, make] : plugins_.accelerators) {
      const auto one = make();
      const auto why_not = one->unusable();
      all.push_back({name, why_not.empty(),
                     !why_not.empty() ? why_not
                     : one->shared()
                         ? fmt::format("{}; precisions {}; float16 convolutions are slow",
                                       one->about(), fmt::join(precisions(), ", "))
                         : one->about(),
                     name != to_string(accelerator_kind::cuda) || cuda_built()});
    }
    return all;
  }

  std::vector<std::string> strategies() const override { return names_of(plugins_.strategies); }
  std::vector<std::string> precisions() const override { return names_of(plugins_.precisions); }

  double matrix_speed() const override {
    const lane_thread alone;
    constexpr std::int64_t width = 512, rounds = 8;
    const auto a = at::rand({width, width}), b = at::rand({width, width});
    auto c = at::mm(a, b);
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < rounds; ++i) at::mm_out(c, a, b);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return 2e-9 * static_cast<double>(width * width * width * rounds) / took.count();
  }

private:
  torch_plugins plugins_for(const learning& what) const {
    auto plugins = plugins_;
    if (what.searches)
      std::erase_if(plugins.callbacks, [](const callback_factory& one) {
        return !dynamic_cast<const gradient_accumulation_scheduler*>(one.original());
      });
    for (const auto& text : what.callbacks) plugins.callbacks.push_back(named_callback(text));
    return plugins;
  }

  // With default settings.
  std::shared_ptr<torch::nn::Module> made(const std::string& model) const {
    const auto* own = find_own(own_.models, model);
    if (!own) return find_model(model).make({}).ptr();
    try {
      const auto made = make_own(*own, {});
      made->configure_model();
      return made;
    } catch (const user_error&) {
      throw;
    } catch (const std::exception& error) {
      throw user_error(errc::job_failed,
                       fmt::format("cannot make the model {}: {}", model, error.what()));
    }
  }

  data_ptr data_of(const learning& what) const {
    if (const auto* own = find_own(own_.data, what.data)) {
      auto data = make_own(*own, fields_of(what.data_settings));
      const std::lock_guard lock{guard_};
      newest_ = {identity_text(what.data, what.data_settings), data};
      return data;
    }
    return find_data(what.data).make(
        {.folder = what.data_folder,
         .target = what.target,
         .made_up = {.samples = what.samples, .evaluation = what.evaluation_samples}});
  }

  data_ptr held_data_of(const learning& what) const {
    data_ptr data;
    {
      const std::lock_guard lock{guard_};
      if (newest_.of == identity_text(what.data, what.data_settings)) data = newest_.data.lock();
    }
    return data ? data : data_of(what);
  }

  // Data that a recipe holds: they may be too large to make them twice.
  struct held_data {
    std::string of;
    std::weak_ptr<data_module> data;
  };

  detail::own_parts own_;
  torch_plugins plugins_;
  mutable std::mutex guard_;
  mutable held_data newest_;
};

}  // namespace

std::unique_ptr<const catalog> torch_catalog(
    detail::own_parts own,
    std::function<cluster_environment_ptr(const learner_context&)> environment) {
  torch_plugins plugins;
  plugins.environment = std::move(environment);
  return std::make_unique<catalog_of_torch>(std::move(own), std::move(plugins));
}

}  // namespace troupe::program
