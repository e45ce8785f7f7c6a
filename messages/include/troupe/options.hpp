// The options of a job, with every default and its reason. Plain data: the command line, the TOML
// file, trainer and session fill the same struct.
#pragma once

#include "troupe/observer.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

/// A limit on batches, as in Lightning: an integer counts batches, a floating-point number is a
/// share of the loader. A share of 1.0 is all batches.
using batch_limit = std::variant<std::int64_t, double>;

/// Stops the run when `monitor` has not improved by `min_delta` for `patience` checks. Each end of
/// a validation is a check. A monitor that was not logged is an error that lists the logged names.
/// An entry of trainer_options::stop_early, or the callback early_stopping (troupe/callbacks.hpp).
struct early_stopping_options {
  /// A logged name.
  std::string monitor = "val/loss";
  /// The least change that counts as an improvement; at least 0.
  double min_delta = 0;
  /// At least 0; 0 and 1 stop at the first check without an improvement.
  std::int32_t patience = 3;
  /// Whether a greater value is better.
  bool maximize = false;
  friend bool operator==(const early_stopping_options&, const early_stopping_options&) = default;
};

/// When snapshots are taken and which checkpoints are kept: trainer_options::checkpoint, or the
/// callback model_checkpoint (troupe/callbacks.hpp).
///
/// Training does not wait for the disk. While one checkpoint is written, a newer snapshot replaces
/// the one that waits, but never one that `keep_best` would keep (at most four of those wait). So
/// the newest durable checkpoint may be older than `every_n_steps`: by the steps of two writes, and
/// of one more write for each snapshot that waits for `keep_best`. Every `checkpoint_written` event
/// says how many steps that was (`behind`) and, if any were replaced, how many (`skipped`).
struct checkpoint_policy {
  bool enabled = true;  ///< false: no files, and no weights in the outcome
  /// A checkpoint after each epoch. If the end of an epoch is not validated, also after each
  /// validation in it that logs `monitor`, unless keep_best is 0.
  bool every_epoch = true;
  std::optional<std::int64_t> every_n_steps;  ///< none beyond one per epoch and one at the end
  /// One more at the first step boundary after so long, by rank 0's clock (Lightning's
  /// train_time_interval). Learners of LibTorch modules only.
  std::optional<std::chrono::nanoseconds> every;
  /// One more, of the last step that rank 0 finished, when the job fails (Lightning's
  /// save_on_exception). None if rank 0 is lost, or fails while it updates its weights. Ranks then
  /// keep what jobs that can restart keep (troupe::keeps_points). Learners of LibTorch modules
  /// only.
  bool on_exception = false;
  std::int32_t keep_last = 1;  ///< at least 1
  std::int32_t keep_best = 1;  ///< at least 0
  /// The logged value that keep_best compares. A checkpoint is among the best only if the value was
  /// measured of its weights: by a validation at its step, or in training of its epoch. A monitor
  /// other than the default that is not logged at the end of the first epoch with a validation is
  /// an error that lists the logged names; with val_check_time nothing looks for it.
  std::string monitor = "val/loss";
  /// Whether a greater value of `monitor` is better.
  bool maximize = false;
  friend bool operator==(const checkpoint_policy&, const checkpoint_policy&) = default;
};

/// The one time that a user sets: how fast a failure must be noticed. All other deadlines follow
/// from it, but for `hook_limit`, which may be raised for slow hooks. A job whose inner deadlines
/// outlast outer ones is refused.
struct time_knob {
  /// 1 ms to one hour; else a user_error.
  std::chrono::nanoseconds detect = std::chrono::milliseconds{500};
  /// How long a single hook may run; 0 means 600 x detect (five minutes). That is long enough for a
  /// slow evaluation hook, and a stuck job ends within minutes.
  std::chrono::nanoseconds hook_limit{0};
  friend bool operator==(const time_knob&, const time_knob&) = default;
};

/// Where ranks live.
enum class placement_kind : std::uint8_t {
  threads,    ///< of this process
  processes,  ///< of their own on this host, each of which runs this program (troupe/trainer.hpp)
};
/// What carries the ranks' collectives.
enum class communicator_kind : std::uint8_t {
  automatic,  ///< the first usable one of the ports; its text is `auto`
  inproc,     ///< threads of one process
  shm,        ///< processes of one host, over shared memory
  tcp,
  hier,  ///< shm within a host, tcp between hosts
  mpi,   ///< processes that mpirun placed
  nccl,  ///< GPUs
};
/// What a rank does at each hook (troupe/strategy.hpp).
enum class strategy_kind : std::uint8_t {
  automatic,  ///< single_device for one rank, else data_parallel; its text is `auto`
  single_device,
  data_parallel,
};
/// In which numbers a module lives (`true`), or in which its steps compute (`mixed`).
enum class precision_kind : std::uint8_t {
  f32_true,
  f64_true,
  bf16_true,
  bf16_mixed,
  f16_true,
  f16_mixed,  ///< with a gradient scaler
};

/// The kind of device that ranks compute on.
enum class accelerator_kind : std::uint8_t {
  automatic,  ///< cuda where every rank can have a device of its own, else cpu; its text is `auto`
  cpu,
  cuda,
  lazy,  ///< LibTorch's lazy tensors (troupe/accelerator.hpp)
};

/// Whether each rank measures how long its hooks take (troupe/outcome.hpp).
enum class profiler_kind : std::uint8_t { none, simple };

/// What sums a bucket of gradients.
enum class comm_hook_kind : std::uint8_t {
  allreduce,
  f16_compress,
  bf16_compress,
  powersgd,  ///< gradient_options::powersgd
  noop,      ///< nothing is sent and ranks diverge: it measures what the exchange costs
};

/// Whether LibTorch uses deterministic algorithms only. With `on` an operation that has none
/// throws, with `warn` LibTorch warns once.
enum class deterministic_kind : std::uint8_t { off, on, warn };

/// The texts are those of flags, TOML keys and results: `threads`, `auto`, `32-true`, ...
/// @{
std::string_view to_string(placement_kind kind);
std::string_view to_string(communicator_kind kind);
std::string_view to_string(strategy_kind kind);
std::string_view to_string(precision_kind kind);
std::string_view to_string(accelerator_kind kind);
std::string_view to_string(comm_hook_kind kind);
/// @}
/// These throw user_error (bad_configuration) that lists the texts there are.
/// @{
placement_kind placement_named(std::string_view text);
comm_hook_kind comm_hook_named(std::string_view text);
/// @}

/// The name of a plug-in of the program's own, or the text of a kind.
struct own_name {
  /// The name under which the plug-in is registered.
  std::string text;
};
/// Names a part of a job: one of Troupe's kinds (`options.strategy = strategy_kind::single_device`)
/// or a plug-in that the program has under a name of its own (`options.strategy =
/// own_name{"my_strategy"}`). The plug-ins are those of the ports and of the recipe. A job that
/// names another one is refused, with a list of the names that exist.
template <class Kind>
struct kind_or_name {
  /// Implicit, so that both assign.
  /// @{
  kind_or_name(Kind kind) : name(to_string(kind)) {}
  kind_or_name(own_name own) : name(std::move(own.text)) {}
  /// @}
  friend bool operator==(const kind_or_name&, const kind_or_name&) = default;

  /// The text of the kind, or the plug-in's name.
  std::string name;
};

/// Which devices of a host its ranks compute on (key `devices`, flag `--devices`): a count or a
/// list. Neither: the first ones, one for each rank. docs/accelerators.md says what is refused.
struct device_choice {
  std::optional<std::int32_t> count;  ///< the first so many
  std::vector<std::int32_t> indices;  ///< these; local rank r gets the r-th
  friend bool operator==(const device_choice&, const device_choice&) = default;
};

/// What becomes of a job when it loses a rank, or when a rank fails (keys `elastic.*`;
/// docs/elastic.md).
struct elastic_options {
  /// How often the job forms a new generation after a failure. 0: the first failure ends the job.
  std::int32_t max_restarts = 0;
  /// What an exception in a hook does. A broken invariant, a wrong configuration and an error of
  /// the storage end the job in any case.
  enum class on_exception : std::uint8_t { restart, fail };
  /// `fail`: ends the job. Losses of ranks are not concerned.
  on_exception exceptions = on_exception::restart;
  /// A restart counts for so long, and until a step is committed after it. 0: for the whole job.
  std::chrono::nanoseconds window{0};
  /// Shards of the job: each has its own lane, module, samples and random draws, so the weights
  /// depend on their number only. Unset: as many as ranks, or those of the checkpoint that a fit
  /// resumes if they are more. With more shards than ranks, and placement_kind::processes, a
  /// process computes several of them.
  std::optional<std::int32_t> shards;
  /// Where the shards of a process that is lost go on: in a new process, or in those that are left.
  enum class loss : std::uint8_t { replace, shrink };
  /// Either way a spare that is ready comes first.
  loss on_loss = loss::replace;
  /// With fewer processes the job starts others, and waits for them at most so long; then it fails
  /// (membership).
  std::int32_t min_ranks = 1;
  /// The limit of that wait.
  std::chrono::nanoseconds wait = std::chrono::seconds{60};
  /// Processes that are started and wait for the shards of one that is lost.
  std::int32_t spares = 0;

  /// Whether the job can restart at all.
  bool enabled() const { return max_restarts > 0; }
  friend bool operator==(const elastic_options&, const elastic_options&) = default;
};

/// One injected fault (`--fault KIND@rank=R,hook=NAME[,step=S][,what=TEXT][,ms=N]`). A job refuses
/// a rank that it does not have and a hook that does not exist (bad_configuration).
struct fault_drill {
  /// In this order: throw injected_fault, sleep for `lasts`, std::abort, SIGSEGV, exit at once with
  /// code 1, SIGKILL, SIGSTOP. All but the first two hit the rank's whole process.
  enum class kind : std::uint8_t { raise, stall, abort, segv, exit, kill, stop };
  /// What happens.
  kind what = kind::raise;
  /// The rank that it happens to.
  std::int32_t rank = 0;
  /// The name of the hook at which it happens (hook_names).
  std::string hook;
  std::int64_t step = undefined;  ///< undefined: the first time the hook runs
  /// raise: the text of the exception.
  std::string text = "injected fault";
  std::chrono::milliseconds lasts{0};  ///< stall
  friend bool operator==(const fault_drill&, const fault_drill&) = default;
};

/// PowerSGD (`comm_hook` = `powersgd`; docs/gradients.md). In comments: the name in Python's
/// PowerSGDState, whose defaults these are.
struct powersgd_options {
  std::int32_t rank = 1;           ///< matrix_approximation_rank: columns of P and Q
  std::int64_t start_step = 1000;  ///< start_powerSGD_iter: steps that are summed as they are
  /// min_compression_rate: a gradient is compressed if that makes it smaller than one n-th.
  double min_rate = 2;
  bool error_feedback = true;  ///< use_error_feedback
  bool warm_start = true;      ///< warm_start: Q begins as the last step's
  double epsilon = 0;          ///< orthogonalization_epsilon, added to the norm of each column
  std::uint32_t seed = 0;      ///< random_seed, of each matrix's first Q
  friend bool operator==(const powersgd_options&, const powersgd_options&) = default;
};

/// How data-parallel ranks exchange gradients, with the names that DDP uses (keys `strategy.*`).
/// Only `comm_hook`, `sync_module_states` and `broadcast_buffers` change bits of the result.
/// Gradients are views of buckets, except large ones where ranks share memory, and those on the
/// accelerator `lazy`, whose tensors have no memory (docs/gradients.md, docs/accelerators.md).
struct gradient_options {
  /// MiB of a bucket. Unset: chosen from the latency and bandwidth measured after the first step.
  std::optional<double> bucket_cap_mb;
  /// Buckets are sent while backward runs. False: after it, for modules that run several backwards
  /// in one hook.
  bool overlap = true;
  /// Searches the graph before each backward for parameters without a gradient, so that their
  /// buckets need not wait. Without it unused parameters are allowed, too, but their buckets are
  /// sent after backward.
  bool find_unused_parameters = false;
  /// Promises that each backward uses the same parameters equally often, so that the graph is
  /// searched once. A step that differs is an error.
  bool static_graph = false;
  /// What sums a bucket. A hook of your own is given to register_comm_hook.
  comm_hook_kind comm_hook = comm_hook_kind::allreduce;
  /// For comm_hook powersgd only.
  powersgd_options powersgd;
  /// Sums, clips and updates in one pass over memory, with one optimizer state per process. Unset:
  /// where that is possible and neither the module nor a callback reads gradients
  /// (module::reads_gradients).
  std::optional<bool> fused_step;
  /// After each step the module's buffers are overwritten with rank 0's.
  bool broadcast_buffers = true;
  /// At the start all ranks take rank 0's parameters and buffers. False: each rank keeps what its
  /// module was made with, which is the same on all ranks unless the module sees to the opposite.
  /// The updates are equal on all ranks all the same. Not in jobs that can restart.
  bool sync_module_states = true;
  friend bool operator==(const gradient_options&, const gradient_options&) = default;
};

/// The trainer's options. Most have a TOML key of the same name or a table (docs/settings.md).
struct trainer_options {
  /// At least 1. Without elastic_options::shards also the number of replicas and shares of data.
  std::int32_t ranks = 2;
  std::int64_t max_epochs = 3;  ///< total; -1: no limit
  /// Total; 0 sets up, writes the initial checkpoint and ends.
  std::optional<std::int64_t> max_steps;
  /// A stop that a hook or early stopping asks for waits until so many epochs and so many steps are
  /// done, resumed runs together. Unset: 0, but min_epochs is 1 where min_steps is set, as in
  /// Lightning. max_epochs, max_steps and a caller's stop do not wait.
  std::optional<std::int64_t> min_epochs;
  /// See min_epochs; in optimizer steps.
  std::optional<std::int64_t> min_steps;
  /// Ends the run as a timer does (troupe/callbacks.hpp). Learners of LibTorch modules only.
  std::optional<std::chrono::nanoseconds> max_time;
  std::int64_t batch_size = 64;  ///< samples per rank and micro-batch
  /// Micro-batches in one optimizer step; at least 1. The last step of an epoch may have fewer.
  std::int64_t accumulate_grad_batches = 1;
  /// From an epoch on another number in place of accumulate_grad_batches, by epoch (Lightning's
  /// GradientAccumulationScheduler): {{4, 2}, {8, 1}}. Epochs from 0, numbers from 1.
  std::map<std::int64_t, std::int64_t> accumulate_schedule;
  /// Truncated back-propagation through time: an optimizer step after so many steps in time of each
  /// batch (docs/gradients.md). 0: off, unless the module says otherwise
  /// (module::truncated_bptt_steps).
  std::int64_t truncated_bptt_steps = 0;
  /// Gradients are clipped at it, after they are summed over ranks. Unset or 0: not at all.
  std::optional<double> gradient_clip_val;
  /// Clips the norm of all gradients of an optimizer, or each value.
  hooks::clip_gradients::algorithm gradient_clip_algorithm = hooks::clip_gradients::algorithm::norm;
  /// How many micro-batches of an epoch, or of each loader of an evaluation, are used. 0: none.
  /// @{
  batch_limit limit_train_batches = 1.0;
  batch_limit limit_val_batches = 1.0;
  batch_limit limit_test_batches = 1.0;
  batch_limit limit_predict_batches = 1.0;
  /// @}
  /// Trains and validates on so many batches, a count or a share: the same ones in each epoch, in
  /// the order of the data. Replaces the limits on them, that of fast_dev_run included. 0: off.
  batch_limit overfit_batches = 0.0;
  /// A validation after so many micro-batches (at least 1), or after this share of an epoch (above
  /// 0).
  batch_limit val_check_interval = 1.0;
  /// In place of val_check_interval: a validation at the first step boundary after so long since
  /// the last one, by rank 0's clock. Learners of LibTorch modules only.
  std::optional<std::chrono::nanoseconds> val_check_time;
  /// Validates in each n-th epoch. 0, which is None in Lightning: val_check_interval counts
  /// micro-batches across epochs, and may be more than those of one epoch.
  std::int64_t check_val_every_n_epoch = 1;
  /// Batches of each validation loader before training; -1: all. None in a resumed fit.
  std::int64_t num_sanity_val_steps = 2;
  std::int64_t fast_dev_run = 0;  ///< n batches (see overfit_batches), one epoch, no files
  /// Values of steps are reduced over ranks and reported in each n-th optimizer step; at least 1.
  std::int64_t log_every_n_steps = 50;
  // The next three hold for the whole process while a rank of the job lives there.
  /// A backward that computes NaN fails, and names the function. Slow: to find an error.
  bool detect_anomaly = false;
  /// See deterministic_kind.
  deterministic_kind deterministic = deterministic_kind::off;
  /// cuDNN chooses convolutions by trying them. Unset: off with `deterministic`, else unchanged.
  std::optional<bool> benchmark;
  /// validate, test and predict use LibTorch's inference mode, else no_grad. Their tensors cannot
  /// take part in a backward later. Validations within a fit always use no_grad.
  bool inference_mode = true;
  /// Rank 0's times are in job_outcome::queue. Learners of LibTorch modules only.
  profiler_kind profiler = profiler_kind::none;
  /// Seeds initial weights, the order of data and each random draw: equal runs give equal bits.
  std::uint64_t seed = 0;
  /// A name is one of torch_plugins::precisions of the recipe.
  kind_or_name<precision_kind> precision = precision_kind::f32_true;
  /// A name is one of torch_plugins::strategies of the recipe.
  kind_or_name<strategy_kind> strategy = strategy_kind::automatic;
  /// Used by data_parallel.
  gradient_options gradients;
  /// A name is that of an adapter of the ports.
  kind_or_name<communicator_kind> communicator = communicator_kind::automatic;
  /// Connections between two ranks of tcp and hier (key `tcp.streams`). Unset: the adapter's.
  std::optional<std::int64_t> tcp_streams;
  /// processes needs a first line in main (troupe/trainer.hpp).
  placement_kind placement = placement_kind::threads;
  /// A name is one of torch_plugins::accelerators of the recipe.
  kind_or_name<accelerator_kind> accelerator = accelerator_kind::automatic;
  /// The devices of the ranks; by default the first ones of each host.
  device_choice devices;
  bool one_hook_per_run = false;  ///< the lane answers after every hook, for tests and observers
  /// Each of them may end the run.
  std::vector<early_stopping_options> stop_early;
  /// The checkpoints of a fit that has a job_context::run_folder.
  checkpoint_policy checkpoint;
  /// Deadlines of the job.
  time_knob time;
  /// By default the first failure ends the job.
  elastic_options elastic;
  /// For drills and tests; empty: none.
  std::vector<fault_drill> faults;

  friend bool operator==(const trainer_options&, const trainer_options&) = default;
};

/// The number of batches that `limit` leaves of `batches`, as in Lightning: an integer is a count,
/// at most `batches`; a share is rounded down, but to at least 1 while both are positive.
std::int64_t apply_limit(const batch_limit& limit, std::int64_t batches);

/// Whether ranks keep what they need to return to the last step: in jobs that can restart, and with
/// checkpoint_policy::on_exception. It costs a copy of the module's buffers in each step, and the
/// fused step (gradient_options::fused_step).
bool keeps_points(const trainer_options& options);

/// Whether `options` ask to train on a few batches only.
bool overfits(const trainer_options& options);
/// The limit on batches in stage `s`, with `overfit_batches` and `fast_dev_run` taken into account;
/// the sanity check has that of validate. No limit (1.0) in a stage without batches.
batch_limit limit_of(const trainer_options& options, stage s);

}  // namespace troupe
