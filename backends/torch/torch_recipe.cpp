// The recipe of jobs with LibTorch modules. It makes the learners, and checks a fit before its
// ranks start.
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <typeinfo>

#include "backends/torch/callback_list.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/torch_learner.hpp"
#include "messages/validation_interval.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/data_parallel.hpp"

namespace troupe {

namespace {

// The names that a program has added.
template <class Table>
void list_added(std::string& into, std::string_view what, const Table& all, const Table& usual) {
  for (const auto& [name, make] : all)
    if (!usual.contains(name)) into += fmt::format(", {} {}", what, name);
}

// What a program has added; nothing for the default.
std::string added_text(const torch_plugins& plugins) {
  std::string text;
  list_added(text, "strategy", plugins.strategies, default_strategies());
  list_added(text, "precision", plugins.precisions, default_precisions());
  list_added(text, "accelerator", plugins.accelerators, default_accelerators());
  if (plugins.environment) text += ", a cluster environment";
  if (const auto* format = plugins.checkpoints.get())
    text += fmt::format(", checkpoints by {}", c10::demangle(typeid(*format).name()));
  for (const auto& [type, move] : plugins.moves)
    text += fmt::format(", moves of {}", c10::demangle(type.name()));
  for (const auto& each : plugins.callbacks) {
    const auto* one = each.original();
    text +=
        fmt::format(", callback {}", one ? c10::demangle(typeid(*one).name()) : "by a function");
  }
  return text;
}

class torch_recipe final : public learner_recipe {
public:
  torch_recipe(module_factory model, data_ptr data, torch_plugins plugins, std::string identity)
      : model_(std::move(model)),
        data_(std::move(data)),
        plugins_(std::move(plugins)),
        identity_(std::move(identity)) {}
  std::unique_ptr<learner> make(const learner_context& context) const override {
    if (context.purpose == stage::call)
      throw user_error(errc::bad_usage,
                       "the job's purpose is \"call\", and its recipe is of a module: give it a "
                       "recipe that call_recipe has made, or set the purpose to train, validate, "
                       "test or predict");
    return std::make_unique<torch_learner>(context, model_, data_, plugins_, prepared_,
                                           received_by(context));
  }
  std::string identity() const override {
    if (identity_.empty()) return {};
    return identity_ + (data_ ? " on " + data_->name() : "") + added_text(plugins_);
  }
  const tensor_bytes* tensors() const override { return &torch_tensor_bytes(); }
  exception_text text_of_exceptions() const override { return text_without_frames; }
  std::shared_ptr<const checkpoint_io> checkpoints() const override { return plugins_.checkpoints; }

  void configure(trainer_options& options) const override {
    callback_list::configure(plugins_.callbacks, options);
  }

  void settle_devices(trainer_options& options, std::int32_t ranks) const override {
    const auto chosen = choose_devices(plugins_.accelerators, options, ranks);
    options.accelerator = own_name{std::string{chosen.kind->name()}};
    if (ranks == 0) return;
    options.devices = {};
    for (const auto device : chosen.devices)
      options.devices.indices.push_back(std::max<std::int32_t>(device.index(), 0));
  }

  // Callbacks are asked again: they may refuse the accelerator that `auto` has chosen. They change
  // nothing any more.
  void check_options(const trainer_options& options) const override {
    refuse_unrecoverable(options);
    check_strategy(plugins_.strategies, options.strategy.name, options.ranks);
    auto settled = options;
    configure(settled);
  }

  // A user's code runs here, whose exceptions are no errors of Troupe.
  void check_fit(const trainer_options& options, const snapshot* from,
                 const std::string& path) const override {
    const auto refuse = [](std::string text) {
      std::throw_with_nested(user_error(
          errc::job_failed, "the check before the fit: " + text.substr(0, text.find('\n'))));
    };
    try {
      check_parts(options, from, path);
    } catch (const user_error&) {
      throw;
    } catch (const internal_error&) {
      throw;
    } catch (const std::exception& error) {
      refuse(text_without_frames(error));
    } catch (...) {
      refuse("an exception that is no std::exception");
    }
  }

  // The module of a rank, and a step with layers that many modules have: LibTorch makes kernels and
  // the autograd engine when they are used first. No data: they may not be prepared yet.
  void warm_up(const trainer_options& options) const override {
    const lane_thread as_in_a_lane;
    rank_random draws{options.seed};
    const random_scope scope{draws};
    if (const auto made = model_ ? model_() : nullptr) made->configure_model();
    const auto image = torch::rand({2, 1, 28, 28});
    const auto filters = torch::rand({4, 1, 3, 3}, torch::requires_grad());
    const auto weights = torch::rand({10, 4 * 13 * 13}, torch::requires_grad());
    const auto seen = torch::max_pool2d(torch::relu(torch::conv2d(image, filters)), 2).flatten(1);
    const auto guess = torch::log_softmax(torch::linear(seen, weights), 1);
    torch::nll_loss(guess, torch::zeros({2}, torch::kLong)).backward();
  }

private:
  // Creates and drops the same objects as a rank, with a random generator of its own.
  void check_parts(const trainer_options& options, const snapshot* from,
                   const std::string& path) const {
    if (data_) data_->prepare_data();
    check_numbers(options);
    if (!from) return check_interval(options);
    const lane_thread as_in_a_lane;
    rank_random draws{options.seed};
    const random_scope scope{draws};
    fit_record record{.seed = options.seed, .data = data_ ? data_->name() : std::string{}};
    // Cheapest checks first.
    check_record(*from, record, path);
    const auto made = made_module(options);
    if (!made) return;
    load_state(*made, from->model);
    if (usual_parts(options)) {
      const auto numbers = make_precision(plugins_.precisions, options.precision.name);
      check_precision(*numbers, check_optimizers(*made, *from, path));
    }
    if (!data_) return;
    const auto train = data_->train();
    if (!train) return;
    record.samples = train->size();
    check_record(*from, record, path);
    const auto how = loading_of(*data_, stage::train, 0, options);
    const auto loads =
        loader_options_of(how, stage::train, *train, options.ranks, options.batch_size);
    cursor_of(*from, loads.layout, options, path);
  }

  // A module, in the order of a rank: the data are prepared and set up before.
  std::shared_ptr<module> made_module(const trainer_options& options) const {
    const auto own = model_ ? model_() : nullptr;
    if (!own || own->strategy_in_use()) return own;  // a rank's, which refuses to share it
    const std::shared_ptr<module> made{own.get(), [own](module*) { own->attach(nullptr, {}); }};
    made->prepare_data();
    if (data_) data_->setup(stage::train);
    made->attach(nullptr, [this, options] { return expected_length(options); });
    made->setup(stage::train);
    made->configure_model();
    return made;
  }

  // As a rank computes it, unless a strategy of the program's own replaces loaders.
  training_length expected_length(const trainer_options& options) const {
    const auto train = data_ ? data_->train() : nullptr;
    if (!train) return length_of(options, 0);
    const auto loads = loader_options_of(loading_of(*data_, stage::train, 0, options), stage::train,
                                         *train, options.ranks, options.batch_size);
    return length_of(options, loads.layout.batches());
  }

  // Of a fit that is not resumed: the epoch in which another one goes on may have more batches.
  // Reads the data only for a count of batches: other intervals fit every epoch. A strategy of the
  // program's own may replace loaders, so there only ranks know how long an epoch is.
  void check_interval(const trainer_options& options) const {
    const auto* every = std::get_if<std::int64_t>(&options.val_check_interval);
    if (!every || *every == 1 || options.fast_dev_run > 0) return;
    if (!data_ || options.val_check_time || options.check_val_every_n_epoch == 0) return;
    const auto& by = options.strategy.name;
    if (by != "auto" && !default_strategies().contains(by)) return;
    if (std::visit([](auto x) { return x == 0; }, limit_of(options, stage::validate))) return;
    const lane_thread as_in_a_lane;
    rank_random draws{options.seed};
    const random_scope scope{draws};
    data_->setup(stage::train);
    if (!data_->train() || data_->validation().empty()) return;
    check_validation_interval(*every, expected_length(options).batches);
  }

  // Whether strategy and precision are Troupe's own. Others may replace optimizers, or restore them
  // themselves, so only ranks know what a checkpoint's state must fit.
  bool usual_parts(const trainer_options& options) const {
    const auto strategies = default_strategies();
    std::string_view by = options.strategy.name;
    if (by == "auto") by = options.ranks > 1 ? "data_parallel" : "single_device";
    const auto strategy = strategies.find(by);
    if (strategy == strategies.end() ||
        strategy->second.target_type() != plugins_.strategies.find(by)->second.target_type())
      return false;
    const auto precisions = default_precisions();
    const auto numbers = make_precision(plugins_.precisions, options.precision.name);
    const auto precision = precisions.find(numbers->name());
    if (precision == precisions.end()) return false;
    const auto usual = precision->second();
    const auto &here = *numbers, &there = *usual;
    return typeid(here) == typeid(there);
  }

  // Makes a module only for a precision that may refuse its optimizers.
  void check_numbers(const trainer_options& options) const {
    const auto numbers = make_precision(plugins_.precisions, options.precision.name);
    const auto& made_of = *numbers;
    if (typeid(made_of) == typeid(precision)) return;
    const lane_thread as_in_a_lane;
    rank_random draws{options.seed};
    const random_scope scope{draws};
    const auto made = made_module(options);
    if (!made) return;
    check_precision(*numbers, made->configure_optimizers());
  }

  // A rank that failed while it received a state gets a new learner, which goes on receiving.
  std::shared_ptr<partial_state> received_by(const learner_context& context) const {
    if (!context.options.elastic.enabled()) return nullptr;
    const std::lock_guard lock{guard_};
    // A job does not say when it ends. Another job that still runs and has no learner just now
    // receives its state from the beginning.
    std::erase_if(received_, [&](const auto& each) {
      return each.first.first != context.job && each.second.use_count() == 1;
    });
    auto& kept = received_[{context.job, context.rank}];
    if (!kept) kept = std::make_shared<partial_state>();
    return kept;
  }

  module_factory model_;
  data_ptr data_;
  torch_plugins plugins_;
  std::string identity_;
  std::shared_ptr<data_preparation> prepared_ = std::make_shared<data_preparation>();
  mutable std::mutex guard_;
  mutable std::map<std::pair<job_id, std::int32_t>, std::shared_ptr<partial_state>> received_;
};

}  // namespace

recipe_ptr make_recipe(module_factory model, data_ptr data, torch_plugins plugins,
                       std::string identity) {
  return std::make_shared<torch_recipe>(std::move(model), std::move(data), std::move(plugins),
                                        std::move(identity));
}

}  // namespace troupe
