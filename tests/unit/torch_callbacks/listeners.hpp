// A callback, a module and a strategy that write down every hook that is called on them, on rank 0.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callback.hpp"
#include "troupe/data_parallel.hpp"

namespace troupe::testing {

using diary_ptr = std::shared_ptr<std::vector<std::string>>;

struct noting_callback : callback {
  noting_callback(std::string name, diary_ptr into)
      : name_(std::move(name)), into_(std::move(into)) {}
  void note(const char* hook) const { into_->push_back(name_ + ":" + hook); }
  void setup(module&, stage) override { note("setup"); }
  void teardown(module&, stage) override { note("teardown"); }
  void on_fit_start(module&) override { note("on_fit_start"); }
  void on_fit_end(module&) override { note("on_fit_end"); }
  void on_train_start(module&) override { note("on_train_start"); }
  void on_train_end(module&) override { note("on_train_end"); }
  void on_sanity_check_start(module&) override { note("on_sanity_check_start"); }
  void on_sanity_check_end(module&) override { note("on_sanity_check_end"); }
  void on_validation_start(module&) override { note("on_validation_start"); }
  void on_validation_end(module&) override { note("on_validation_end"); }
  void on_validation_epoch_start(module&) override { note("on_validation_epoch_start"); }
  void on_validation_epoch_end(module&) override { note("on_validation_epoch_end"); }
  void on_test_start(module&) override { note("on_test_start"); }
  void on_test_end(module&) override { note("on_test_end"); }
  void on_test_epoch_start(module&) override { note("on_test_epoch_start"); }
  void on_test_epoch_end(module&) override { note("on_test_epoch_end"); }
  void on_predict_start(module&) override { note("on_predict_start"); }
  void on_predict_end(module&) override { note("on_predict_end"); }
  void on_predict_epoch_start(module&) override { note("on_predict_epoch_start"); }
  void on_predict_epoch_end(module&) override { note("on_predict_epoch_end"); }
  void on_train_epoch_start(module&, std::int64_t) override { note("on_train_epoch_start"); }
  void on_train_epoch_end(module&, std::int64_t) override { note("on_train_epoch_end"); }
  void on_train_batch_start(module&, const batch&, std::int64_t) override {
    note("on_train_batch_start");
  }
  void on_train_batch_end(module&, const step_output&, const batch&, std::int64_t) override {
    note("on_train_batch_end");
  }
  void on_validation_batch_start(module&, const batch&, std::int64_t, std::int32_t) override {
    note("on_validation_batch_start");
  }
  void on_validation_batch_end(module&, const step_output&, const batch&, std::int64_t,
                               std::int32_t) override {
    note("on_validation_batch_end");
  }
  void on_test_batch_start(module&, const batch&, std::int64_t, std::int32_t) override {
    note("on_test_batch_start");
  }
  void on_test_batch_end(module&, const step_output&, const batch&, std::int64_t,
                         std::int32_t) override {
    note("on_test_batch_end");
  }
  void on_predict_batch_start(module&, const batch&, std::int64_t, std::int32_t) override {
    note("on_predict_batch_start");
  }
  void on_predict_batch_end(module&, const value&, const batch&, std::int64_t,
                            std::int32_t) override {
    note("on_predict_batch_end");
  }
  void on_before_zero_grad(module&, torch::optim::Optimizer&) override {
    note("on_before_zero_grad");
  }
  void on_before_optimizer_step(module&, torch::optim::Optimizer&) override {
    note("on_before_optimizer_step");
  }
  void on_before_backward(module&, const at::Tensor&) override { note("on_before_backward"); }
  void on_after_backward(module&) override { note("on_after_backward"); }
  void on_save_checkpoint(module&) override { note("on_save_checkpoint"); }
  void on_checkpoint_taken(module&) override { note("on_checkpoint_taken"); }
  void on_load_checkpoint(module&) override { note("on_load_checkpoint"); }
  std::string name_;
  diary_ptr into_;
};

struct noting_module : regression {
  explicit noting_module(diary_ptr into) : into_(std::move(into)) {}
  void note(const char* hook) const {
    if (rank() == 0) into_->push_back(std::string{"module:"} + hook);
  }
  void setup(stage) override { note("setup"); }
  void teardown(stage) override { note("teardown"); }
  void on_fit_start() override { note("on_fit_start"); }
  void on_fit_end() override { note("on_fit_end"); }
  void on_train_start() override { note("on_train_start"); }
  void on_train_end() override { note("on_train_end"); }
  void on_sanity_check_start() override { note("on_sanity_check_start"); }
  void on_sanity_check_end() override { note("on_sanity_check_end"); }
  void on_validation_start() override { note("on_validation_start"); }
  void on_validation_end() override { note("on_validation_end"); }
  void on_validation_epoch_start() override { note("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { note("on_validation_epoch_end"); }
  void on_test_start() override { note("on_test_start"); }
  void on_test_end() override { note("on_test_end"); }
  void on_test_epoch_start() override { note("on_test_epoch_start"); }
  void on_test_epoch_end() override { note("on_test_epoch_end"); }
  void on_predict_start() override { note("on_predict_start"); }
  void on_predict_end() override { note("on_predict_end"); }
  void on_predict_epoch_start() override { note("on_predict_epoch_start"); }
  void on_predict_epoch_end() override { note("on_predict_epoch_end"); }
  void on_train_epoch_start(std::int64_t) override { note("on_train_epoch_start"); }
  void on_train_epoch_end(std::int64_t) override { note("on_train_epoch_end"); }
  batch_verdict on_train_batch_start(const batch&, std::int64_t) override {
    note("on_train_batch_start");
    return batch_verdict::undecided;
  }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    note("on_train_batch_end");
  }
  void on_validation_batch_start(const batch&, std::int64_t, std::int32_t) override {
    note("on_validation_batch_start");
  }
  void on_validation_batch_end(const step_output&, const batch&, std::int64_t,
                               std::int32_t) override {
    note("on_validation_batch_end");
  }
  void on_test_batch_start(const batch&, std::int64_t, std::int32_t) override {
    note("on_test_batch_start");
  }
  void on_test_batch_end(const step_output&, const batch&, std::int64_t, std::int32_t) override {
    note("on_test_batch_end");
  }
  void on_predict_batch_start(const batch&, std::int64_t, std::int32_t) override {
    note("on_predict_batch_start");
  }
  void on_predict_batch_end(const value&, const batch&, std::int64_t, std::int32_t) override {
    note("on_predict_batch_end");
  }
  void on_before_zero_grad(torch::optim::Optimizer&) override { note("on_before_zero_grad"); }
  void on_before_optimizer_step(torch::optim::Optimizer&) override {
    note("on_before_optimizer_step");
  }
  void on_before_backward(const at::Tensor&) override { note("on_before_backward"); }
  void on_after_backward() override { note("on_after_backward"); }
  std::string on_save_checkpoint() override {
    note("on_save_checkpoint");
    return {};
  }
  void on_load_checkpoint(const std::string&) override { note("on_load_checkpoint"); }
  diary_ptr into_;
};

struct noting_strategy : data_parallel {
  noting_strategy(strategy_parts parts, diary_ptr into)
      : data_parallel(std::move(parts)), into_(std::move(into)) {}
  std::string_view name() const override { return "noting"; }
  void note(const char* hook) const {
    if (rank() == 0) into_->push_back(std::string{"strategy:"} + hook);
  }
  void setup(stage) override { note("setup"); }
  void on_fit_start() override { note("on_fit_start"); }
  void on_fit_end() override { note("on_fit_end"); }
  void on_train_start() override { note("on_train_start"); }
  void on_train_end() override { note("on_train_end"); }
  void on_sanity_check_start() override { note("on_sanity_check_start"); }
  void on_sanity_check_end() override { note("on_sanity_check_end"); }
  void on_validation_start() override { note("on_validation_start"); }
  void on_validation_end() override { note("on_validation_end"); }
  void on_validation_epoch_start() override { note("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { note("on_validation_epoch_end"); }
  void on_test_start() override { note("on_test_start"); }
  void on_test_end() override { note("on_test_end"); }
  void on_test_epoch_start() override { note("on_test_epoch_start"); }
  void on_test_epoch_end() override { note("on_test_epoch_end"); }
  void on_predict_start() override { note("on_predict_start"); }
  void on_predict_end() override { note("on_predict_end"); }
  void on_predict_epoch_start() override { note("on_predict_epoch_start"); }
  void on_predict_epoch_end() override { note("on_predict_epoch_end"); }
  void on_train_epoch_start(std::int64_t) override { note("on_train_epoch_start"); }
  void on_train_epoch_end(std::int64_t) override { note("on_train_epoch_end"); }
  void on_train_batch_start(const batch&, std::int64_t) override { note("on_train_batch_start"); }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    note("on_train_batch_end");
  }
  void on_validation_batch_start(const batch&, std::int64_t, std::int32_t) override {
    note("on_validation_batch_start");
  }
  void on_validation_batch_end(const step_output&, const batch&, std::int64_t,
                               std::int32_t) override {
    note("on_validation_batch_end");
  }
  void on_test_batch_start(const batch&, std::int64_t, std::int32_t) override {
    note("on_test_batch_start");
  }
  void on_test_batch_end(const step_output&, const batch&, std::int64_t, std::int32_t) override {
    note("on_test_batch_end");
  }
  void on_predict_batch_start(const batch&, std::int64_t, std::int32_t) override {
    note("on_predict_batch_start");
  }
  void on_predict_batch_end(const value&, const batch&, std::int64_t, std::int32_t) override {
    note("on_predict_batch_end");
  }
  diary_ptr into_;
};

}  // namespace troupe::testing
