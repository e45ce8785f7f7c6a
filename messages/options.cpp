#include "troupe/options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "messages/validation_interval.hpp"
#include "troupe/failure.hpp"
#include "troupe/outcome.hpp"

namespace troupe {

std::int64_t apply_limit(const batch_limit& limit, std::int64_t batches) {
  if (const auto* count = std::get_if<std::int64_t>(&limit))
    return std::clamp<std::int64_t>(*count, 0, batches);
  const auto share = std::get<double>(limit);
  if (batches <= 0 || !(share > 0)) return 0;
  if (share >= 1.0) return batches;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(batches) * share));
}

void check_validation_interval(std::int64_t every, std::int64_t batches) {
  if (batches <= 0 || every <= batches) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("val_check_interval is {} batches, but an epoch has {}: lower it, "
                               "give a share such as 1.0, or set check_val_every_n_epoch to 0, so "
                               "that it counts across epochs",
                               every, batches));
}

std::string_view to_string(placement_kind kind) {
  switch (kind) {
    case placement_kind::threads: return "threads";
    case placement_kind::processes: return "processes";
  }
  return "unknown";
}

placement_kind placement_named(std::string_view text) {
  for (const auto kind : {placement_kind::threads, placement_kind::processes})
    if (to_string(kind) == text) return kind;
  throw user_error(errc::bad_configuration,
                   "placement is \"" + std::string{text} + "\": ranks are threads or processes");
}

std::string_view to_string(communicator_kind kind) {
  switch (kind) {
    case communicator_kind::automatic: return "auto";
    case communicator_kind::inproc: return "inproc";
    case communicator_kind::shm: return "shm";
    case communicator_kind::tcp: return "tcp";
    case communicator_kind::hier: return "hier";
    case communicator_kind::mpi: return "mpi";
    case communicator_kind::nccl: return "nccl";
  }
  return "unknown";
}

std::string_view to_string(strategy_kind kind) {
  switch (kind) {
    case strategy_kind::automatic: return "auto";
    case strategy_kind::single_device: return "single_device";
    case strategy_kind::data_parallel: return "data_parallel";
  }
  return "unknown";
}

std::string_view to_string(precision_kind kind) {
  switch (kind) {
    case precision_kind::f32_true: return "32-true";
    case precision_kind::f64_true: return "64-true";
    case precision_kind::bf16_true: return "bf16-true";
    case precision_kind::bf16_mixed: return "bf16-mixed";
    case precision_kind::f16_true: return "16-true";
    case precision_kind::f16_mixed: return "16-mixed";
  }
  return "unknown";
}

std::string_view to_string(accelerator_kind kind) {
  switch (kind) {
    case accelerator_kind::automatic: return "auto";
    case accelerator_kind::cpu: return "cpu";
    case accelerator_kind::cuda: return "cuda";
    case accelerator_kind::lazy: return "lazy";
  }
  return "unknown";
}

std::string_view to_string(comm_hook_kind kind) {
  switch (kind) {
    case comm_hook_kind::allreduce: return "allreduce";
    case comm_hook_kind::f16_compress: return "f16_compress";
    case comm_hook_kind::bf16_compress: return "bf16_compress";
    case comm_hook_kind::powersgd: return "powersgd";
    case comm_hook_kind::noop: return "noop";
  }
  return "unknown";
}

comm_hook_kind comm_hook_named(std::string_view text) {
  std::string known;
  for (const auto kind :
       {comm_hook_kind::allreduce, comm_hook_kind::f16_compress, comm_hook_kind::bf16_compress,
        comm_hook_kind::powersgd, comm_hook_kind::noop}) {
    if (to_string(kind) == text) return kind;
    known.append(known.empty() ? "" : ", ").append(to_string(kind));
  }
  throw user_error(errc::bad_configuration, "strategy.comm_hook = \"" + std::string{text} +
                                                "\": use one of " + known +
                                                "; your own is given to register_comm_hook");
}

bool keeps_points(const trainer_options& options) {
  const auto& saves = options.checkpoint;
  return options.elastic.enabled() ||
         (saves.enabled && saves.on_exception && options.fast_dev_run == 0);
}

bool overfits(const trainer_options& options) {
  return std::visit([](auto x) { return x > 0; }, options.overfit_batches);
}

batch_limit limit_of(const trainer_options& options, stage s) {
  const bool short_run = options.fast_dev_run > 0;
  switch (s) {
    case stage::train:
      if (overfits(options)) return options.overfit_batches;
      return short_run ? options.fast_dev_run : options.limit_train_batches;
    case stage::sanity:
    case stage::validate:
      if (overfits(options)) return options.overfit_batches;
      return short_run ? options.fast_dev_run : options.limit_val_batches;
    case stage::test: return short_run ? options.fast_dev_run : options.limit_test_batches;
    case stage::predict: return short_run ? options.fast_dev_run : options.limit_predict_batches;
    case stage::start:
    case stage::call: break;
  }
  return 1.0;
}

std::string_view to_string(job_outcome::ending how) {
  switch (how) {
    case job_outcome::ending::finished: return "finished";
    case job_outcome::ending::stopped: return "stopped";
    case job_outcome::ending::failed: return "failed";
  }
  return "unknown";
}

std::string_view to_string(membership_change what) {
  switch (what) {
    case membership_change::none: return "none";
    case membership_change::left: return "left";
    case membership_change::scaled: return "scaled";
  }
  return "unknown";
}

std::string_view to_string(stop_reason r) {
  switch (r) {
    case stop_reason::none: return "none";
    case stop_reason::hook: return "hook";
    case stop_reason::early_stopping: return "early_stopping";
    case stop_reason::caller: return "caller";
    case stop_reason::interrupt: return "interrupt";
    case stop_reason::terminate: return "terminate";
  }
  return "unknown";
}

}  // namespace troupe
