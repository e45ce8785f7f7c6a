// How a learner returns to a point of its run, and how it receives the state of one from its peers.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "backends/checkpoint/digest.hpp"
#include "backends/torch/learner_json.hpp"
#include "backends/torch/torch_learner.hpp"
#include "troupe/detail/tensor.hpp"

namespace troupe {

namespace {

constexpr std::string_view of_model = "model/";
constexpr std::string_view of_optimizers = "optimizers/";
constexpr std::string_view of_books = "books/";
constexpr std::string_view of_gradients = "gradients/";
constexpr std::string_view of_hook = "hook/";  // buffers that it changed after the step

[[noreturn]] void refuse_to_rewind(std::string_view why) {
  throw user_error(errc::job_failed,
                   fmt::format("this rank cannot return to the last point of its run: {}", why));
}

template <class F>
void each_group(optimizers& all, F&& use) {
  for (auto& one : all.all())
    for (auto& group : one.optimizer->param_groups()) use(group);
}

std::vector<std::pair<std::int64_t, std::size_t>> positions_of(const optimizers& all) {
  std::vector<std::pair<std::int64_t, std::size_t>> found;
  for (const auto& one : all.all())
    for (const auto& schedule : one.schedulers)
      found.emplace_back(schedule.offered(), schedule.metrics_fed().size());
  return found;
}

tensor_blob bytes_blob(std::string name, std::string_view bytes) {
  const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
  return {std::move(name),
          "U8",
          {static_cast<std::int64_t>(bytes.size())},
          std::make_shared<const std::vector<std::byte>>(from, from + bytes.size())};
}

std::string_view text_in(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_archive(const tensor_blob& blob) { return blob.name.ends_with(".archive"); }

}  // namespace

// --- points --------------------------------------------------------------------------------------

// A step of a module that trains itself cannot be undone: it may update weights several times, and
// keep gradients over batches.
void torch_learner::keep_weights() {
  if (!manual_) return;
  const at::NoGradGuard no_grad;
  auto& k = *kept_;
  std::size_t i = 0;
  for (const auto& weight : module_->parameters()) {
    if (!weight.defined()) continue;
    if (i == k.weights.size()) k.weights.emplace_back();
    auto& one = k.weights[i++];
    if (one.tensor.is_same(weight))
      one.copy.copy_(weight);
    else
      one = {weight, weight.detach().clone()};
  }
  k.weights.resize(i);
  k.gradients.clear();
  for (const auto& one : k.weights) {
    const auto& gradient = one.tensor.grad();
    k.gradients.push_back(gradient.defined() ? gradient.detach().clone() : at::Tensor{});
  }
  k.optimizers.clear();
  for (std::size_t index = 0; index < optimizers_.all().size(); ++index)
    k.optimizers.push_back(strategy_->local_optimizer_state(static_cast<std::int32_t>(index)));
}

void torch_learner::return_weights() {
  auto& k = *kept_;
  for (std::size_t i = 0; i < k.weights.size(); ++i) {
    const auto& one = k.weights[i];
    one.tensor.detach().copy_(one.copy);
    one.tensor.mutable_grad() = k.gradients[i].defined() ? k.gradients[i].clone() : at::Tensor{};
  }
  for (std::size_t index = 0; index < k.optimizers.size(); ++index)
    strategy_->load_optimizer_state(static_cast<std::int32_t>(index), k.optimizers[index]);
}

void torch_learner::keep_point() {
  if (!module_) return;
  if (!kept_) kept_ = std::make_unique<learner_point>();
  auto& k = *kept_;
  const bool was_torn = std::exchange(torn_, true);  // until all is copied
  if (!std::exchange(tensors_kept_, false)) {
    keep_buffers();
    keep_weights();
  }
  k.flags = flags_of(*module_);
  k.groups = group_sizes_of(optimizers_);
  k.options.clear();
  each_group(optimizers_, [&](const auto& group) { k.options.push_back(group.options().clone()); });
  k.schedulers = positions_of(optimizers_);
  k.precision = precision_->state();
  callbacks_.keep(k.callbacks);
  k.steps = step_book_;
  k.epochs = epoch_book_;
  k.books = books_;
  k.books_of_step = books_of_step_;
  k.epoch_logs = epoch_logs_;
  k.logged = logged_;
  k.results = results_;
  k.non_finite_steps = non_finite_steps_;
  k.stepped = stepped_;
  k.steps_reported = steps_reported_;
  k.wants_stop = wants_stop_;
  if (data_) k.data = data_->state();
  k.done = done_;
  k.saved_at = saved_at_;
  torn_ = was_torn;
}

void torch_learner::check_schedulers() const {
  if (positions_of(optimizers_) != kept_->schedulers)
    refuse_to_rewind("a scheduler moved since then");
}

void torch_learner::return_to_point() {
  const at::NoGradGuard no_grad;
  const auto& k = *kept_;
  for (const auto& one : k.buffers) one.tensor.detach().copy_(one.copy);
  shrink_groups(optimizers_, k.groups);
  return_weights();
  set_flags(*module_, k.flags);
  auto options = k.options.begin();
  for (auto& one : optimizers_.all())
    for (auto& group : one.optimizer->param_groups())
      if (options != k.options.end()) copy_options(**options++, *one.optimizer, group);
  if (!k.precision.empty()) precision_->load_state(k.precision);
  callbacks_.return_to(*module_, k.callbacks);
  step_book_ = k.steps;
  epoch_book_ = k.epochs;
  books_ = k.books;
  books_of_step_ = k.books_of_step;
  epoch_logs_ = k.epoch_logs;
  logged_ = k.logged;
  results_ = k.results;
  non_finite_steps_ = k.non_finite_steps;
  stepped_ = k.stepped;
  steps_reported_ = k.steps_reported;
  wants_stop_ = k.wants_stop;
  if (data_ && !k.data.empty() && k.data != data_->state()) data_->load_state(k.data);
  done_ = k.done;
  saved_at_ = k.saved_at;
}

// Drops everything of an unfinished step, evaluation or checkpoint.
void torch_learner::forget_step() {
  forget_batch();
  predicted_ = {};
  std::ranges::fill(window_losses_, 0);
  word_ = {};
  in_step_ = in_manual_ = in_epoch_schedules_ = false;
  save_due_ = validation_due_ = end_reported_ = evaluation_open_ = false;
  finite_ = true;
  evaluation_books_.assign(1, {});
  before_evaluation_.reset();
  before_end_.reset();
  predictions_.clear();
  optimizer_states_.clear();
  module_json_.clear();
  for (auto& [purpose, cursors] : cursors_)
    for (auto& cursor : cursors) cursor.epoch = cursor.next = undefined;
  for (const auto& parameter : module_->parameters())
    if (parameter.defined()) parameter.mutable_grad() = at::Tensor{};
  each_group(optimizers_, [](auto& group) {
    for (auto& parameter : group.params()) parameter.mutable_grad() = at::Tensor{};
  });
}

void torch_learner::handle(const hooks::rewind&) {
  if (!kept_) refuse_to_rewind("it has not passed one");
  if (torn_) refuse_to_rewind("its weights were being updated");
  const bool behind = callbacks_behind_ && kept_->callbacks.any;
  if (step_end_due_ && (behind || !was_interrupted()))
    refuse_to_rewind("on_train_batch_end did not return after the step");
  step_end_due_ = callbacks_behind_ = false;
  check_schedulers();
  forget_step();
  why_ended_ = stop_reason::none;
  return_to_point();
  outcome_->state_digest = own_state().digest;
  optimizer_states_.clear();
}

// --- a step --------------------------------------------------------------------------------------

bool torch_learner::reports_step(const position& before) const {
  return (before.step + 1) % std::max<std::int64_t>(about_.options.log_every_n_steps, 1) == 0;
}

// Whether the step may be the last one whose values the end of an epoch or of the run reports.
bool torch_learner::ends_reporting(const position& before) const {
  return is_last_batch() ||
         (about_.options.max_steps && before.step + 1 >= *about_.options.max_steps);
}

// At the end of an optimizer's closure.
void torch_learner::before_update(const position& at) {
  if (ends_step(at) && at.batch == window_last_) {
    synchronize_buffers();
    look_at_clock();
    books_of_step_ = epoch_logs_ || word_.logged || reports_step(at) || ends_reporting(at);
    if (books_of_step_) exchange_books();
  }
  torn_ = true;
}

void torch_learner::exchange_books() {
  auto mine = step_book_.bytes() + epoch_book_.bytes();
  const std::uint64_t size = mine.size();
  std::uint64_t widest = 0;
  for (const auto& bytes : strategy_->gather_bytes(std::as_bytes(std::span{&size, 1}))) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    widest = std::max(widest, theirs);
  }
  mine.resize(widest);
  books_ = std::make_shared<const std::vector<std::vector<std::byte>>>(
      strategy_->gather_bytes(std::as_bytes(std::span{mine})));
  const auto epochs = exchanged_books(true);
  epoch_logs_ = std::ranges::any_of(epochs, [](const auto& book) { return !book.empty(); });
}

std::vector<metric_accumulator> torch_learner::exchanged_books(bool of_epochs) const {
  std::vector<metric_accumulator> found;
  if (!books_) return found;
  for (const auto& bytes : *books_) {
    auto rest = text_in(bytes);
    found.push_back(metric_accumulator::parse(rest));
    if (of_epochs) found.back() = metric_accumulator::parse(rest);
  }
  return found;
}

// The weights are updated.
void torch_learner::step_updated(const position& at) {
  const bool due = reports_step(at);
  if (due) {
    for (const auto& [name, number] : metric_accumulator::reduced(exchanged_books(false)))
      logged_[name] = outcome_->logged[name] = number;
    steps_reported_ = true;
  }
  if (due || !logged_.contains(non_finite_name)) report_non_finite();
  if (!step_schedulers_) complete_step();
}

// The step's state is complete, but for what on_train_batch_end makes of it.
void torch_learner::complete_step() {
  torn_ = false;
  thrown_ = nullptr;
  step_end_due_ = callbacks_behind_ = true;
  keep_point();
}

// At the end of a validation or an epoch, where a point is kept: hooks may have changed buffers by
// what their rank has seen, and a rank may be given the buffers of another one.
void torch_learner::make_point_equal() {
  if (keeps_points() && about_.purpose == stage::train) synchronize_buffers();
}

// --- the end of a job that failed ---------------------------------------------------------------

// May be called before set-up.
void torch_learner::handle(const hooks::on_exception& h) {
  const auto error = cause_of(h);
  std::exception_ptr of_saving, of_callback;
  try {
    if (h.save) save_point(*h.save);
  } catch (...) {
    of_saving = std::current_exception();
  }
  try {
    if (module_) callbacks_.call(*module_, &callback::on_exception, h.type, h.what);
  } catch (...) {
    of_callback = std::current_exception();
  }
  strategy_->on_exception(error, h.type, h.what);
  if (module_) module_->on_exception(error, h.type, h.what);
  if (of_callback) std::rethrow_exception(of_callback);
  if (of_saving) std::rethrow_exception(of_saving);
}

// --- the state of other ranks --------------------------------------------------------------------

// The tensors and the digest of this rank, made without a collective. The text is added only where
// the transfer needs it.
replica_state torch_learner::own_state() {
  replica_state all;
  auto positions = learner_json::json::array();
  for (auto& blob : strategy_->local_module_state()) {
    blob.name.insert(0, of_model);
    all.tensors.push_back(std::move(blob));
  }
  for (const auto& [name, common] : common_buffers())
    for (auto& blob : all.tensors)
      if (blob.name == fmt::format("{}{}", of_model, name)) blob = blob_of(blob.name, common);
  for (std::size_t i = 0; i < optimizers_.all().size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    auto kept = strategy_->local_optimizer_state(index);
    positions.push_back(
        {kept.groups, learner_json::schedulers_to(optimizers_.all()[i].schedulers)});
    for (auto& blob : kept.tensors) {
      blob.name.insert(0, of_optimizers);
      all.one_donor |= is_archive(blob);
      all.tensors.push_back(std::move(blob));
    }
    optimizer_states_[index].groups = std::move(kept.groups);
  }
  // An archive has its parameters in an order of its own on each rank.
  std::vector<tensor_blob> compared;
  std::ranges::copy_if(all.tensors, std::back_inserter(compared), std::not_fn(is_archive));
  compared.push_back(bytes_blob("positions", positions.dump()));
  if (const auto numbers = precision_->state(); !numbers.empty())
    compared.push_back(bytes_blob("precision", numbers));
  all.digest = weights_digest(compared);
  return all;
}

// The state of a checkpoint, and what a checkpoint does not need. After own_state.
std::string torch_learner::transferred_text() {
  using learner_json::json;
  auto state = json::parse(state_text({}, {}));
  state["replica"] = {{"flags", flags_to(flags_of(*module_))},
                      {"at_start", at_start_ ? flags_to(*at_start_) : json{}},
                      {"groups_at_start", groups_at_start_},
                      {"logged", learner_json::metrics_to(logged_)},
                      {"results", learner_json::metrics_to(results_)},
                      {"samples", done_.samples},
                      {"earlier_batches", done_.earlier_batches},
                      {"of_validation", done_.of_validation},
                      {"pending_stop", done_.pending_stop},
                      {"stepped", stepped_},
                      {"wants_stop", wants_stop_},
                      {"steps_reported", steps_reported_},
                      {"books_of_step", books_of_step_},
                      {"epoch_logs", epoch_logs_},
                      {"clocks", clocks_text()}};
  return state.dump();
}

void torch_learner::handle(const hooks::restore_state& h) {
  why_ended_ = stop_reason::none;
  common_stays_ = true;
  const bool gives = std::ranges::binary_search(h.donors, about_.rank);
  std::optional<replica_state> mine;
  if (gives) {
    mine = own_state();
    const auto& books = books_ ? *books_ : std::vector<std::vector<std::byte>>{};
    for (std::size_t r = 0; r < books.size(); ++r)
      mine->tensors.push_back(bytes_blob(fmt::format("{}{}", of_books, r), text_in(books[r])));
    add_gradients(mine->tensors);
    if (about_.rank == h.donors.front()) {
      for (auto& blob : callbacks_.tensors()) {
        blob.name.insert(0, of_optimizers);
        mine->one_donor = true;  // each rank has its own, or none
        mine->tensors.push_back(std::move(blob));
      }
      for (auto& blob : own_buffers()) {
        blob.name.insert(0, of_hook);
        mine->one_donor = true;
        mine->tensors.push_back(std::move(blob));
      }
      module_json_ = module_->on_save_checkpoint();
      mine->text = transferred_text();
    }
    outcome_->state_digest = mine->digest;
    optimizer_states_.clear();
    module_json_.clear();
  }
  state_transfer transfer{world_, h.donors, std::move(mine), received_};
  transfer.go_on(true);
  if (gives) return;
  torn_ = true;
  const auto own = take_transferred(transfer.take(), h);
  torn_ = false;
  keep_point();
  take_own_buffers(own);
}

// A module that trains itself may add up gradients over steps.
void torch_learner::add_gradients(std::vector<tensor_blob>& to) const {
  if (!manual_) return;
  for (const auto& item : module_->named_parameters())
    if (const auto& one = item.value(); one.defined() && one.grad().defined())
      to.push_back(blob_of(fmt::format("{}{}", of_gradients, item.key()),
                           one.grad().is_sparse() ? one.grad().to_dense() : one.grad()));
}

void torch_learner::take_gradients(const std::vector<tensor_blob>& from) {
  if (!manual_) return;
  for (const auto& item : module_->named_parameters())
    for (const auto& blob : from)
      if (const auto& one = item.value();
          one.defined() && blob.name == fmt::format("{}{}", of_gradients, item.key()))
        one.mutable_grad() = tensor_of(blob).to(one.device());
}

// Returns what on_train_batch_end made of the buffers.
std::vector<tensor_blob> torch_learner::take_transferred(replica_state from,
                                                         const hooks::restore_state& h) {
  snapshot all;
  auto books = std::make_shared<std::vector<std::vector<std::byte>>>();
  std::vector<tensor_blob> gradients, own;
  for (auto& blob : from.tensors) {
    if (blob.name.starts_with(of_gradients)) {
      gradients.push_back(std::move(blob));
      continue;
    }
    if (blob.name.starts_with(of_hook)) {
      blob.name.erase(0, of_hook.size());
      own.push_back(std::move(blob));
      continue;
    }
    if (blob.name.starts_with(of_books)) {
      books->push_back(*blob.bytes);
      continue;
    }
    const bool model = blob.name.starts_with(of_model);
    blob.name.erase(0, model ? of_model.size() : of_optimizers.size());
    (model ? all.model : all.optimizer).push_back(std::move(blob));
  }
  loaded_path_ = "the state of the other ranks";
  all.ranks = strategy_->world();
  all.state = std::move(from.text);
  all.loop.epoch = h.at.epoch;
  all.loop.batch = h.at.batch;
  all.loop.steps = h.at.step;
  all.loop.cursor = h.cursor;
  take_weights(all);
  const auto state = learner_json::parse_state(all.state);
  module_->on_load_checkpoint(state.value("module", std::string{}));
  take_everything(all);
  forget_step();
  take_gradients(gradients);
  books_ = books->empty() ? nullptr : std::move(books);
  take_numbers(all.state);
  if (kept_) kept_->has_common = false;
  const auto digest = own_state().digest;
  optimizer_states_.clear();
  if (digest != from.digest)
    throw user_error(errc::job_failed,
                     "the state that this rank received is not the one that it now has: its "
                     "module or its optimizers change what they load");
  outcome_->state_digest = digest;
  return own;
}

// The learner's own numbers. This rank's accumulators are those of the rank that it replaces.
void torch_learner::take_numbers(const std::string& text) {
  const auto more = learner_json::parse_state(text).at("replica");
  logged_ = learner_json::metrics_from(more.at("logged"));
  results_ = learner_json::metrics_from(more.at("results"));
  done_.samples = more.at("samples").get<std::int64_t>();
  done_.earlier_batches = more.at("earlier_batches").get<std::int64_t>();
  done_.of_validation = more.at("of_validation").get<std::set<std::string>>();
  done_.pending_stop = more.at("pending_stop").get<std::uint8_t>();
  stepped_ = more.at("stepped").get<bool>();
  wants_stop_ = more.at("wants_stop").get<bool>();
  steps_reported_ = more.at("steps_reported").get<bool>();
  books_of_step_ = more.at("books_of_step").get<bool>();
  epoch_logs_ = more.at("epoch_logs").get<bool>();
  take_clocks(more.at("clocks").get<std::string>());
  step_book_.clear();
  epoch_book_.clear();
  const auto rank = static_cast<std::size_t>(about_.rank);
  if (books_ && rank < books_->size()) {
    if (books_of_step_) step_book_ = exchanged_books(false)[rank];
    epoch_book_ = exchanged_books(true)[rank];
  }
  step_book_.may_lack_names();  // of on_train_batch_end
  epoch_book_.may_lack_names();
  set_flags(*module_, flags_from(more.at("flags")));
  if (const auto& at_start = more.at("at_start"); !at_start.is_null())
    at_start_ = flags_from(at_start);
  groups_at_start_ = more.at("groups_at_start").get<group_sizes>();
}

}  // namespace troupe
