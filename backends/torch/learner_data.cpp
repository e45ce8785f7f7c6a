#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

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

training_length length_of(const trainer_options& options, std::int64_t batches) {
  training_length all{apply_limit(limit_of(options, stage::train), batches), std::nullopt};
  const bool tries = options.fast_dev_run > 0;
  const auto epochs = tries ? 1 : options.max_epochs;
  if (!tries) all.steps = options.max_steps;
  if (epochs < 0 && all.batches > 0) return all;
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  auto schedule = options.accumulate_schedule;
  schedule.try_emplace(0, options.accumulate_grad_batches);
  std::int64_t steps = 0;
  for (auto one = schedule.begin(); one != schedule.end() && all.batches > 0; ++one) {
    const auto next = std::next(one);
    const auto end = next == schedule.end() ? epochs : std::min(epochs, next->first);
    const auto in_each = (all.batches - 1) / one->second + 1;
    const auto of_these = std::max<std::int64_t>(end - one->first, 0);
    steps = of_these > (most - steps) / in_each ? most : steps + of_these * in_each;
  }
  all.steps = std::min(steps, all.steps.value_or(most));
  return all;
}

namespace {

// A fit with such data would be finished after 0 steps. Limits of 0 ask for that.
void refuse_no_batch(const trainer_options& options, const data_layout& layout,
                     std::int64_t samples) {
  const bool ends_at_once =
      options.fast_dev_run <= 0 && (options.max_epochs == 0 || options.max_steps == 0);
  const auto limit = limit_of(options, stage::train);
  if (layout.batches() > 0 || ends_at_once || std::visit([](auto x) { return x == 0; }, limit))
    return;
  if (samples == 0)
    throw user_error(errc::bad_configuration,
                     "the data for training have no samples, so the fit would have no step: give "
                     "it data, or set max_epochs to 0");
  throw user_error(
      errc::bad_configuration,
      fmt::format("drop_last leaves no batch for training: there are {} samples, and "
                  "one micro-batch of all ranks has {} ({} ranks x batch_size {}). "
                  "Leave drop_last out, or lower batch_size or ranks",
                  samples, layout.ranks * layout.batch_size, layout.ranks, layout.batch_size));
}

}  // namespace

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
  if (s != stage::train || !length_) make_loaders(s);
  if (s == stage::train) length_ = length_of(about_.options, front_batches());
  for (const auto& one : cursors_[s]) {
    const auto layout = one.way->layout();
    loader_length length;
    length.stage = s;
    length.dataloader = static_cast<std::int32_t>(outcome_->loaders.size());
    length.batches = layout.batches();
    length.samples = layout.size;
    length.batch_samples = layout.ranks * layout.batch_size;
    outcome_->loaders.push_back(length);
  }
}

std::int64_t torch_learner::front_batches() const {
  return cursors_.at(stage::train).front().way->layout().batches();
}

// Makes the loaders of a fit before their hook does, with the same random numbers.
training_length torch_learner::length() {
  if (length_) return *length_;
  if (about_.purpose != stage::train || !data_set_up_)
    throw user_error(errc::bad_usage,
                     "batches_per_epoch, estimated_steps: only a fit has them, from setup on");
  rank_random draws{about_.options.seed};
  const random_scope scope{draws};
  const position at;
  draws.reset({at.epoch, at.batch, about_.rank, hooks::process_dataloader::name});
  make_loaders(stage::train);
  length_ = length_of(about_.options, front_batches());
  return *length_;
}

bool torch_learner::is_last_batch() const {
  if (at_.stage != stage::train || at_.batch == undefined) return false;
  const auto batches = cursors_.at(stage::train).front().way->batches(at_.epoch);
  return at_.batch + 1 >= limit_of(stage::train, batches);
}

void torch_learner::make_loaders(stage s) {
  auto& walks = cursors_[s];
  walks.clear();
  const auto sets = datasets(s);
  if (sets.empty() && s == about_.purpose)
    throw user_error(errc::job_failed,
                     fmt::format("the data module has no data for {}: override its getter {}()",
                                 to_string(s), s == stage::validate ? "validation" : to_string(s)));
  for (const auto& data : sets) {
    const auto number = static_cast<std::int32_t>(walks.size());
    if (!data)
      throw user_error(errc::job_failed,
                       fmt::format("the data module's dataset {} for {} is null: leave it out",
                                   number, to_string(s)));
    const auto how = loading_of(*data_, s, number, about_.options);
    auto options = loader_options_of(how, s, *data, strategy_->world(), about_.options.batch_size);
    options.seed = about_.options.seed;
    options.rank = strategy_->rank();
    options.staged_for = place_.kind;
    options.device = device_;
    if (!device_) options.device_prefetch = 0;
    auto way = strategy_->process_dataloader(std::make_unique<loader>(data, options), s);
    if (!way)
      throw user_error(errc::job_failed,
                       "process_dataloader returned no loader: return the one it got, or another");
    if (s == stage::train)
      refuse_no_batch(about_.options, way->layout(), how.order ? how.order->size() : data->size());
    walks.push_back({std::move(way), data->size()});
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
