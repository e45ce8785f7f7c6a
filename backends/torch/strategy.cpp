#include "troupe/strategy.hpp"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <utility>

#include "backends/checkpoint/regular_file.hpp"
#include "backends/checkpoint/safetensors.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/checkpoint_facts.hpp"
#include "backends/local/file_operations.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/single_device.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

// LBFGS keeps undefined tensors in fields that its next step overwrites; it cannot serialize them.
void forget_scratch(torch::optim::Optimizer& optimizer) {
  if (!dynamic_cast<torch::optim::LBFGS*>(&optimizer)) return;
  for (auto& [parameter, state] : optimizer.state())
    static_cast<torch::optim::LBFGSParamState&>(*state).al(std::nullopt);
}

}  // namespace

reduction named_reduction(std::string_view name) {
  static constexpr std::pair<std::string_view, reduction> known[] = {
      {"mean", reduction::mean},   {"avg", reduction::mean}, {"sum", reduction::sum},
      {"min", reduction::min},     {"max", reduction::max},  {"product", reduction::product},
      {"prod", reduction::product}};
  std::string lower{name};
  for (auto& letter : lower)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  for (const auto& [text, operation] : known)
    if (text == lower) return operation;
  throw user_error(errc::job_failed, fmt::format("reduce: unknown operation \"{}\": use mean, avg, "
                                                 "sum, min, max, product or prod",
                                                 name));
}

value stack_each(const value& what, const std::function<at::Tensor(const at::Tensor&)>& stack) {
  const auto each = [&](auto container) {
    for (auto& item : container.items) item = stack_each(item, stack);
    return value{std::move(container)};
  };
  if (what.empty()) return what;
  if (what.is<tensor_ptr>()) return boxed(stack(unboxed(what)));
  if (const auto* yes = what.get_if<bool>())
    return boxed(stack(at::scalar_tensor(*yes, at::kBool)));
  if (const auto* whole = what.get_if<std::int64_t>())
    return boxed(stack(at::scalar_tensor(*whole, at::kLong)));
  if (const auto* number = what.get_if<double>())
    return boxed(stack(at::scalar_tensor(*number, at::kDouble)));
  if (const auto* tuple = what.get_if<value_tuple>()) return each(*tuple);
  if (const auto* list = what.get_if<value_list>()) return each(*list);
  if (const auto* map = what.get_if<value_map>()) {
    auto copy = *map;
    for (auto& [key, item] : copy.items) item = stack_each(item, stack);
    return copy;
  }
  throw user_error(errc::job_failed,
                   fmt::format("all_gather: {} cannot be stacked: gather tensors and numbers, or "
                               "containers of them",
                               to_string(what)));
}

strategy::strategy(strategy_parts parts) : parts_(std::move(parts)) {
  if (!parts_.environment)
    parts_.environment = std::make_shared<local_environment>(parts_.about.rank, parts_.about.world);
  if (!parts_.precision) parts_.precision = std::make_shared<troupe::precision>();
  if (!parts_.place.kind) {
    trainer_options host;
    host.accelerator = accelerator_kind::cpu;
    parts_.place = choose_devices(default_accelerators(), host, 0);
  }
  parts_.precision->place(parts_.place.kind);
  if (!parts_.files) parts_.files = safetensors_checkpoints({});
}

strategy::~strategy() = default;

std::int32_t strategy::rank() const { return parts_.environment->rank(); }
std::int32_t strategy::world() const { return parts_.environment->world(); }
std::int32_t strategy::local_rank() const { return parts_.environment->local_rank(); }
c10::Device strategy::root_device() const {
  const auto& devices = parts_.place.devices;
  const auto shards = parts_.about.world;
  const auto& place = *parts_.environment;
  const bool another = static_cast<std::size_t>(local_rank()) >= devices.size();
  // A process that a launcher started has a device of its own, however many there are elsewhere.
  if (!another && place.has_processes()) return devices[static_cast<std::size_t>(local_rank())];
  if (another && place.has_processes() && !hardware().shared())
    throw user_error(errc::device,
                     fmt::format("local rank {} has no device: the job computes on {} of {} per "
                                 "host; start as many ranks there",
                                 local_rank(), devices.size(), hardware().name()));
  if (another && dynamic_cast<const module_creation*>(&hardware()))
    throw user_error(errc::device,
                     fmt::format("{} shards and {} devices of {}: there each shard computes on a "
                                 "device of its own; start a rank for each shard",
                                 shards, devices.size(), hardware().name()));
  return device_of(devices, local_rank(), place.local_world());
}

void strategy::connect(std::shared_ptr<troupe::module> which) {
  module_ = std::move(which);
  converted_ = false;
}

void strategy::setup_environment() {
  const auto& e = *parts_.environment;
  if (e.rank() == parts_.about.rank && e.world() == parts_.about.world) {
    if (e.local_rank() >= 0 && e.local_rank() < e.world()) return;
    throw user_error(
        errc::membership,
        fmt::format("the {} environment says local rank {} in a world of {}: it counts "
                    "the ranks of a host from 0, and local rank 0 prepares the data",
                    e.name(), e.local_rank(), e.world()));
  }
  throw user_error(
      errc::membership,
      fmt::format("the {} environment says rank {} of {}, the job rank {} of {}: start "
                  "as many ranks as the job has",
                  e.name(), e.rank(), e.world(), parts_.about.rank, parts_.about.world));
}

void strategy::bind(std::shared_ptr<communicator>, generation_id) {}

void strategy::convert_once() {
  if (!std::exchange(converted_, true)) precision_in_use().convert_module(*module_);
}

void strategy::model_to_device() {
  convert_once();
  module_->to(root_device());
}

std::unique_ptr<precision::context> strategy::model_sharded_context() {
  return precision_in_use().init_context();
}

void strategy::setup_optimizers(optimizers& which) { optimizers_ = &which; }

void strategy::setup_precision() {
  if (optimizers_) precision_in_use().connect(*module_, *optimizers_, *this);
}

void strategy::use_comm_hook(comm_hook, bool) {
  if (world() > 1)
    throw user_error(errc::job_failed,
                     fmt::format("register_comm_hook: the strategy {} exchanges no gradients: "
                                 "derive it from data_parallel, or override use_comm_hook",
                                 name()));
}

std::unique_ptr<loader> strategy::process_dataloader(std::unique_ptr<loader> made, stage) {
  return made;
}

value strategy::batch_to_device(const value& batch, c10::Device device, std::int32_t dataloader) {
  const auto each = [&](auto container) {
    for (auto& item : container.items) item = batch_to_device(item, device, dataloader);
    return value{std::move(container)};
  };
  if (const auto* tuple = batch.get_if<value_tuple>()) return each(*tuple);
  if (const auto* list = batch.get_if<value_list>()) return each(*list);
  if (const auto* map = batch.get_if<value_map>()) {
    auto copy = *map;
    for (auto& [key, item] : copy.items) item = batch_to_device(item, device, dataloader);
    return copy;
  }
  if (const auto* own = batch.get_if<value_user>(); own && own->held) {
    const auto mover = parts_.moves.find(own->held->type());
    if (mover == parts_.moves.end()) return batch;
    return value_user{std::make_shared<const std::any>(mover->second(*own->held, device))};
  }
  return map_tensors(batch, [&](const at::Tensor& t) { return hardware().uploaded(t, device); });
}

step_output strategy::training_step(const batch& b, std::int64_t index) {
  const auto held = precision_in_use().forward_context();
  return module_->training_step(b, index);
}

step_output strategy::validation_step(const batch& b, std::int64_t index) {
  const auto held = precision_in_use().forward_context();
  return module_->validation_step(b, index);
}

step_output strategy::test_step(const batch& b, std::int64_t index) {
  const auto held = precision_in_use().forward_context();
  return module_->test_step(b, index);
}

value strategy::predict_step(const batch& b, std::int64_t index) {
  const auto held = precision_in_use().forward_context();
  return module_->predict_step(b, index);
}

void strategy::zero_gradients(std::int32_t optimizer) {
  optimizers_->all().at(optimizer).optimizer->zero_grad(/*set_to_none=*/true);
}

at::Tensor strategy::pre_backward(const at::Tensor& loss) {
  return precision_in_use().pre_backward(loss);
}

step_status strategy::backward(const at::Tensor& loss, const backward_plan& plan) {
  if (!plan.idle)
    precision_in_use().backward(plan.weight == 1 ? loss : loss * plan.weight, *module_,
                                *optimizers_->all().at(plan.optimizer).optimizer, plan.arguments);
  return {plan.wants_stop, plan.loss, plan.logged};
}

void strategy::manual_backward(const at::Tensor& loss, double weight) {
  precision_in_use().backward(weight == 1 ? loss : loss * weight, *module_,
                              *optimizers_->all().front().optimizer, {});
}

at::Tensor strategy::post_backward(const at::Tensor& loss) {
  return precision_in_use().post_backward(loss.detach());
}

void strategy::clip_gradients(torch::optim::Optimizer& optimizer, double limit,
                              hooks::clip_gradients::algorithm how) {
  if (limit <= 0) return;
  if (!module_->automatic_optimization()) precision_in_use().pre_optimizer_step(optimizer);
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (how == hooks::clip_gradients::algorithm::norm)
    torch::nn::utils::clip_grad_norm_(parameters, limit);
  else
    torch::nn::utils::clip_grad_value_(parameters, limit);
}

void strategy::optimizer_step(torch::optim::Optimizer& optimizer, std::int32_t,
                              const step_closure& closure, troupe::module&) {
  precision_in_use().optimizer_step(optimizer, closure);
}

value strategy::reduce(const value& what, std::string_view operation, const subgroup&) {
  named_reduction(operation);
  return detached_copy(what);
}

value strategy::broadcast(const value& what, std::int32_t, const subgroup&) { return what; }

value strategy::all_gather(const value& what, bool, const subgroup&) {
  return stack_each(what, [](const at::Tensor& t) { return t.unsqueeze(0); });
}

bool strategy::reduce_boolean_decision(bool yes, decision, const subgroup&) { return yes; }

void strategy::barrier(std::string_view, std::chrono::nanoseconds, const subgroup&) {}

std::vector<std::vector<std::byte>> strategy::gather_bytes(std::span<const std::byte> mine) {
  return {{mine.begin(), mine.end()}};
}

std::vector<tensor_blob> strategy::module_state() {
  return is_global_zero() ? local_module_state() : std::vector<tensor_blob>{};
}

std::vector<tensor_blob> strategy::local_module_state() { return state_of(*module_); }

void strategy::load_module_state(const std::vector<tensor_blob>& state) {
  convert_once();  // before the copy, which would round saved numbers of 64 bits to the module's 32
  load_state(*module_, state);
}

troupe::optimizer_state strategy::optimizer_state(std::int32_t index) {
  return is_global_zero() ? local_optimizer_state(index) : troupe::optimizer_state{};
}

troupe::optimizer_state strategy::local_optimizer_state(std::int32_t index) {
  auto& optimizer = *optimizers_->all().at(index).optimizer;
  forget_scratch(optimizer);
  return state_of(optimizer, *module_, index);
}

void strategy::load_optimizer_state(std::int32_t index, const troupe::optimizer_state& state) {
  load_state(*optimizers_->all().at(index).optimizer, *module_, index, state);
}

namespace {

// The folder is replaced with all that it holds.
void refuse_other_content(const std::filesystem::path& folder, const std::string& commit_file) {
  namespace fs = std::filesystem;
  std::error_code unreadable;
  const auto kind = fs::symlink_status(folder, unreadable).type();
  if (kind == fs::file_type::not_found) return;
  if (kind == fs::file_type::directory && fs::is_empty(folder, unreadable) && !unreadable) return;
  if (kind == fs::file_type::directory &&
      fs::is_regular_file(fs::symlink_status(folder / commit_file, unreadable)))
    return;
  throw user_error(errc::checkpoint,
                   fmt::format("{} holds no checkpoint ({}), and a new one would replace all that "
                               "is there: name a folder that does not exist, is empty, or holds a "
                               "checkpoint",
                               folder.string(), commit_file));
}

// Writes under another name first, as the checkpointer does: a crash leaves no half checkpoint.
void write_now(const checkpoint_io& format, const snapshot& what, const std::string& path) {
  auto folder = std::filesystem::absolute(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  refuse_other_content(folder, format.commit_file());
  const auto above = folder.parent_path();
  const auto part = above / fmt::format(".{}.tmp", folder.filename().string());
  const auto run = [&](const storage_op& op) {
    if (const auto result = perform(above, op); result.error)
      throw user_error(errc::checkpoint, result.text);
  };
  run(storage_ops::remove{part});
  try {
    run(storage_ops::make_folder{part});
    for (auto& file : files_of(format, what))
      run(storage_ops::write{part / file.name, std::move(file.chunks)});
    run(storage_ops::sync_folder{part});
    run(storage_ops::rename{part, folder});
  } catch (...) {
    // A rename that failed late has made `part` the former one, which a loss of power brings back.
    if (!perform(above, storage_ops::sync_folder{above}).error)
      perform(above, storage_ops::remove{part});
    throw;
  }
  run(storage_ops::sync_folder{above});
}

}  // namespace

snapshot_ptr strategy::save_checkpoint(snapshot_ptr what, const std::string& path,
                                       const value& storage_options) {
  if (!storage_options.empty())
    throw user_error(errc::checkpoint,
                     "storage options mean nothing to this strategy: override save_checkpoint to "
                     "use them, or leave them out");
  if (path.empty()) return what;
  if (is_global_zero()) write_now(*parts_.files, *what, path);
  barrier("save_checkpoint");
  return what;
}

snapshot strategy::load_checkpoint(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return parts_.files->read(path);
  snapshot weights;
  weights.model = read_safetensors(regular_file{path}).tensors;
  return weights;
}

void strategy::remove_checkpoint(const std::string& path) {
  if (is_global_zero()) parts_.files->remove(path);
}

value strategy::add_to_queue(const metrics& callback_metrics) {
  if (callback_metrics.empty()) return {};
  value_map map;
  for (const auto& [name, number] : callback_metrics) map.items.emplace(name, number);
  return map;
}

void strategy::on_exception(const std::exception_ptr&, std::string_view, std::string_view) {}

void strategy::teardown(bool orderly) {
  if (orderly) {
    if (root_device().type() == hardware().type()) hardware().synchronize(root_device());
    barrier("teardown");
  }
  precision_in_use().teardown();
  parts_.environment->teardown();
}

strategy_table default_strategies() {
  return {{"single_device",
           [](strategy_parts parts) { return std::make_unique<single_device>(std::move(parts)); }},
          {"data_parallel", [](strategy_parts parts) {
             auto options = data_parallel_options_of(parts.about.options.gradients);
             return std::make_unique<data_parallel>(std::move(parts), std::move(options));
           }}};
}

void check_strategy(const strategy_table& known, std::string_view name, std::int32_t ranks) {
  constexpr std::string_view automatic = "auto";
  if (name == automatic) return;
  if (name == "single_device" && ranks > 1)
    throw user_error(errc::bad_configuration,
                     fmt::format("strategy single_device has one rank, not {}: use data_parallel, "
                                 "or ranks = 1",
                                 ranks));
  if (known.contains(name)) return;
  std::vector<std::string_view> names{automatic};
  for (const auto& [other, factory] : known) names.push_back(other);
  throw user_error(errc::bad_configuration, fmt::format("unknown strategy \"{}\": use one of {}",
                                                        name, fmt::join(names, ", ")));
}

std::unique_ptr<strategy> make_strategy(const strategy_table& known, std::string_view name,
                                        strategy_parts parts) {
  const auto world = parts.about.world;
  if (name == "auto") name = world > 1 ? "data_parallel" : "single_device";
  check_strategy(known, name, world);
  const auto& make = known.find(name)->second;
  auto made = make ? make(std::move(parts)) : nullptr;
  if (!made)
    throw user_error(errc::bad_usage,
                     fmt::format("the factory of strategy \"{}\" made none: return one", name));
  return made;
}

}  // namespace troupe
