#include <utility>

#include "troupe/callbacks.hpp"

namespace troupe {

namespace {

template <class F, class... A>
void call_if_set(const F& function, A&&... arguments) {
  if (function) function(std::forward<A>(arguments)...);
}

}  // namespace

void lambda_callback::setup(module& m, stage purpose) { call_if_set(f_.setup, m, purpose); }
void lambda_callback::teardown(module& m, stage purpose) { call_if_set(f_.teardown, m, purpose); }
void lambda_callback::on_fit_start(module& m) { call_if_set(f_.on_fit_start, m); }
void lambda_callback::on_fit_end(module& m) { call_if_set(f_.on_fit_end, m); }
void lambda_callback::on_exception(module& m, std::string_view type, std::string_view what) {
  call_if_set(f_.on_exception, m, type, what);
}
void lambda_callback::on_train_start(module& m) { call_if_set(f_.on_train_start, m); }
void lambda_callback::on_train_end(module& m) { call_if_set(f_.on_train_end, m); }
void lambda_callback::on_train_epoch_start(module& m, std::int64_t epoch) {
  call_if_set(f_.on_train_epoch_start, m, epoch);
}
void lambda_callback::on_train_epoch_end(module& m, std::int64_t epoch) {
  call_if_set(f_.on_train_epoch_end, m, epoch);
}
void lambda_callback::on_train_batch_start(module& m, const batch& b, std::int64_t index) {
  call_if_set(f_.on_train_batch_start, m, b, index);
}
void lambda_callback::on_train_batch_end(module& m, const step_output& output, const batch& b,
                                         std::int64_t index) {
  call_if_set(f_.on_train_batch_end, m, output, b, index);
}
void lambda_callback::on_before_zero_grad(module& m, torch::optim::Optimizer& optimizer) {
  call_if_set(f_.on_before_zero_grad, m, optimizer);
}
void lambda_callback::on_before_backward(module& m, const at::Tensor& loss) {
  call_if_set(f_.on_before_backward, m, loss);
}
void lambda_callback::on_after_backward(module& m) { call_if_set(f_.on_after_backward, m); }
void lambda_callback::on_before_optimizer_step(module& m, torch::optim::Optimizer& optimizer) {
  call_if_set(f_.on_before_optimizer_step, m, optimizer);
}
void lambda_callback::on_sanity_check_start(module& m) { call_if_set(f_.on_sanity_check_start, m); }
void lambda_callback::on_sanity_check_end(module& m) { call_if_set(f_.on_sanity_check_end, m); }
void lambda_callback::on_validation_start(module& m) { call_if_set(f_.on_validation_start, m); }
void lambda_callback::on_validation_end(module& m) { call_if_set(f_.on_validation_end, m); }
void lambda_callback::on_validation_epoch_start(module& m) {
  call_if_set(f_.on_validation_epoch_start, m);
}
void lambda_callback::on_validation_epoch_end(module& m) {
  call_if_set(f_.on_validation_epoch_end, m);
}
void lambda_callback::on_validation_batch_start(module& m, const batch& b, std::int64_t index,
                                                std::int32_t dataloader) {
  call_if_set(f_.on_validation_batch_start, m, b, index, dataloader);
}
void lambda_callback::on_validation_batch_end(module& m, const step_output& output, const batch& b,
                                              std::int64_t index, std::int32_t dataloader) {
  call_if_set(f_.on_validation_batch_end, m, output, b, index, dataloader);
}
void lambda_callback::on_test_start(module& m) { call_if_set(f_.on_test_start, m); }
void lambda_callback::on_test_end(module& m) { call_if_set(f_.on_test_end, m); }
void lambda_callback::on_test_epoch_start(module& m) { call_if_set(f_.on_test_epoch_start, m); }
void lambda_callback::on_test_epoch_end(module& m) { call_if_set(f_.on_test_epoch_end, m); }
void lambda_callback::on_test_batch_start(module& m, const batch& b, std::int64_t index,
                                          std::int32_t dataloader) {
  call_if_set(f_.on_test_batch_start, m, b, index, dataloader);
}
void lambda_callback::on_test_batch_end(module& m, const step_output& output, const batch& b,
                                        std::int64_t index, std::int32_t dataloader) {
  call_if_set(f_.on_test_batch_end, m, output, b, index, dataloader);
}
void lambda_callback::on_predict_start(module& m) { call_if_set(f_.on_predict_start, m); }
void lambda_callback::on_predict_end(module& m) { call_if_set(f_.on_predict_end, m); }
void lambda_callback::on_predict_epoch_start(module& m) {
  call_if_set(f_.on_predict_epoch_start, m);
}
void lambda_callback::on_predict_epoch_end(module& m) { call_if_set(f_.on_predict_epoch_end, m); }
void lambda_callback::on_predict_batch_start(module& m, const batch& b, std::int64_t index,
                                             std::int32_t dataloader) {
  call_if_set(f_.on_predict_batch_start, m, b, index, dataloader);
}
void lambda_callback::on_predict_batch_end(module& m, const value& output, const batch& b,
                                           std::int64_t index, std::int32_t dataloader) {
  call_if_set(f_.on_predict_batch_end, m, output, b, index, dataloader);
}
void lambda_callback::on_save_checkpoint(module& m) { call_if_set(f_.on_save_checkpoint, m); }
void lambda_callback::on_checkpoint_taken(module& m) { call_if_set(f_.on_checkpoint_taken, m); }
void lambda_callback::on_load_checkpoint(module& m) { call_if_set(f_.on_load_checkpoint, m); }

bool lambda_callback::reads_gradients() const {
  return f_.on_after_backward || f_.on_before_optimizer_step || f_.on_before_zero_grad;
}

}  // namespace troupe
