#include "apps/troupe/schema.hpp"

#include "apps/troupe/schema_parts.hpp"
#include "backends/tcp/tcp.hpp"
#include "troupe/options.hpp"

#include <algorithm>
#include <cctype>

namespace troupe::program {

namespace {

using words = std::vector<std::string>;

const setting_value unset{};

setting_value as_setting(const batch_limit& limit) {
  return std::visit([](auto x) { return setting_value{x}; }, limit);
}

// The built-in ones have their order.
void add_missing(words& choices, const words& names) {
  for (const auto& name : names)
    if (std::ranges::find(choices, name) == choices.end()) choices.push_back(name);
}

void add_devices(schema& s, const trainer_options& d, const schema_names& names) {
  auto& on =
      add(s, "accelerator", kind::choice, d.accelerator.name, "--accelerator",
          "where tensors live; auto: a GPU for each rank, else the cpu", {d.accelerator.name});
  on.choices.insert(on.choices.end(), names.accelerators.begin(), names.accelerators.end());
  for (const auto known : {to_string(accelerator_kind::cuda), to_string(accelerator_kind::lazy)}) {
    if (std::ranges::find(on.choices, known) != on.choices.end()) continue;
    on.refused.emplace_back(known);
    on.elsewhere.emplace_back(known);
  }
  auto& devices = add(s, "devices", kind::devices, "auto", "--devices",
                      "one device per rank, as a count or a list of indices; auto: the first ones");
  devices.low = 0;
  devices.high = 32767;  // an index of LibTorch has 8 or 16 bits
}

void add_job(schema& s, const trainer_options& d, const schema_names& names) {
  auto& ranks = add(s, "ranks", kind::integer, std::int64_t{d.ranks}, "--ranks",
                    "members of the training world");
  ranks.low = 1;
  ranks.high = 4096;
  add(s, "placement", kind::choice, "threads", "--placement",
      "where ranks live: threads need nothing to be started", {"threads", "processes"})
      .refused = {"simulated"};
  auto& by = add(s, "communicator", kind::choice, d.communicator.name, "--communicator",
                 "engine of the collectives; auto: by placement",
                 {"auto", "inproc", "shm", "tcp", "hier"});
  for (const auto& [name, here] : {std::pair{"nccl", names.nccl}, std::pair{"mpi", names.mpi}}) {
    (here ? by.choices : by.refused).emplace_back(name);
    if (!here) by.elsewhere.emplace_back(name);
  }
  add_devices(s, d, names);
  auto& precision = add(s, "precision", kind::choice, d.precision.name, "--precision",
                        "of weights and of the forward pass",
                        {"32-true", "64-true", "bf16-true", "bf16-mixed", "16-true", "16-mixed",
                         "32", "64", "16", "bf16"});
  add_missing(precision.choices, names.precisions);
  add(s, "seed", kind::integer, static_cast<std::int64_t>(d.seed), "--seed",
      "of initial weights, data order and dropout")
      .low = 0;
}

void add_extent(schema& s, const trainer_options& d) {
  add(s, "max_epochs", kind::integer, d.max_epochs, "--max-epochs",
      "passes over the training data, in total; -1: no limit")
      .low = -1;
  add(s, "max_steps", kind::integer, unset, "--max-steps",
      "optimizer steps, in total; 0 writes the initial checkpoint and ends")
      .low = 0;
  add(s, "min_epochs", kind::integer, unset, "--min-epochs",
      "early stopping and stops of hooks wait for so many epochs")
      .low = 0;
  add(s, "min_steps", kind::integer, unset, "--min-steps",
      "early stopping and stops of hooks wait for so many optimizer steps")
      .low = 0;
  add(s, "max_time", kind::text, unset, "--max-time",
      "stop after this time of training, DD:HH:MM:SS; resumed runs count together")
      .shape = "DD:HH:MM:SS";
}

void add_amounts(schema& s, const trainer_options& d) {
  auto& batch = add(s, "batch_size", kind::integer, d.batch_size, "--batch-size",
                    "samples per rank and micro-batch");
  batch.low = 1;
  batch.high = count_limit;
  auto& accumulate =
      add(s, "accumulate_grad_batches", kind::integer, d.accumulate_grad_batches,
          "--accumulate-grad-batches", "micro-batches that make up one optimizer step");
  accumulate.low = 1;
  accumulate.high = count_limit;
  add(s, "accumulate_schedule", kind::text, unset, "--accumulate-schedule",
      "another number from an epoch on, by epoch: 4:2,8:1")
      .shape = "EPOCH:BATCHES,...";
  add(s, "truncated_bptt_steps", kind::integer, d.truncated_bptt_steps, "--truncated-bptt-steps",
      "an optimizer step after so many steps in time of each batch; 0: as the model says")
      .low = 0;
  auto& clip = add(s, "gradient_clip_val", kind::number, unset, "--gradient-clip-val",
                   "clip gradients at this; off by default");
  clip.low = 0;
  clip.low_excluded = true;
  add(s, "gradient_clip_algorithm", kind::choice, "norm", "--gradient-clip-algorithm",
      "clip the norm of all gradients, or each value", {"norm", "value"});
}

void add_reports(schema& s, const trainer_options& d) {
  auto& sanity = add(s, "num_sanity_val_steps", kind::integer, d.num_sanity_val_steps,
                     "--num-sanity-val-steps,--num-sanity-val-batches",
                     "validation batches before training, to fail early; -1: all");
  sanity.low = -1;
  sanity.former = "num_sanity_val_batches";
  auto& dev = add(s, "fast_dev_run", kind::integer, d.fast_dev_run, "--fast-dev-run",
                  "this many batches of everything, one epoch, no checkpoints");
  dev.low = 0;
  dev.bare = "1";
  add(s, "log_every_n_steps", kind::integer, d.log_every_n_steps, "--log-every-n-steps",
      "how often training metrics are written")
      .low = 1;
  add(s, "detect_anomaly", kind::boolean, d.detect_anomaly, "--detect-anomaly",
      "fail where a backward computes NaN, and name the function; slow");
  auto& same = add(s, "deterministic", kind::choice, "false", "--deterministic",
                   "deterministic algorithms of LibTorch only; warn: where there are any",
                   {"false", "true", "warn"});
  same.bare = "true";
  add(s, "benchmark", kind::boolean, unset, "--benchmark",
      "let cuDNN choose convolutions by trying them; of use on GPUs");
  add(s, "inference_mode", kind::boolean, d.inference_mode, "--inference-mode",
      "test and predict in LibTorch's inference mode, else without gradients only");
  add(s, "callbacks", kind::texts, words{}, "--callback",
      "NAME[,KEY=VALUE...], may repeat: lr_monitor, gradient_norms, throughput, device_stats, "
      "ranks, figures, tensorboard, timer, ema, swa, early_stopping, model_checkpoint, "
      "gradient_accumulation_scheduler, lr_range, lazy_report, torch_profiler")
      .shape = "NAME";
  add(s, "logger", kind::words, words{"csv"}, "--logger",
      "files with the metrics of a run; several with commas", {"csv", "tensorboard"});
  add(s, "enable_checkpointing", kind::boolean, true, "--enable-checkpointing",
      "write checkpoints; without them the run cannot be resumed");
  add(s, "init_weights", kind::text, unset, "--init-weights",
      "a safetensors file with the model's keys to start from")
      .shape = "FILE";
}

void add_limits(schema& s, const trainer_options& d) {
  const auto limit = [&](const char* key, const char* flag, const batch_limit& fallback,
                         const char* help) {
    add(s, key, kind::limit, as_setting(fallback), flag, help).low = 0;
  };
  limit("limit_train_batches", "--limit-train-batches", d.limit_train_batches,
        "training batches per epoch: 10 counts, 0.1 is a share");
  limit("limit_val_batches", "--limit-val-batches", d.limit_val_batches,
        "validation batches: a count or a share");
  limit("limit_test_batches", "--limit-test-batches", d.limit_test_batches,
        "test batches: a count or a share; 0 skips the test");
  limit("limit_predict_batches", "--limit-predict-batches", d.limit_predict_batches,
        "prediction batches: a count or a share");
  limit("overfit_batches", "--overfit-batches", d.overfit_batches,
        "train and validate on so few batches, the same in each epoch; 0: off");
  limit("val_check_interval", "--val-check-interval", d.val_check_interval,
        "validate after this many batches, or this share of an epoch");
  add(s, "val_check_time", kind::text, unset, "--val-check-time",
      "in place of val_check_interval: validate after this time, DD:HH:MM:SS")
      .shape = "DD:HH:MM:SS";
  add(s, "check_val_every_n_epoch", kind::integer, d.check_val_every_n_epoch,
      "--check-val-every-n-epoch",
      "validate in each n-th epoch; 0: val_check_interval counts batches across epochs")
      .low = 0;
}

void add_call(schema& s) {
  const auto first = s.size();
  add(s, "run_dir", kind::text, unset, "--run-dir",
      "the run's folder; by default runs/<model>-<UTC>-<4 hex>")
      .shape = "DIR";
  add(s, "resume", kind::text, unset, "--resume,--checkpoint",
      "go on from `latest` of the run's folder, or from a checkpoint's path")
      .shape = "PATH";
  add(s, "trace_hooks", kind::text, unset, "--trace-hooks",
      "write one JSON line per hook and rank to this file")
      .shape = "FILE";
  add(s, "fault", kind::texts, words{}, "--fault",
      "a fire drill, KIND@rank=R,hook=NAME[,step=S][,what=TEXT][,ms=N]; may repeat")
      .shape = "SPEC";
  add(s, "trace", kind::text, unset, "--trace",
      "write hooks and events over time to this file, for Perfetto and Chrome")
      .shape = "FILE";
  auto& port = add(s, "metrics_port", kind::integer, unset, "--metrics-port",
                   "serve metrics for Prometheus on this port of 127.0.0.1; 0: any port");
  port.low = 0;
  port.high = 65535;
  add(s, "progress", kind::choice, "auto", "--progress",
      "a live line; auto: on a terminal, else now and then a line", {"auto", "always", "never"});
  add(s, "json", kind::boolean, false, "--json", "print the result as one line of JSON");
  add(s, "quiet", kind::boolean, false, "--quiet",
      "no progress and no notes: errors, the last line, a profiler's table, and the address of "
      "--metrics-port 0");
  add(s, "profiler", kind::choice, "none", "--profiler",
      "simple: a table of the hooks' times; torch: LibTorch's trace of a few batches, as "
      "torch_trace.json in the run's folder",
      {"none", "simple", "torch"});
  for (auto i = first; i < s.size(); ++i) s[i].saved = false;
  add(s, "fine", kind::boolean, false, "--fine",
      "hand hooks to the lane one by one, for tests and observers");
}

void add_powersgd(schema& s, const powersgd_options& d) {
  auto& rank = add(s, "strategy.powersgd.rank", kind::integer, std::int64_t{d.rank}, "",
                   "columns of powersgd's matrices: fewer are less exact and faster");
  rank.low = 1;
  rank.high = 1 << 16;
  add(s, "strategy.powersgd.start_step", kind::integer, d.start_step, "",
      "powersgd sums the gradients of so many steps as they are")
      .low = 0;
  auto& rate = add(s, "strategy.powersgd.min_rate", kind::number, d.min_rate, "",
                   "powersgd compresses a gradient if it becomes so many times smaller");
  rate.low = 0;
  rate.low_excluded = true;
  add(s, "strategy.powersgd.error_feedback", kind::boolean, d.error_feedback, "",
      "powersgd adds what it lost in a step to the next one");
  add(s, "strategy.powersgd.warm_start", kind::boolean, d.warm_start, "",
      "powersgd begins with the last step's matrices");
  add(s, "strategy.powersgd.epsilon", kind::number, d.epsilon, "",
      "powersgd adds this to the norm of each column that it divides by")
      .low = 0;
  auto& seed = add(s, "strategy.powersgd.seed", kind::integer, std::int64_t{d.seed}, "",
                   "of powersgd's first matrices");
  seed.low = 0;
  seed.high = 4294967295.0;
}

void add_strategy(schema& s, const trainer_options& d, const schema_names& names) {
  const auto& g = d.gradients;
  auto& by = add(s, "strategy.name", kind::choice, d.strategy.name, "--strategy",
                 "what a rank does at each hook; auto: by ranks",
                 {"auto", "single_device", "data_parallel"});
  add_missing(by.choices, names.strategies);
  auto& cap =
      add(s, "strategy.bucket_cap_mb", kind::number, unset, "",
          "MiB of gradients that travel together; by default as measured in the first step");
  cap.low = 0;
  cap.low_excluded = true;
  cap.high = 1 << 16;
  add(s, "strategy.overlap", kind::boolean, g.overlap, "",
      "gradients are sent while backward runs, not after it");
  add(s, "strategy.find_unused_parameters", kind::boolean, g.find_unused_parameters, "",
      "look for parameters without a gradient before each backward, so that none waits for them");
  add(s, "strategy.static_graph", kind::boolean, g.static_graph, "",
      "every backward uses the same parameters equally often");
  add(s, "strategy.comm_hook", kind::choice, std::string{to_string(g.comm_hook)}, "",
      "what sums gradients; noop sums nothing, to measure what the exchange costs",
      {"allreduce", "f16_compress", "bf16_compress", "powersgd", "noop"});
  add(s, "strategy.fused_step", kind::boolean, unset, "",
      "sum, clip and update in one pass (ranks as threads); by default where it is possible");
  add(s, "strategy.broadcast_buffers", kind::boolean, g.broadcast_buffers, "",
      "buffers become rank 0's after each step");
  add(s, "strategy.sync_module_states", kind::boolean, g.sync_module_states, "",
      "parameters and buffers become rank 0's at the start");
  add_powersgd(s, g.powersgd);
  auto& streams = add(s, "tcp.streams", kind::integer, unset, "--tcp-streams",
                      "connections between two ranks of tcp and hier; by default as doctor says");
  streams.low = 1;
  streams.high = tcp_streams_max;
}

void add_policies(schema& s, const trainer_options& d) {
  const words directions{"min", "max"};
  const auto& c = d.checkpoint;
  add(s, "checkpoint.every_n_steps", kind::integer, unset, "--checkpoint-every-n-steps",
      "beyond one checkpoint per epoch and one at the end")
      .low = 1;
  auto& minutes = add(s, "checkpoint.every_n_minutes", kind::number, unset,
                      "--checkpoint-every-n-minutes", "the same, by the clock");
  minutes.low = 0;
  minutes.low_excluded = true;
  minutes.high = 1e6;
  add(s, "checkpoint.every_epoch", kind::boolean, c.every_epoch, "",
      "one checkpoint at the end of each epoch");
  add(s, "checkpoint.on_exception", kind::boolean, c.on_exception, "--checkpoint-on-exception",
      "one of the last step when the fit fails; switches the fused step off");
  auto& last = add(s, "checkpoint.keep_last", kind::integer, std::int64_t{c.keep_last},
                   "--keep-last", "checkpoints to keep by age");
  last.low = 1;
  last.high = count_limit;
  auto& best = add(s, "checkpoint.keep_best", kind::integer, std::int64_t{c.keep_best},
                   "--keep-best", "checkpoints to keep by the monitored metric");
  best.low = 0;
  best.high = count_limit;
  add(s, "checkpoint.monitor", kind::text, c.monitor, "", "the metric that keep_best compares")
      .shape = "METRIC";
  add(s, "checkpoint.mode", kind::choice, "min", "", "which of its values is best", directions);
  const early_stopping_options e;
  add(s, "early_stopping.monitor", kind::text, unset, "",
      "stop when this metric no longer improves; off by default")
      .shape = "METRIC";
  add(s, "early_stopping.min_delta", kind::number, e.min_delta, "", "what counts as an improvement")
      .low = 0;
  auto& patience = add(s, "early_stopping.patience", kind::integer, std::int64_t{e.patience}, "",
                       "checks without one, the last of which ends the fit; 0 is as 1");
  patience.low = 0;
  patience.high = 1 << 30;
  add(s, "early_stopping.mode", kind::choice, "min", "", "which of its values is best", directions);
}

void add_time(schema& s, const trainer_options& d) {
  const std::chrono::duration<double> known = d.time.detect;
  auto& detect = add(s, "time.detect_seconds", kind::number, known.count(), "--detect-seconds",
                     "how fast a failure must be noticed; every other deadline follows from it");
  detect.low = 0.001;
  detect.high = 3600;
  auto& hook = add(s, "time.hook_limit_seconds", kind::number, 0.0, "--hook-limit-seconds",
                   "the longest a single hook may run; 0: 600 times detect_seconds");
  hook.low = 0;
  hook.high = 365 * 24 * 3600;
}

void add_elastic(schema& s, const trainer_options& d) {
  auto& restarts =
      add(s, "elastic.max_restarts", kind::integer, std::int64_t{d.elastic.max_restarts},
          "--max-restarts", "failures that the job outlives; 0: the first failure ends the job");
  restarts.low = 0;
  restarts.high = count_limit;
  add(s, "elastic.exceptions", kind::choice, "restart", "",
      "what an exception in a hook does to a job that may restart", {"restart", "fail"});
  auto& window = add(s, "elastic.window_seconds", kind::number, 0.0, "",
                     "a restart counts for so long, and until a step is committed; 0: for the "
                     "whole job");
  window.low = 0;
  window.high = 1e9;
  auto& shards =
      add(s, "elastic.shards", kind::integer, {}, "--shards",
          "pieces of each batch, which the ranks share; unset: one per rank, or those of "
          "the checkpoint that a fit resumes");
  shards.low = 1;
  shards.high = 4096;
  add(s, "elastic.on_loss", kind::choice, "replace", "--on-loss",
      "where the shards of a lost process go on: in a new one, or in those that are left",
      {"replace", "shrink"});
  auto& least = add(s, "elastic.min_ranks", kind::integer, std::int64_t{d.elastic.min_ranks},
                    "--min-ranks", "with fewer processes the job waits for others");
  least.low = 1;
  least.high = 4096;
  auto& wait = add(s, "elastic.wait_seconds", kind::number, 60.0, "",
                   "the longest wait for a process that cannot be started");
  wait.low = 0;
  wait.high = 1e9;
  auto& spares = add(s, "elastic.spares", kind::integer, std::int64_t{d.elastic.spares}, "--spares",
                     "processes that wait for the shards of a lost one");
  spares.low = 0;
  spares.high = 4096;
}

}  // namespace

std::string_view describe(kind k) {
  switch (k) {
    case kind::boolean: return "true or false";
    case kind::integer: return "an integer";
    case kind::number: return "a number";
    case kind::text: return "a text";
    case kind::choice: return "one of a few words";
    case kind::limit: return "an integer (batches) or a number with a point (a share)";
    case kind::integers: return "a list of integers, as [256, 128]";
    case kind::texts: return "a list of texts";
    case kind::words: return "a list of words";
    case kind::devices: return "\"auto\", a count, or a list of indices as [0, 1]";
  }
  return "a value";
}

namespace {

std::string variable_of(std::string_view source) {
  std::string name = "TROUPE_";
  for (const char c : source)
    name += std::isalnum(static_cast<unsigned char>(c))
                ? static_cast<char>(std::toupper(static_cast<unsigned char>(c)))
                : '_';
  return name;
}

}  // namespace

std::vector<std::string> setting::flags() const {
  words all;
  for (std::size_t begin = 0; begin < flag.size();) {
    const auto end = std::min(flag.find(',', begin), flag.size());
    all.push_back(flag.substr(begin, end - begin));
    begin = end + 1;
  }
  if (!all.empty() && kind == kind::boolean) all.push_back("--no-" + all.front().substr(2));
  return all;
}

std::string setting::variable() const {
  return variable_of(flag.empty() ? key : flag.substr(2, flag.find(',') - 2));
}

std::string setting::former_variable() const {
  return former.empty() ? former : variable_of(former);
}

schema make_schema(const schema_names& names) {
  const trainer_options defaults;
  schema all;
  add_job(all, defaults, names);
  add_extent(all, defaults);
  add_amounts(all, defaults);
  add_reports(all, defaults);
  add_limits(all, defaults);
  add_call(all);
  add_learning(all, names);
  add_strategy(all, defaults, names);
  add_policies(all, defaults);
  add_time(all, defaults);
  add_elastic(all, defaults);
  return all;
}

bool is_with(const setting& one, std::string_view model, std::string_view data) {
  if (one.chooser.empty()) return true;
  const auto chosen = one.chooser == "model.name" ? model : data;
  return std::ranges::find(one.with, chosen) != one.with.end();
}

const setting* find_setting(const schema& all, std::string_view key) {
  const auto with = [&](std::string_view wanted) {
    return std::find_if(all.begin(), all.end(), [&](const setting& s) {
      return s.key == wanted || (!s.former.empty() && s.former == wanted);
    });
  };
  auto found = with(key);
  if (found == all.end()) found = with(std::string{key} + ".name");
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> keys_of(const schema& all) {
  std::vector<std::string> keys;
  for (const auto& s : all)
    if (std::ranges::find(keys, s.key) == keys.end()) keys.push_back(s.key);
  return keys;
}

}  // namespace troupe::program
