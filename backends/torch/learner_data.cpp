#include <fmt/format.h>

#include <algorithm>

#include "backends/torch/torch_learner.hpp"

namespace troupe {

data_loading loading_of(data_module& data, stage s, std::int32_t dataloader,
                        const trainer_options& options) {
  auto how = data.loading(s, dataloader);
  if (!overfits(options)) return how;
  how.shuffle = false;
  how.order = nullptr;
  return how;
}

std::vector<dataset_ptr> torch_learner::datasets(stage s) {
  if (!data_) return {};
  switch (s) {
    case stage::train: {
      auto train = data_->train();
      return train ? std::vector{std::move(train)} : std::vector<dataset_ptr>{};
    }
    case stage::sanity:
    case stage::validate: return data_->validation();
    case stage::test: return data_->test();
    case stage::predict: return data_->predict();
    case stage::start:
    case stage::call: break;
  }
  return {};
}

// Number 0 of a stage creates all its loaders, so that their lengths are known at once.
void torch_learner::handle(const hooks::process_dataloader& h) {
  const auto s = h.at.stage;
  if (h.at.dataloader > 0) return;
  auto& walks = cursors_[s];
  walks.clear();
  const auto sets = datasets(s);
  if (sets.empty() && s == about_.purpose)
    throw user_error(errc::job_failed, fmt::format("the data module has no data for {}: override "
                                                   "its getter of that name",
                                                   to_string(s)));
  for (const auto& data : sets) {
    const auto number = static_cast<std::int32_t>(walks.size());
    if (!data)
      throw user_error(errc::job_failed,
                       fmt::format("the data module's dataset {} for {} is null: leave it out",
                                   number, to_string(s)));
    auto options = loader_options_of(loading_of(*data_, s, number, about_.options), s, *data,
                                     strategy_->world(), about_.options.batch_size);
    options.seed = about_.options.seed;
    options.rank = strategy_->rank();
    options.staged_for = place_.kind;
    options.device = device_;
    if (!device_) options.device_prefetch = 0;
    auto way = strategy_->process_dataloader(std::make_unique<loader>(data, options), s);
    if (!way)
      throw user_error(errc::job_failed,
                       "process_dataloader returned no loader: return the one it got, or another");
    const auto layout = way->layout();
    loader_length length;
    length.stage = s;
    length.dataloader = number;
    length.batches = layout.batches();
    length.samples = layout.size;
    length.batch_samples = layout.ranks * layout.batch_size;
    walks.push_back({std::move(way), data->size()});
    outcome_->loaders.push_back(length);
  }
}

torch_learner::loader_cursor& torch_learner::cursor_at(const position& at) {
  const auto found = cursors_.find(at.stage == stage::sanity ? stage::validate : at.stage);
  if (found == cursors_.end() || found->second.size() <= static_cast<std::size_t>(at.dataloader))
    throw internal_error("a batch of a loader that was not processed");
  return found->second[at.dataloader];
}

// Only bounds prefetching; the fit machine decides the number of batches.
// Whether a fit has any batch of validation.
bool torch_learner::validates() const {
  const auto found = cursors_.find(stage::validate);
  return found != cursors_.end() && std::ranges::any_of(found->second, [&](const auto& one) {
           return one.way && limit_of(stage::validate, one.way->batches(0)) > 0;
         });
}

std::int64_t torch_learner::limit_of(stage s, std::int64_t batches) const {
  const auto limit = apply_limit(troupe::limit_of(about_.options, s), batches);
  const auto sanity = about_.options.num_sanity_val_steps;
  return s == stage::sanity && sanity >= 0 ? std::min(sanity, limit) : limit;
}

void torch_learner::handle(const hooks::batch_to_device& h) {
  draw_from(h.name);
  auto& cursor = cursor_at(h.at);
  const auto epoch = h.at.stage == stage::train ? h.at.epoch : 0;
  subgroup with_samples;
  const auto layout = cursor.way->layout(epoch);
  for (std::int64_t rank = 0; rank < layout.ranks; ++rank)
    if (layout.of_rank(h.at.batch, rank).count > 0)
      with_samples.ranks.push_back(static_cast<std::int32_t>(rank));
  strategy_->begin_batch(with_samples);
  if (cursor.epoch != epoch || cursor.next != h.at.batch) {
    const auto last = std::max(limit_of(h.at.stage, cursor.way->batches(epoch)), h.at.batch + 1);
    cursor.way->begin(epoch, h.at.batch, last);
    cursor.last = last;
    cursor.marked = h.at.batch;
  }
  auto item = cursor.way->next();
  cursor.epoch = epoch;
  cursor.next = h.at.batch + 1;
  forget_batch();
  predicted_ = {};
  if (item.samples == 0) return;
  const auto dataloader = h.at.dataloader;
  auto held = precision_->convert_input(item.batch);
  held = module_->on_before_batch_transfer(std::move(held), dataloader);
  held = data_->on_before_batch_transfer(std::move(held), dataloader);
  held = strategy_->batch_to_device(held, strategy_->root_device(), dataloader);
  held = data_->on_after_batch_transfer(std::move(held), dataloader);
  held = module_->on_after_batch_transfer(std::move(held), dataloader);
  batch_ = batch{std::move(held), item.samples};
}

}  // namespace troupe
