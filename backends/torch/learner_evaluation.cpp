#include "backends/torch/torch_learner.hpp"

#include <algorithm>
#include <tuple>

namespace troupe {

// Clears the accumulators: metrics of an evaluation do not include earlier ones.
void torch_learner::begin_evaluation() {
  const auto loaders = cursors_[at_.stage == stage::sanity ? stage::validate : at_.stage].size();
  evaluation_books_.assign(loaders > 1 ? loaders + 1 : 1, {});
  evaluation_open_ = true;
}

// The last book has what is of no loader alone.
void torch_learner::begin_evaluation_batch(std::int32_t dataloader) {
  auto& books = evaluation_books_;
  books.back().begin_batch(!idle());
  if (books.size() > 1) books.at(static_cast<std::size_t>(dataloader)).begin_batch(!idle());
}

// A sanity check reduces too, so that errors show at once, but its metrics are not reported.
void torch_learner::end_evaluation_epoch() {
  metrics reduced;
  for (auto& book : evaluation_books_) reduced.merge(book.reduce(exchange()));
  evaluation_open_ = false;
  if (at_.stage == stage::sanity) return;
  for (const auto& [name, number] : reduced) {
    logged_[name] = number;
    if (at_.stage == stage::validate) done_.of_validation.insert(name);
    results_[name] = number;
    outcome_->logged[name] = number;
    show(name);
  }
}

// As early stopping does, a plateau scheduler looks at the end of a validation for a value that
// validations log, else at the end of an epoch.
bool torch_learner::plateau_due(const position& at, const std::string& monitor) const {
  const bool epoch_ends = at.batch == undefined;
  const bool of_validation = done_.of_validation.contains(monitor);
  if (of_validation || !epoch_ends) return of_validation && !epoch_ends;
  const auto every = about_.options.check_val_every_n_epoch;
  const bool had_validation = every > 0 && !about_.options.val_check_time
                                  ? (at.epoch + 1) % every == 0
                                  : !done_.of_validation.empty();
  return logged_.contains(monitor) || (had_validation && validates());
}

void torch_learner::handle(const hooks::on_sanity_check_start&) {
  notify(&callback::on_sanity_check_start, &troupe::module::on_sanity_check_start,
         &strategy::on_sanity_check_start);
}
void torch_learner::handle(const hooks::on_sanity_check_end&) {
  notify(&callback::on_sanity_check_end, &troupe::module::on_sanity_check_end,
         &strategy::on_sanity_check_end);
}

// --- validation ----------------------------------------------------------------------------------

void torch_learner::handle(const hooks::on_validation_model_zero_grad&) {
  module_->on_validation_model_zero_grad();
}
void torch_learner::handle(const hooks::on_validation_model_eval&) {
  before_evaluation_ = flags_of(*module_);
  module_->remember_modes();
  module_->on_validation_model_eval();
}
void torch_learner::handle(const hooks::on_validation_model_train&) {
  module_->on_validation_model_train();
  before_evaluation_.reset();
}
void torch_learner::handle(const hooks::on_validation_start&) {
  begin_evaluation();
  notify(&callback::on_validation_start, &troupe::module::on_validation_start,
         &strategy::on_validation_start);
}
void torch_learner::handle(const hooks::on_validation_epoch_start&) {
  notify(&callback::on_validation_epoch_start, &troupe::module::on_validation_epoch_start,
         &strategy::on_validation_epoch_start);
}
void torch_learner::handle(const hooks::on_validation_batch_start& h) {
  begin_evaluation_batch(h.at.dataloader);
  notify(&callback::on_validation_batch_start, &troupe::module::on_validation_batch_start,
         &strategy::on_validation_batch_start, batch_, h.at.batch, h.at.dataloader);
}
void torch_learner::handle(const hooks::validation_step& h) {
  if (idle()) return;
  draw_from(purpose_of(h.name, "loader", h.at.dataloader));
  output_ = strategy_->validation_step(batch_, h.at.batch);
  mark_step();
}
void torch_learner::handle(const hooks::validation_step_end&) {
  if (idle()) return;
  output_ = module_->validation_step_end(strategy_->validation_step_end(std::move(output_)));
}
void torch_learner::handle(const hooks::on_validation_batch_end& h) {
  notify(&callback::on_validation_batch_end, &troupe::module::on_validation_batch_end,
         &strategy::on_validation_batch_end, output_, batch_, h.at.batch, h.at.dataloader);
  batch_ = {};
  output_ = {};
}
void torch_learner::handle(const hooks::on_validation_epoch_end&) {
  notify(&callback::on_validation_epoch_end, &troupe::module::on_validation_epoch_end,
         &strategy::on_validation_epoch_end);
  end_evaluation_epoch();
}
void torch_learner::handle(const hooks::on_validation_end& h) {
  notify(&callback::on_validation_end, &troupe::module::on_validation_end,
         &strategy::on_validation_end);
  make_point_equal();
  if (h.at.stage == stage::validate && about_.purpose == stage::train) agree_on_stop();
  if (h.at.stage == stage::validate && goes_by_clock()) validated_at_ = clock();
}

// --- test ----------------------------------------------------------------------------------------

void torch_learner::handle(const hooks::on_test_model_eval&) {
  module_->remember_modes();
  module_->on_test_model_eval();
}
void torch_learner::handle(const hooks::on_test_model_train&) { module_->on_test_model_train(); }
void torch_learner::handle(const hooks::on_test_start&) {
  begin_evaluation();
  notify(&callback::on_test_start, &troupe::module::on_test_start, &strategy::on_test_start);
}
void torch_learner::handle(const hooks::on_test_epoch_start&) {
  notify(&callback::on_test_epoch_start, &troupe::module::on_test_epoch_start,
         &strategy::on_test_epoch_start);
}
void torch_learner::handle(const hooks::on_test_batch_start& h) {
  begin_evaluation_batch(h.at.dataloader);
  notify(&callback::on_test_batch_start, &troupe::module::on_test_batch_start,
         &strategy::on_test_batch_start, batch_, h.at.batch, h.at.dataloader);
}
void torch_learner::handle(const hooks::test_step& h) {
  if (idle()) return;
  draw_from(purpose_of(h.name, "loader", h.at.dataloader));
  output_ = strategy_->test_step(batch_, h.at.batch);
  mark_step();
}
void torch_learner::handle(const hooks::test_step_end&) {
  if (idle()) return;
  output_ = module_->test_step_end(strategy_->test_step_end(std::move(output_)));
}
void torch_learner::handle(const hooks::on_test_batch_end& h) {
  notify(&callback::on_test_batch_end, &troupe::module::on_test_batch_end,
         &strategy::on_test_batch_end, output_, batch_, h.at.batch, h.at.dataloader);
  batch_ = {};
  output_ = {};
}
void torch_learner::handle(const hooks::on_test_epoch_end&) {
  notify(&callback::on_test_epoch_end, &troupe::module::on_test_epoch_end,
         &strategy::on_test_epoch_end);
  end_evaluation_epoch();
}
void torch_learner::handle(const hooks::on_test_end&) {
  notify(&callback::on_test_end, &troupe::module::on_test_end, &strategy::on_test_end);
}

// --- predict -------------------------------------------------------------------------------------

void torch_learner::handle(const hooks::on_predict_model_eval&) {
  module_->remember_modes();
  module_->on_predict_model_eval();
}
void torch_learner::handle(const hooks::on_predict_model_train&) {
  module_->on_predict_model_train();
}
void torch_learner::handle(const hooks::on_predict_start&) {
  begin_evaluation();
  predictions_.clear();
  predict_loaders_ = cursors_[stage::predict].size();
  notify(&callback::on_predict_start, &troupe::module::on_predict_start,
         &strategy::on_predict_start);
}
void torch_learner::handle(const hooks::on_predict_epoch_start&) {
  notify(&callback::on_predict_epoch_start, &troupe::module::on_predict_epoch_start,
         &strategy::on_predict_epoch_start);
}
void torch_learner::handle(const hooks::on_predict_batch_start& h) {
  begin_evaluation_batch(h.at.dataloader);
  notify(&callback::on_predict_batch_start, &troupe::module::on_predict_batch_start,
         &strategy::on_predict_batch_start, batch_, h.at.batch, h.at.dataloader);
}
void torch_learner::handle(const hooks::predict_step& h) {
  if (idle()) return;
  draw_from(purpose_of(h.name, "loader", h.at.dataloader));
  predicted_ = strategy_->predict_step(batch_, h.at.batch);
  mark_step();
}
void torch_learner::handle(const hooks::on_predict_batch_end& h) {
  notify(&callback::on_predict_batch_end, &troupe::module::on_predict_batch_end,
         &strategy::on_predict_batch_end, predicted_, batch_, h.at.batch, h.at.dataloader);
  if (!idle())
    predictions_.push_back({h.at.dataloader, h.at.batch, about_.rank, deep_copy(predicted_)});
  batch_ = {};
  predicted_ = {};
}
void torch_learner::handle(const hooks::on_predict_epoch_end&) {
  notify(&callback::on_predict_epoch_end, &troupe::module::on_predict_epoch_end,
         &strategy::on_predict_epoch_end);
  end_evaluation_epoch();
  gather_predictions();
}
void torch_learner::handle(const hooks::on_predict_end&) {
  notify(&callback::on_predict_end, &troupe::module::on_predict_end, &strategy::on_predict_end);
}

// One rank after the other, so that rank 0 holds a second copy of one rank's predictions at most.
void torch_learner::gather_predictions() {
  for (std::int32_t source = 1; source < strategy_->world(); ++source) {
    value_list mine;
    if (source == about_.rank)
      for (const auto& one : predictions_)
        mine.items.push_back(
            value_tuple{{static_cast<std::int64_t>(one.dataloader), one.batch, one.what}});
    const auto theirs = strategy_->broadcast(std::move(mine), source);
    if (about_.rank != 0) continue;
    for (const auto& item : theirs.get_if<value_list>()->items) {
      const auto& one = item.get_if<value_tuple>()->items;
      predictions_.push_back({static_cast<std::int32_t>(*one[0].get_if<std::int64_t>()),
                              *one[1].get_if<std::int64_t>(), source, one[2]});
    }
  }
  if (about_.rank != 0) predictions_.clear();
  std::sort(predictions_.begin(), predictions_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.dataloader, a.batch, a.rank) < std::tie(b.dataloader, b.batch, b.rank);
  });
}

value torch_learner::result() {
  if (about_.purpose == stage::predict) {
    std::vector<value_list> by_loader(predict_loaders_);
    for (auto& one : predictions_)
      by_loader.at(one.dataloader).items.push_back(std::move(one.what));
    predictions_.clear();
    if (by_loader.size() == 1) return std::move(by_loader.front());
    value_list all;
    for (auto& list : by_loader) all.items.emplace_back(std::move(list));
    return all;
  }
  if (about_.purpose != stage::validate && about_.purpose != stage::test) return {};
  value_map map;
  for (const auto& [name, number] : results_) map.items.emplace(name, number);
  return map;
}

}  // namespace troupe
