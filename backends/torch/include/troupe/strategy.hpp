// The strategy: what a rank does at each hook. The base class trains on one device without peers;
// data_parallel and strategies of a program's own override members of it.
//
// The author of a strategy reads two headers: this one, and communicator.hpp, for the collectives
// that `bind` gives it. torch_plugins::strategies gives it a name, by which a job chooses it:
// `options.strategy = own_name{"my_strategy"}`.
#pragma once

#include "troupe/accelerator.hpp"
#include "troupe/callback.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/communicator.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/comm_hook.hpp"
#include "troupe/detail/optimizer_state.hpp"
#include "troupe/learner.hpp"
#include "troupe/ports.hpp"
#include "troupe/precision.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <iomanip>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace troupe {

struct module;
class optimizers;

/// Moves a user's type to a device; by the type held in value_user.
using move_function = std::function<std::any(const std::any&, c10::Device)>;
/// By the type held in value_user.
using move_table = std::map<std::type_index, move_function>;

/// What a strategy is made from. `environment` is never null after setup_environment.
struct strategy_parts {
  /// The rank, its world and the job's options.
  learner_context about;
  /// Null: all ranks on this host.
  std::shared_ptr<cluster_environment> environment;
  /// Null: 32-true.
  std::shared_ptr<troupe::precision> precision;
  /// The job's accelerator and its devices on this host; none: the host's processors.
  chosen_devices place;
  /// Null: folders of safetensors with a manifest.
  std::shared_ptr<const checkpoint_io> files;
  /// torch_plugins::moves.
  move_table moves;
};

/// One backward of a step.
struct backward_plan {
  /// Which of the module's optimizers, from 0.
  std::int32_t optimizer = 0;
  /// This micro-batch completes the window of the step: gradients are summed over ranks.
  bool synchronize = true;
  /// This rank has no samples in the micro-batch: it has no loss, and contributes the gradients
  /// that it has in the window so far.
  bool idle = false;
  /// This rank's samples in the micro-batch over those of all ranks in the window.
  double weight = 1;
  /// The window's loss so far, this micro-batch included, each part times its weight.
  double loss = 0;
  /// A hook of this rank asked for an end of the run.
  bool wants_stop = false;
  /// This rank has values for the end of the epoch (jobs that can restart only).
  bool logged = false;
  /// For the module's backward: step_output::backward_arguments.
  value arguments;
};

/// What the ranks sent to each other along with the gradients; the same on all of them.
struct step_status {
  bool stop = false;    ///< some rank wants the run to end
  double loss = 0;      ///< of the whole window and all ranks
  bool logged = false;  ///< some rank's plan said so
};

/// Created, called and destroyed by one thread, in the rank's lane. Members are called in the order
/// of the hooks with their names. Collectives wait in the lane until they complete, or throw
/// generation_closed, collective_timeout or collective_mismatch. What a member throws is the rank's
/// failure. Every member may be overridden; overrides usually call the base.
class strategy {
public:
  /// Fills in what is null.
  explicit strategy(strategy_parts parts);
  virtual ~strategy();
  strategy(const strategy&) = delete;
  strategy& operator=(const strategy&) = delete;

  /// As `--strategy` takes it; recorded in checkpoints.
  virtual std::string_view name() const = 0;

  // Identity and place.
  /// As the environment says; local_rank counts the ranks of one host.
  /// @{
  virtual std::int32_t rank() const;
  virtual std::int32_t world() const;
  virtual std::int32_t local_rank() const;
  virtual bool is_global_zero() const { return rank() == 0; }
  /// @}
  /// The local rank's device of the job's.
  virtual c10::Device root_device() const;
  /// The job's accelerator, or the host's processors.
  const accelerator& hardware() const { return *parts_.place.kind; }
  /// True: an engine under the strategy counts and weights micro-batches itself. Then
  /// optimizer_step is called for each micro-batch, losses are passed as the module returned them
  /// (`backward_plan::weight` is 1), and `backward_plan::synchronize` marks the end of Troupe's own
  /// step. Gradients are zeroed where a window begins.
  virtual bool handles_gradient_accumulation() const { return false; }
  /// True: load_optimizer_state is not called, and schedulers are left as they are. The strategy
  /// restores its optimizers and their schedulers itself.
  virtual bool restores_optimizers() const { return false; }
  /// True: a checkpoint's weights are loaded after model_to_device.
  virtual bool restore_checkpoint_after_setup() const { return false; }
  /// False: the module's configure_model is not called.
  virtual bool calls_configure_model() const { return true; }
  /// True: configure_optimizers runs in pre_dispatch.
  virtual bool late_optimizers() const { return false; }

  // Setting up.
  /// Keeps the module, on every rank, before setup_environment.
  virtual void connect(std::shared_ptr<troupe::module> which);
  /// Throws user_error (membership) when the environment says another rank or world than the job.
  virtual void setup_environment();
  /// The collectives of a generation, before its first use of them. The former communicator is
  /// quiescent.
  virtual void bind(std::shared_ptr<communicator> world, generation_id generation);
  /// After the module's.
  virtual void setup(stage purpose) { (void)purpose; }
  /// Held while configure_model runs: by default the precision's. Null: modules are created as
  /// usual.
  virtual std::unique_ptr<precision::context> model_sharded_context();
  /// Converts to the precision, moves to root_device, makes all ranks' state rank 0's.
  virtual void model_to_device();
  /// The optimizers are there. `which` outlives the strategy's use of it.
  /// Called again if the precision has replaced some of them.
  virtual void setup_optimizers(optimizers& which);
  /// Shows the optimizers of a fit to the precision, which may replace them. With late optimizers
  /// it is called again after these, in pre_dispatch.
  virtual void setup_precision();
  /// See register_comm_hook. With one rank there is nothing to sum: the base ignores the hook. With
  /// several ranks it throws user_error, because it exchanges no gradients.
  virtual void use_comm_hook(comm_hook hook, bool with_state);
  /// `hook(state, bucket)` sums the buckets of gradients from now on; `state` is kept. Called once,
  /// on all ranks, in setup or configure_optimizers, without comm_hook or fused_step in the
  /// options. In jobs that can restart the state's type must be empty, because a rank that joins
  /// would not have it. Else a user_error.
  template <class State, class Hook>
  void register_comm_hook(State state, Hook hook) {
    use_comm_hook([kept = std::make_shared<State>(std::move(state)),
                   hook = std::move(hook)](const gradient_bucket& b) { return hook(*kept, b); },
                  !std::is_empty_v<State>);
  }
  /// Before, at and after the start of the loops. Calls of functions have them, too.
  /// @{
  virtual void pre_dispatch() {}
  virtual void dispatch() {}
  virtual void post_dispatch() {}
  /// @}

  // Data.
  /// The loader that this rank reads for `purpose`. `made` reads its share of the dataset. An
  /// override may return it, wrap it in a loader of its own, or replace it: by one with other
  /// options (`made->data()`, `made->settings()`), or by one that reads from elsewhere. All ranks
  /// must get the same layout, but for the rank. Never null.
  virtual std::unique_ptr<loader> process_dataloader(std::unique_ptr<loader> made, stage purpose);
  /// Before each micro-batch of any stage: the ranks that have samples in it, ascending. Only these
  /// run its step.
  virtual void begin_batch(const subgroup& with_samples) { (void)with_samples; }
  /// Keeps the batch's type. The runtime passes root_device.
  virtual value batch_to_device(const value& batch, c10::Device device, std::int32_t dataloader);

  // The hooks of loops, epochs and batches, each after the callbacks' and the module's.
  /// See callback::on_fit_start and the others; all do nothing by default.
  /// @{
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_sanity_check_start() {}
  virtual void on_sanity_check_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start(std::int64_t epoch) { (void)epoch; }
  virtual void on_train_epoch_end(std::int64_t epoch) { (void)epoch; }
  virtual void on_train_batch_start(const batch&, std::int64_t /*index*/) {}
  virtual void on_train_batch_end(const step_output&, const batch&, std::int64_t /*index*/) {}
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_validation_batch_start(const batch&, std::int64_t /*index*/,
                                         std::int32_t /*dataloader*/) {}
  virtual void on_validation_batch_end(const step_output&, const batch&, std::int64_t /*index*/,
                                       std::int32_t /*dataloader*/) {}
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_test_batch_start(const batch&, std::int64_t /*index*/,
                                   std::int32_t /*dataloader*/) {}
  virtual void on_test_batch_end(const step_output&, const batch&, std::int64_t /*index*/,
                                 std::int32_t /*dataloader*/) {}
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_predict_batch_start(const batch&, std::int64_t /*index*/,
                                      std::int32_t /*dataloader*/) {}
  virtual void on_predict_batch_end(const value& /*output*/, const batch&, std::int64_t /*index*/,
                                    std::int32_t /*dataloader*/) {}
  /// @}

  // Steps, in the precision's context.
  /// Calls the module's step within precision::forward_context. Not called on a rank without
  /// samples.
  /// @{
  virtual step_output training_step(const batch& b, std::int64_t index);
  virtual step_output validation_step(const batch& b, std::int64_t index);
  virtual step_output test_step(const batch& b, std::int64_t index);
  virtual value predict_step(const batch& b, std::int64_t index);
  /// @}
  /// Before the module's, whose argument is what it returns.
  /// @{
  virtual step_output training_step_end(step_output output) { return output; }
  virtual step_output validation_step_end(step_output output) { return output; }
  virtual step_output test_step_end(step_output output) { return output; }
  /// @}

  // One optimizer step.
  /// Drops the gradients of this optimizer's parameters. The runtime calls it after the module's
  /// optimizer_zero_grad, whatever that does.
  virtual void zero_gradients(std::int32_t optimizer);
  /// Returns the loss that backward gets.
  virtual at::Tensor pre_backward(const at::Tensor& loss);
  /// `loss` is undefined when idle. Gradients are summed over ranks if the plan synchronizes.
  virtual step_status backward(const at::Tensor& loss, const backward_plan& plan);
  /// For a module that trains itself (module::manual_backward): adds the gradients of `loss` times
  /// `weight`, summed over ranks, to the existing gradients.
  virtual void manual_backward(const at::Tensor& loss, double weight);
  /// Returns the loss for people, without the precision's scale.
  virtual at::Tensor post_backward(const at::Tensor& loss);
  /// Gradients are summed over ranks. `limit` 0 or less: nothing. In manual optimization all ranks
  /// call it, for gradients that are complete: right before the optimizer's step.
  virtual void clip_gradients(torch::optim::Optimizer& optimizer, double limit,
                              hooks::clip_gradients::algorithm how);
  /// Runs the closure (inside the optimizer's step) and updates the weights. `index` counts the
  /// module's optimizers.
  virtual void optimizer_step(torch::optim::Optimizer& optimizer, std::int32_t index,
                              const step_closure& closure, troupe::module& model);
  /// In each optimizer step that ends a window: all ranks get the buffers of rank 0. It is called
  /// after the update, before the step counts as done. In jobs that can restart it is called before
  /// the update, after each run of the last optimizer's closure: a rank that is lost in here then
  /// leaves the weights of all others as they were.
  virtual void synchronize_buffers() {}

  // Collectives, for the runtime and for users' hooks.
  /// A tensor is reduced over `among`, out of place. Anything else is returned unchanged.
  /// `operation`: mean (avg), sum, min, max, product (prod); others are a user_error.
  virtual value reduce(const value& what, std::string_view operation = "mean",
                       const subgroup& among = {});
  /// Rank `source`'s value, on all ranks; the values of the others are ignored.
  virtual value broadcast(const value& what, std::int32_t source = 0, const subgroup& among = {});
  /// Every tensor and number of `what` becomes (members, ...), stacked by rank; containers are
  /// kept, texts and users' types are refused. With `gradients`, backward gives rank r the sum over
  /// ranks of the gradients of slice r.
  virtual value all_gather(const value& what, bool gradients = false, const subgroup& among = {});
  /// True if all members (or any of them) said yes; the same on all of them. Collective.
  virtual bool reduce_boolean_decision(bool yes, decision by = decision::all,
                                       const subgroup& among = {});
  /// `deadline` 0: the generation's.
  virtual void barrier(std::string_view label,
                       std::chrono::nanoseconds deadline = std::chrono::nanoseconds{0},
                       const subgroup& among = {});
  /// Every rank's bytes, by rank; all give the same number.
  virtual std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> mine);

  // State.
  /// Parameters and buffers by name, in the module's order. Called on all ranks; empty but on rank
  /// 0.
  virtual std::vector<tensor_blob> module_state();
  /// The same of this rank, on any rank. In jobs that can restart, ranks compare these states and
  /// send them to a rank that joins. No collective.
  virtual std::vector<tensor_blob> local_module_state();
  /// On each rank, from what module_state returned. Throws user_error for other names or shapes.
  virtual void load_module_state(const std::vector<tensor_blob>& state);
  /// Optimizer `index`'s state. Called on all ranks; where a strategy shards it is consolidated on
  /// rank 0 and empty elsewhere.
  virtual troupe::optimizer_state optimizer_state(std::int32_t index);
  /// The same of this rank, on any rank. A strategy that shards optimizers over ranks returns what
  /// a rank that joins has to load. No collective.
  virtual troupe::optimizer_state local_optimizer_state(std::int32_t index);
  /// On each rank, from what optimizer_state returned on rank 0, or local_optimizer_state.
  virtual void load_optimizer_state(std::int32_t index, const troupe::optimizer_state& state);
  /// On all ranks; only rank 0's `what` holds a state.
  /// - Without a path: the job's policy wants a checkpoint. What rank 0 returns is written by the
  ///   checkpointer, while training continues. Null on rank 0 fails the fit.
  /// - With one: a module asked for it (module::save_checkpoint). Rank 0 writes `what` to this
  ///   folder, in the job's format, and all ranks return when it is durable. The base refuses a
  ///   folder that holds anything but a checkpoint. A module may call it with a state of its own.
  /// The base refuses storage options.
  virtual snapshot_ptr save_checkpoint(snapshot_ptr what, const std::string& path,
                                       const value& storage_options);
  /// On each rank. The base reads a checkpoint's folder, or a safetensors file, which has weights
  /// only. Throws user_error (checkpoint).
  virtual snapshot load_checkpoint(const std::string& path);
  /// On all ranks; rank 0 removes, through the port that wrote.
  virtual void remove_checkpoint(const std::string& path);
  /// The value that is added to the caller's queue at the end of a run; empty: none. By default the
  /// reduced metrics.
  virtual value add_to_queue(const metrics& callback_metrics);

  // Ends.
  /// The job fails; `type` and `what` are those of its first cause, on every rank. `error` is the
  /// exception itself on the rank that threw it, elsewhere a std::runtime_error with its text. The
  /// generation is closed: collectives throw.
  virtual void on_exception(const std::exception_ptr& error, std::string_view type,
                            std::string_view what);
  /// When `orderly`, waits for the other ranks at the barrier "teardown".
  virtual void teardown(bool orderly);

  /// Time that training's steps spent in collectives so far.
  virtual std::chrono::nanoseconds waited() const { return std::chrono::nanoseconds{0}; }

  /// The module as the user wrote it; null before connect.
  const std::shared_ptr<troupe::module>& bare_module() const { return module_; }
  /// The rank's precision.
  precision& precision_in_use() const { return *parts_.precision; }
  /// What the rank was started with.
  const learner_context& about() const { return parts_.about; }

protected:
  optimizers* optimizers_in_use() const { return optimizers_; }
  const strategy_parts& parts() const { return parts_; }

private:
  strategy_parts parts_;
  void convert_once();

  std::shared_ptr<troupe::module> module_;
  bool converted_ = false;  // module_ has the precision's types
  optimizers* optimizers_ = nullptr;
};

/// mean (avg), sum, min, max, product (prod), in any case; others are a user_error.
reduction named_reduction(std::string_view name);
/// `what` with every tensor and number replaced by `stack` of it; texts and users' types are a
/// user_error. What all_gather does to a recursive value.
value stack_each(const value& what, const std::function<at::Tensor(const at::Tensor&)>& stack);

/// Called once per rank, in its lane. Never returns null.
using strategy_factory = std::function<std::unique_ptr<strategy>(strategy_parts parts)>;
/// By name, as `--strategy` takes it. A program adds or replaces entries.
using strategy_table = std::map<std::string, strategy_factory, std::less<>>;

/// single_device, data_parallel.
strategy_table default_strategies();
/// Throws user_error (bad_configuration) that lists the known names, or says that single_device has
/// one rank, unless make_strategy can make the strategy `name` for so many ranks.
void check_strategy(const strategy_table& known, std::string_view name, std::int32_t ranks);
/// `auto` is data_parallel with several ranks, else single_device. Throws as check_strategy does.
std::unique_ptr<strategy> make_strategy(const strategy_table& known, std::string_view name,
                                        strategy_parts parts);

// From a user's module and data to the learners of a job.

struct module;

/// Makes a rank's module. Called in its lane, with the generator seeded by the job's seed, so that
/// all ranks start with the same weights. Shared by all ranks: thread-safe.
using module_factory = std::function<std::shared_ptr<module>()>;

namespace detail {

struct any_field {
  void operator()(const std::string& name, auto& field) const;
};

template <class Argument>
void describe(std::ostream& out, const Argument& x);
template <class Item>
void describe(std::ostream& out, const std::vector<Item>& all) {
  out << '[';
  for (const Item& each : all) describe(out, each), out << ',';
  out << ']';
}
template <class Argument>
void describe(std::ostream& out, const Argument& x) {
  if constexpr (std::is_enum_v<Argument>) {
    out << +static_cast<std::underlying_type_t<Argument>>(x);
  } else if constexpr (std::is_arithmetic_v<Argument>) {
    out << +x;
  } else if constexpr (std::is_convertible_v<const Argument&, std::string_view>) {
    out << std::string_view{x};
  } else if constexpr (requires(Argument copy) { copy.fields(any_field{}); }) {
    auto copy = x;  // `fields` may be not const
    out << '{';
    copy.fields([&](const std::string& name, auto& field) {
      out << name << '=';
      describe(out, field);
      out << ',';
    });
    out << '}';
  } else {
    out << '?';
  }
}

/// `10classifier(32,{rate=0.5,},?,)`: the type as the compiler writes it, and the arguments that
/// have a text.
template <class Module, class... Arguments>
std::string identity_of(const Arguments&... arguments) {
  std::ostringstream out;
  out << std::setprecision(17) << typeid(Module).name() << '(';
  ((describe(out, arguments), out << ','), ...);
  out << ')';
  return out.str();
}

}  // namespace detail

/// What a program may replace. Factories are called once per rank, in its lane.
struct torch_plugins {
  /// By the names that options give. A program adds or replaces entries.
  /// @{
  strategy_table strategies = default_strategies();
  precision_table precisions = default_precisions();
  accelerator_table accelerators = default_accelerators();
  /// @}
  /// Null: all ranks on this host.
  std::function<std::shared_ptr<cluster_environment>(const learner_context&)> environment;
  /// The format of checkpoints: ranks read through it, and the checkpointer writes through it (see
  /// learner_recipe::checkpoints). With ranks as processes each of them makes the recipe anew, so
  /// both sides must set the same one. Null: what the session's ports have; without that, ranks
  /// read folders of safetensors with a manifest and none are written.
  std::shared_ptr<const checkpoint_io> checkpoints;
  /// How batch_to_device moves users' types; a type without an entry is not moved.
  move_table moves;
  /// Each rank's callbacks, in the order in which they are called:
  /// `{.callbacks = {learning_rate_monitor{}, timer{{.max_time = 1h}}}}`.
  std::vector<callback_factory> callbacks;
};

/// The recipe of a job: each rank gets a module and reads the data. `data` may be null for a run
/// that reads none. `identity` names the module that `model` makes; empty: unknown, and so is all
/// of the recipe. learner_recipe::identity adds to it
/// - the data's name,
/// - the types of the callbacks, and which plug-ins there are.
/// It does not know what a data module, a callback or a plug-in was made with.
recipe_ptr make_recipe(module_factory model, data_ptr data, torch_plugins plugins = {},
                       std::string identity = {});

/// `recipe_for<classifier>(data, arguments...)`: modules made as `classifier(arguments...)`, each
/// from copies of its own. Its identity is the module's type with those arguments, and the name of
/// the data. An argument is known if it is
/// - a number, an enumerator or a text,
/// - a struct that lists its fields, as hyper-parameters do (troupe/hyper_parameters.hpp),
/// - a std::vector of these.
/// Any other argument is unknown: ranks in processes of their own train with what their program
/// passes, and no error says that the job's caller passed something else.
template <class Module, class Data, class... Arguments>
recipe_ptr recipe_for(torch_plugins plugins, Data data, Arguments... arguments) {
  return make_recipe([=] { return std::make_shared<Module>(arguments...); }, std::move(data),
                     std::move(plugins), detail::identity_of<Module>(arguments...));
}
/// The same without plug-ins.
template <class Module, class Data, class... Arguments>
recipe_ptr recipe_for(Data data, Arguments... arguments) {
  return recipe_for<Module>(torch_plugins{}, std::move(data), std::move(arguments)...);
}
/// How a trainer finds recipe_for: by the module's type.
template <class Module, class... From>
requires std::derived_from<Module, module> recipe_ptr recipe_from(std::type_identity<Module>,
                                                                  From... from) {
  return recipe_for<Module>(std::move(from)...);
}

}  // namespace troupe
