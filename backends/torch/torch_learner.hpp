// One rank's replica of a user's module: handles every hook with a strategy, a precision and data.
// The handlers are in torch_learner.cpp (set-up), and in learner_data.cpp, learner_training.cpp,
// and so on: logging, manual, evaluation, state, recovery.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/learner/state_transfer.hpp"
#include "backends/torch/callback_list.hpp"
#include "backends/torch/lane_thread.hpp"
#include "backends/torch/learner_point.hpp"
#include "backends/torch/process_modes.hpp"
#include "backends/torch/rank_random.hpp"
#include "backends/torch/resume_check.hpp"
#include "troupe/detail/metric_accumulator.hpp"
#include "troupe/learner.hpp"
#include "troupe/measures.hpp"
#include "troupe/module.hpp"
#include "troupe/outcome.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

/// How a loader of a job with `options` reads: overfit_batches leaves out `shuffle` and `order`.
data_loading loading_of(data_module& data, stage s, std::int32_t dataloader,
                        const trainer_options& options);

/// The length of a fit whose epochs have so many micro-batches without a limit.
training_length length_of(const trainer_options& options, std::int64_t batches);

/// Throws user_error (bad_configuration) that says why `numbers` cannot train with one of `all`.
void check_precision(const precision& numbers, const optimizers& all);

/// The text of an exception. Cut off, because what() of LibTorch's exceptions ends in 25 lines of
/// stack frames.
std::string text_without_frames(const std::exception& error);

/// Whether the data of a job's recipe are prepared on the host of this process. Shared by the ranks
/// of the process, of which one prepares at a time.
struct data_preparation {
  std::mutex guard;
  bool done = false;
};

/// Accepts hooks in any order that actors/fit_machine.hpp can emit. The random generator is reset
/// before each hook: by (seed, epoch, batch, rank, hook) for a batch's data and steps, by (seed,
/// epoch, rank, hook) for all other hooks. Only the lane's thread calls members.
///
/// Recovery, in jobs that can restart:
/// - A point holds what is small (learner_point.hpp), not the weights. So `rewind` throws where the
///   weights may have changed since the point: from the end of an optimizer's closure until the
///   step and its schedulers are done. The rank then receives the state of others. In manual
///   optimization a point holds the weights too.
/// - With one optimizer that runs its closure once, that span contains no collective. With several
///   optimizers, with LBFGS, and with an engine that steps for each micro-batch, it contains those
///   of the later closures. A rank that is lost there leaves no rank with a state, and the job goes
///   on from a checkpoint.
/// - The learner keeps a point itself as soon as a step is done, because on_train_batch_end may
///   fail after that.
/// - Ranks exchange buffers before the update, and logged values if there are any to lose: when the
///   epoch has values, when the step's are reported, and in the last step of an epoch or a run. So
///   the step's row is known when the step is applied. on_train_batch_end reports it again, with
///   what that hook itself logged.
/// - A value that a lost rank logged after its last exchange is lost. That concerns values logged
///   in on_train_batch_end, and the last step's values where a stop or skip_epoch ends an epoch.
class torch_learner final : public learner, private module_services {
public:
  torch_learner(const learner_context& about, module_factory model, data_ptr data,
                const torch_plugins& plugins, std::shared_ptr<data_preparation> prepared,
                std::shared_ptr<partial_state> received);
  ~torch_learner() override;

  void bind(std::shared_ptr<communicator> world, generation_id generation) override;
  hook_outcome on(const hook& h, const closure& inner) override;
  void keep_point() override;
  /// After validate and test: metrics by name. After predict, on rank 0: predictions in the order
  /// of samples, as a list of batches, or with several loaders as a list of such lists.
  value result() override;

  strategy& strategy_in_use() override { return *strategy_; }

private:
  class scope;
  static constexpr const char* non_finite_name = "train/non_finite_steps";

  // The services that users' modules call.
  const position& at() const override { return at_; }
  const metrics& logged() const override { return logged_; }
  void log(std::string_view name, double sum, double count, const log_options& how) override;
  void queue(value what) override;
  void stop() override { wants_stop_ = true; }
  stop_reason why_ended() const override { return why_ended_; }
  std::int64_t samples() const override { return at_.batch == undefined ? 1 : batch_.samples(); }
  bool is_last_batch() const override;
  const value& hiddens() const override { return hiddens_; }
  void save(const std::string& path, const value& storage_options) override;
  optimizers* configured() override { return optimizers_there_ ? &optimizers_ : nullptr; }
  bool callbacks_read_gradients() const override { return callbacks_.reads_gradients(); }
  void backward_manually(const at::Tensor& loss) override;
  void step_manually(std::int32_t optimizer, const step_closure& closure) override;

  /// Calls a hook on the callbacks, the module and the strategy.
  template <class... P>
  void notify(void (callback::*first)(troupe::module&, P...), void (troupe::module::*second)(P...),
              void (strategy::*third)(P...), std::type_identity_t<P>... arguments) {
    callbacks_.call(*module_, first, arguments...);
    (module_.get()->*second)(arguments...);
    (strategy_.get()->*third)(arguments...);
  }

  // Setting up and taking down.
  void handle(const hooks::connect& h);
  void handle(const hooks::setup_environment& h);
  void handle(const hooks::prepare_data& h);
  void handle(const hooks::setup& h);
  void handle(const hooks::configure_model& h);
  void handle(const hooks::model_sharded_context& h);
  void handle(const hooks::model_to_device& h);
  void handle(const hooks::setup_optimizers& h);
  void handle(const hooks::setup_precision& h);
  void handle(const hooks::on_fit_start& h);
  void handle(const hooks::on_fit_end& h);
  void handle(const hooks::pre_dispatch& h);
  void handle(const hooks::dispatch& h);
  void handle(const hooks::post_dispatch& h);
  void handle(const hooks::process_dataloader& h);
  void handle(const hooks::on_exception& h);
  void handle(const hooks::teardown& h);

  // Barriers of a run.
  void handle(const hooks::barrier& h);

  // Training.
  void handle(const hooks::on_train_start& h);
  void handle(const hooks::on_train_epoch_start& h);
  void handle(const hooks::batch_to_device& h);
  void handle(const hooks::on_train_batch_start& h);
  void handle(const hooks::tbptt_split_batch& h);
  void handle(const hooks::training_step& h);
  void handle(const hooks::training_step_end& h);
  void handle(const hooks::on_before_zero_grad& h);
  void handle(const hooks::optimizer_zero_grad& h);
  void handle(const hooks::pre_backward& h);
  void handle(const hooks::on_before_backward& h);
  void handle(const hooks::backward& h);
  void handle(const hooks::on_after_backward& h);
  void handle(const hooks::post_backward& h);
  void handle(const hooks::on_before_optimizer_step& h);
  void handle(const hooks::clip_gradients& h);
  void handle(const hooks::optimizer_step& h);
  void handle(const hooks::lr_scheduler_step& h);
  void handle(const hooks::on_train_batch_end& h);
  void handle(const hooks::on_train_epoch_end& h);
  void handle(const hooks::on_train_end& h);

  // Evaluation.
  void handle(const hooks::on_sanity_check_start& h);
  void handle(const hooks::on_sanity_check_end& h);
  void handle(const hooks::on_validation_model_zero_grad& h);
  void handle(const hooks::on_validation_model_eval& h);
  void handle(const hooks::on_validation_model_train& h);
  void handle(const hooks::on_validation_start& h);
  void handle(const hooks::on_validation_epoch_start& h);
  void handle(const hooks::on_validation_batch_start& h);
  void handle(const hooks::validation_step& h);
  void handle(const hooks::validation_step_end& h);
  void handle(const hooks::on_validation_batch_end& h);
  void handle(const hooks::on_validation_epoch_end& h);
  void handle(const hooks::on_validation_end& h);
  void handle(const hooks::on_test_model_eval& h);
  void handle(const hooks::on_test_model_train& h);
  void handle(const hooks::on_test_start& h);
  void handle(const hooks::on_test_epoch_start& h);
  void handle(const hooks::on_test_batch_start& h);
  void handle(const hooks::test_step& h);
  void handle(const hooks::test_step_end& h);
  void handle(const hooks::on_test_batch_end& h);
  void handle(const hooks::on_test_epoch_end& h);
  void handle(const hooks::on_test_end& h);
  void handle(const hooks::on_predict_model_eval& h);
  void handle(const hooks::on_predict_model_train& h);
  void handle(const hooks::on_predict_start& h);
  void handle(const hooks::on_predict_epoch_start& h);
  void handle(const hooks::on_predict_batch_start& h);
  void handle(const hooks::predict_step& h);
  void handle(const hooks::on_predict_batch_end& h);
  void handle(const hooks::on_predict_epoch_end& h);
  void handle(const hooks::on_predict_end& h);

  // State.
  void handle(const hooks::load_checkpoint& h);
  void handle(const hooks::on_load_checkpoint& h);
  void handle(const hooks::optimizer_state& h);
  void handle(const hooks::on_save_checkpoint& h);
  void handle(const hooks::save_checkpoint& h);
  void handle(const hooks::rewind& h);
  void handle(const hooks::restore_state& h);

  static std::string purpose_of(std::string_view hook, std::string_view what, std::int64_t number);
  void draw_from(std::string_view purpose);
  void take_device();
  void mark_step();
  std::exception_ptr cause_of(const hooks::on_exception& h) const;
  void configure_optimizers();
  void describe_optimizers();
  void set_up_precision();
  std::vector<dataset_ptr> datasets(stage s);
  void make_loaders(stage s);
  std::int64_t front_batches() const;
  training_length length();
  bool idle() const { return batch_.empty(); }
  torch::optim::Optimizer& optimizer(const position& at);
  torch::optim::Optimizer& optimizer() { return optimizer(at_); }

  // The position in one loader.
  struct loader_cursor {
    std::unique_ptr<loader> way;
    std::int64_t samples = 0;  // of the dataset
    std::int64_t epoch = undefined;
    std::int64_t next = undefined;
    std::int64_t last = undefined;  // where the pass ends, exclusive
    std::int64_t marked = 0;        // micro-batches before the last step mark
  };
  loader_cursor& cursor_at(const position& at);
  std::int64_t limit_of(stage s, std::int64_t batches) const;
  bool validates() const;
  bool plateau_due(const position& at, const std::string& monitor) const;

  bool splits_batches() const { return split_steps_ > 0; }
  std::int32_t agreed_splits();
  void take_hiddens();
  bool ends_step(const position& at) const;
  void forget_batch();
  void freeze_others(std::vector<std::pair<at::Tensor, bool>>& before);
  void refuse_manual() const;
  void refuse_empty_share(std::int64_t epoch);
  void end_manual_step(const position& at);
  std::chrono::nanoseconds clock() const;
  bool goes_by_clock() const;
  void look_at_clock();
  std::string clocks_text() const;
  void take_clocks(const std::string& text);
  void report_due();
  void refuse_lost_value(std::string_view name, bool on_step) const;
  void show(const std::string& name);
  void report(metric_accumulator& book);
  void report_steps();
  void report_non_finite();
  void report_end();
  void agree_on_stop();
  void report_stop();
  void synchronize_buffers();
  void begin_evaluation();
  void begin_evaluation_batch(std::int32_t dataloader);
  void end_evaluation_epoch();
  void gather_predictions();
  byte_exchange exchange();

  void add_hook_changes(nlohmann::json& state) const;
  std::string state_text(const std::map<std::string, metric_accumulator::entry>& steps,
                         const std::map<std::string, metric_accumulator::entry>& epochs);
  snapshot_ptr take_snapshot(const loop_state& loop);
  std::shared_ptr<snapshot> snapshot_of(const loop_state& loop, std::vector<tensor_blob> model,
                                        const metric_accumulator& steps,
                                        const metric_accumulator& epochs);
  void save_point(const loop_state& loop);
  loop_state loop_to_repeat() const;
  void exchange_logs_of_end();
  void refuse_unsaved() const;
  void refuse_unsaved_optimizers();
  void take_weights(const snapshot& from);
  void take_initial(const snapshot& from);
  void take_loaded_weights();
  void take_data(const nlohmann::json& state);
  void take_data_of_evaluation(const nlohmann::json& state);
  void take_everything(snapshot& from);
  fit_record record() const;

  // Recovery.
  bool keeps_points() const { return troupe::keeps_points(about_.options); }
  bool reports_step(const position& before) const;
  bool ends_reporting(const position& before) const;
  void before_update(const position& at);
  void exchange_books();
  void step_updated(const position& at);
  void complete_step();
  void keep_end_of_step();
  bool was_interrupted() const;
  void make_point_equal();
  void keep_buffers();
  void keep_weights();
  void return_weights();
  void check_schedulers() const;
  void return_to_point();
  void forget_step();
  std::vector<metric_accumulator> exchanged_books(bool of_epochs) const;
  replica_state own_state();
  std::string transferred_text();
  std::vector<tensor_blob> take_transferred(replica_state from, const hooks::restore_state& h);
  std::vector<std::pair<std::string, at::Tensor>> common_buffers() const;
  std::vector<tensor_blob> own_buffers() const;
  void take_own_buffers(const std::vector<tensor_blob>& from);
  void add_gradients(std::vector<tensor_blob>& to) const;
  void take_gradients(const std::vector<tensor_blob>& from);
  void take_numbers(const std::string& text);

  lane_thread thread_;
  learner_context about_;
  process_modes modes_;
  module_factory model_;
  data_ptr data_;
  std::shared_ptr<data_preparation> prepared_;
  rank_random random_;
  std::shared_ptr<precision> precision_;
  callback_list callbacks_;
  chosen_devices place_;
  std::unique_ptr<strategy> strategy_;
  std::optional<c10::Device> device_;  // the rank's, once its environment is set up
  generation_id generation_{1};
  std::shared_ptr<troupe::module> module_;
  optimizers optimizers_;
  bool optimizers_there_ = false;
  bool optimizers_checked_ = false;  // that they save what they keep
  std::unique_ptr<precision::context> building_;
  std::map<stage, std::vector<loader_cursor>> cursors_;
  bool data_set_up_ = false;
  std::optional<training_length> length_;  // once the loaders of training are made

  // The hook in progress; closures nest.
  position at_;
  hook_outcome* outcome_ = nullptr;
  std::exception_ptr thrown_;  // by the last hook that failed
  const closure* inner_ = nullptr;

  // The batch in progress.
  batch batch_;
  step_output output_;
  value predicted_;
  at::Tensor loss_;  // scaled

  // Its parts in time, with truncated back-propagation.
  std::int64_t split_steps_ = 0;  // length of a part; 0: batches are not split
  std::int32_t splits_ = 1;
  std::vector<value> splits_of_batch_;  // empty on a rank without samples
  std::int32_t split_ = 0;              // the part in progress
  value hiddens_;                       // its input
  value next_hiddens_;                  // its result

  // The step in progress.
  std::vector<double> window_losses_;  // by optimizer
  std::int64_t window_first_ = 0;
  std::int64_t window_last_ = 0;
  step_status word_;
  bool stepped_ = false;                         // the batch in progress ended a step
  std::optional<metric_accumulator> last_step_;  // what the step before it logged in this epoch
  bool steps_reported_ = true;                   // the last step's metrics were reported
  bool end_reported_ = false;                    // report_end was called
  bool evaluation_open_ = false;                 // values of an evaluation are not reduced yet
  bool in_epoch_schedules_ = false;              // after the epoch's values are reported
  bool finite_ = true;                           // the losses of the step in progress, so far
  std::int64_t non_finite_steps_ = 0;            // with a loss that was infinite or no number
  bool wants_stop_ = false;
  stop_reason why_ended_ = stop_reason::none;
  std::chrono::nanoseconds waited_{0};  // reported so far

  bool manual_ = false;     // the module trains itself
  bool in_manual_ = false;  // its training_step is running

  // What goes by rank 0's clock: when a checkpoint was due, when a validation ended, what is due
  // after the step in progress.
  std::chrono::nanoseconds saved_at_{0};
  std::chrono::nanoseconds validated_at_{0};
  bool save_due_ = false;
  bool validation_due_ = false;

  // The profile, with trainer_options::profiler.
  hook_profile profile_;
  std::chrono::nanoseconds inner_time_{0};  // of hooks inside the one in progress

  std::optional<measures::joint_update> measures_;  // of module_, once it is complete
  metric_accumulator step_book_;
  metric_accumulator epoch_book_;
  // One per loader, because a rank may have no samples of one; the last one is for metrics that
  // belong to no loader.
  std::vector<metric_accumulator> evaluation_books_{1};
  std::set<std::string, std::less<>> shown_;  // names logged with prog_bar
  metrics logged_;
  metrics results_;
  struct logs {
    metric_accumulator steps, epochs;
    metrics logged;
    bool steps_reported;
  };
  std::optional<logs> before_end_;  // before report_end, or the reports of an epoch's end
  struct prediction {
    std::int32_t dataloader;
    std::int64_t batch;
    std::int32_t rank;
    value what;
  };
  std::vector<prediction> predictions_;
  std::size_t predict_loaders_ = 1;

  // Recovery.
  std::shared_ptr<communicator> world_;
  std::unique_ptr<learner_point> kept_;
  bool tensors_kept_ = false;      // the point has the tensors as they are now
  bool common_stays_ = false;      // the hook in progress changes nothing that all ranks have
  bool callbacks_behind_ = false;  // a step is done, and the callbacks' on_train_batch_end is not
  bool step_end_due_ = false;      // a step is done, and on_train_batch_end is not
  bool torn_ = false;              // the weights may be neither of the last point nor of a step
  bool step_schedulers_ = false;   // a step ends with its schedulers
  // All ranks' step_book_ and epoch_book_, as of the last exchange; null: none in this epoch.
  std::shared_ptr<const std::vector<std::vector<std::byte>>> books_;
  bool books_of_step_ = false;  // that exchange was in the last step
  bool epoch_logs_ = true;      // some rank had values for the epoch then
  std::shared_ptr<partial_state> received_;

  // What hooks change of the module and its optimizers.
  std::optional<module_flags> at_start_;           // after on_train_start
  group_sizes groups_at_start_;                    // without parameters that hooks added
  std::optional<module_flags> before_evaluation_;  // of the validation in progress
  std::string hook_changes_;                       // in the checkpoint; due after on_train_start

  // The last step boundary, as far as the learner knows it; pending_stop: any that was reported.
  loop_state done_;
  bool in_step_ = false;  // a step has begun, or its schedulers are due
  std::string loaded_path_;
  std::optional<snapshot> loaded_;
  bool weights_due_ = false;  // to be loaded after model_to_device
  std::map<std::int32_t, troupe::optimizer_state> optimizer_states_;
  std::string module_json_;
};

}  // namespace troupe
