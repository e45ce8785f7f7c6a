// One rank's replica of a user's module: handles every hook with a strategy, a precision and data.
// The handlers are in torch_learner.cpp (set-up), learner_training.cpp, learner_evaluation.cpp and
// learner_state.cpp.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/torch/lane_thread.hpp"
#include "backends/torch/rank_random.hpp"
#include "backends/torch/resume_check.hpp"
#include "troupe/detail/metric_accumulator.hpp"
#include "troupe/learner.hpp"
#include "troupe/module.hpp"
#include "troupe/recipe.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

/// Accepts hooks in any order that actors/fit_machine.hpp can emit. The random generator is reset
/// before each hook: by (seed, epoch, batch, rank, hook) for a batch's data and steps, by (seed,
/// epoch, rank, hook) for all other hooks. Only the lane's thread calls members.
class torch_learner final : public learner, private module_services {
public:
  torch_learner(const learner_context& about, module_factory model, data_ptr data,
                const torch_plugins& plugins);
  ~torch_learner() override;

  void bind(std::shared_ptr<communicator> world, generation_id generation) override;
  hook_outcome on(const hook& h, const closure& inner) override;
  void keep_point() override;
  /// After validate and test: metrics by name. After predict, on rank 0: predictions in the order
  /// of samples, as a list of batches, or with several loaders as a list of such lists.
  value result() override;

  strategy& how() override { return *strategy_; }

private:
  class scope;

  // The services that users' modules call.
  const position& at() const override { return at_; }
  const metrics& logged() const override { return logged_; }
  void log(std::string_view name, double sum, double count, const log_options& how) override;
  void queue(value what) override;
  void stop() override { wants_stop_ = true; }
  std::int64_t samples() const override { return batch_.samples(); }

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

  void draw_from(std::string_view hook);
  void configure_optimizers();
  std::vector<dataset_ptr> datasets(stage s);
  bool idle() const { return batch_.empty(); }
  torch::optim::Optimizer& optimizer(const position& at);
  torch::optim::Optimizer& optimizer() { return optimizer(at_); }

  // The position in one loader.
  struct loader_cursor {
    std::unique_ptr<loader> way;
    std::int64_t epoch = undefined;
    std::int64_t next = undefined;
  };
  loader_cursor& cursor_at(const position& at);
  std::int64_t limit_of(stage s, std::int64_t batches) const;

  void freeze_others(std::vector<std::pair<at::Tensor, bool>>& before);
  void report(metric_accumulator& book);
  void report_steps();
  void report_non_finite();
  void agree_on_stop();
  void begin_evaluation();
  void end_evaluation_epoch();
  void gather_predictions();
  byte_exchange exchange();

  std::string state_text(const std::map<std::string, metric_accumulator::entry>& steps,
                         const std::map<std::string, metric_accumulator::entry>& epochs);
  void take_weights(const snapshot& from);
  void take_loaded_weights();
  void take_everything(snapshot& from);
  fit_record record() const;

  lane_thread thread_;
  learner_context about_;
  module_factory model_;
  data_ptr data_;
  rank_random random_;
  std::shared_ptr<precision> precision_;
  std::unique_ptr<strategy> strategy_;
  generation_id generation_{1};
  std::shared_ptr<troupe::module> module_;
  optimizers optimizers_;
  bool optimizers_there_ = false;
  std::unique_ptr<precision::context> building_;
  std::map<stage, std::vector<loader_cursor>> cursors_;

  // The hook in progress; closures nest.
  position at_;
  hook_outcome* outcome_ = nullptr;
  const closure* inner_ = nullptr;

  // The batch in progress.
  batch batch_;
  step_output output_;
  value predicted_;
  at::Tensor loss_;  // scaled

  // The step in progress.
  std::vector<double> window_losses_;  // by optimizer
  std::int64_t window_first_ = 0;
  std::int64_t window_last_ = 0;
  step_status word_;
  bool stepped_ = false;               // the batch in progress ended a step
  bool steps_reported_ = true;         // the last step's metrics were reported
  bool finite_ = true;                 // the losses of the step in progress, so far
  std::int64_t non_finite_steps_ = 0;  // with a loss that was infinite or no number
  bool wants_stop_ = false;
  std::chrono::nanoseconds waited_{0};  // reported so far

  metric_accumulator step_book_;
  metric_accumulator epoch_book_;
  // One per loader, because a rank may have no samples of one; the last one is for metrics that
  // belong to no loader.
  std::vector<metric_accumulator> evaluation_books_{1};
  metrics logged_;
  metrics results_;
  struct prediction {
    std::int32_t dataloader;
    std::int64_t batch;
    std::int32_t rank;
    value what;
  };
  std::vector<prediction> predictions_;
  std::size_t predict_loaders_ = 1;

  std::string loaded_path_;
  std::optional<snapshot> loaded_;
  bool weights_due_ = false;  // to be loaded after model_to_device
  std::map<std::int32_t, troupe::optimizer_state> optimizer_states_;
  std::string module_json_;
};

}  // namespace troupe
