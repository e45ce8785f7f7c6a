// Data as ranks read it, and the datasets that Troupe has. Datasets are shared and const; the
// ledger of a job says which samples a micro-batch consumes.
#pragma once

#include "troupe/detail/data_order.hpp"
#include "troupe/detail/position.hpp"
#include "troupe/detail/stable_hash.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/value.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

// The argument and the result of a module's steps.

/// One rank's part of one micro-batch, on the rank's device. Copies share the tensors.
class batch {
public:
  /// No samples: the batch that a rank without data gets in a batch's start and end hooks.
  batch() = default;
  /// `samples`: of `held`, at least 0.
  batch(value held, std::int64_t samples) : held_(std::move(held)), samples_(samples) {}

  /// Item `index` of a tuple or list; the tensor itself for 0 when the batch is one tensor. Throws
  /// std::out_of_range or std::invalid_argument that says what the batch is instead.
  const at::Tensor& operator[](std::size_t index) const;
  /// The item of a map. Throws likewise; the text lists the keys.
  const at::Tensor& operator[](std::string_view key) const;
  /// The batch as the dataset made it, with its types.
  const value& get() const { return held_; }
  /// Samples of this rank in this micro-batch.
  std::int64_t samples() const { return samples_; }
  /// No samples.
  bool empty() const { return samples_ == 0; }

private:
  value held_;
  std::int64_t samples_ = 0;
};

/// A step's result: a loss, a map with `loss` in it, any value (evaluation and prediction only), or
/// nothing.
class step_output {
public:
  step_output() = default;
  /// Implicit: steps return a loss, a value or a map as they are. An undefined loss is nothing.
  /// @{
  step_output(const at::Tensor& loss);
  step_output(value any) : held_(std::move(any)) {}
  step_output(value_map map) : held_(std::move(map)) {}
  step_output(const std::map<std::string, at::Tensor>& map);
  /// @}

  /// The step returned nothing.
  bool empty() const { return held_.empty(); }
  /// What the step returned.
  const value& get() const { return held_; }
  /// Is there a loss: one tensor, or a map with a tensor `loss`.
  bool has_loss() const { return find_loss() != nullptr; }
  /// Throws user_error that says what the step returned and what it should.
  const at::Tensor& loss() const;
  /// The entry `backward_arguments` of a map, for the module's backward; empty: none.
  value backward_arguments() const;
  /// The entry `hiddens` of a map, for the step of the next part of the batch (module::hiddens).
  value hiddens() const;

private:
  const at::Tensor* find_loss() const;
  value entry(const char* key) const;

  value held_;
};

class accelerator;

/// Seeds of an augmentation. They depend on (seed, epoch, sample) only, so a sample is augmented
/// alike in any rank, batch and thread.
struct sample_keys {
  /// trainer_options::seed.
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;  ///< 0 in evaluation
  /// The seed of a generator for one sample. Different purposes draw independently.
  std::uint64_t of(std::int64_t sample, std::string_view purpose = {}) const {
    return stable_hasher{}.add(seed).add(epoch).add(sample).add(purpose).digest();
  }
};

/// Samples by index. Shared by all ranks of a process: const and thread-safe.
class dataset {
public:
  virtual ~dataset() = default;
  /// Samples; constant.
  virtual std::int64_t size() const = 0;
  /// One batch of these samples: any recursive value, its tensors stacked on dimension 0. Never
  /// called without indices.
  virtual value get(std::span<const std::int64_t> indices) const = 0;
  /// The same for training and for datasets that augment: what loaders call. Draw for the sample
  /// `indices[i]` from a generator seeded with `keys.of(indices[i])`. LibTorch's default generator
  /// is keyed by (seed, epoch, batch, rank) in here, which changes with the number of ranks.
  virtual value get_keyed(std::span<const std::int64_t> indices, const sample_keys& keys) const {
    (void)keys;
    return get(indices);
  }
};
/// Null where there is no such data.
using dataset_ptr = std::shared_ptr<const dataset>;

/// The order in which a training epoch visits samples, in place of the ledger's permutation. Shared
/// by all ranks: const and thread-safe. <troupe/data.hpp> has some.
class sampler {
public:
  virtual ~sampler() = default;
  /// Entries of an order: the same in each epoch.
  virtual std::int64_t size() const = 0;
  /// Indices of samples, `size()` of them. A pure function of its arguments: each rank computes the
  /// order anew, and again after a resume.
  virtual std::vector<std::int64_t> order(std::uint64_t seed, std::int64_t epoch) const = 0;
};
/// Null: the ledger's permutation.
using sampler_ptr = std::shared_ptr<const sampler>;

/// How one loader reads its dataset: what torch's DataLoader calls by these names.
struct data_loading {
  std::optional<std::int64_t> batch_size;  ///< of a rank; default: trainer_options::batch_size
  /// In training: visit samples in the epoch's order. False: from first to last, without an
  /// `order`. Evaluation always goes from first to last.
  bool shuffle = true;
  /// In training: an epoch has only micro-batches that are full on all ranks. The samples of the
  /// rest are left out: other ones in each epoch if `shuffle`. A fit without any batch is refused.
  bool drop_last = false;
  /// In training: the order, whatever `shuffle` says. Null: the ledger's permutation.
  sampler_ptr order;
  std::int32_t num_workers = 1;      ///< loader::options::num_workers
  std::int32_t prefetch = 2;         ///< loader::options::prefetch
  std::int32_t device_prefetch = 0;  ///< loader::options::device_prefetch
  /// Batches between two step marks of a device that collects operators (accelerator::mark_step).
  /// The last batch of a pass, and each read by the host, runs what was collected as well.
  std::int64_t batches_per_execution = 1;
};

/// Where a job's data comes from. One per job, shared by all ranks of a process. `prepare_data`
/// runs on one rank of each host before any `setup`, and on the first rank of a process that a job
/// takes after a loss; `setup` on each rank, possibly at the same time: implementations lock what
/// they load once. The checks before a job starts may call both once more. The dataset getters are
/// called after setup and may be called by several ranks at once.
class data_module {
public:
  virtual ~data_module() = default;
  /// Recorded in checkpoints: a fit that resumes one must have the same. Empty: not compared.
  virtual std::string name() const { return {}; }
  /// For downloads and the like, unless they are there. The other ranks wait for it. After a loss
  /// two new processes of a host may call it at the same time: write to a name of its own, then
  /// rename.
  virtual void prepare_data() {}
  /// Before the getters, on every rank; `purpose` is that of the job.
  virtual void setup(troupe::stage purpose) { (void)purpose; }
  /// Null: no such data.
  virtual dataset_ptr train() { return nullptr; }
  /// One per loader; empty: no such data.
  /// @{
  virtual std::vector<dataset_ptr> validation() { return {}; }
  virtual std::vector<dataset_ptr> test() { return {}; }
  virtual std::vector<dataset_ptr> predict() { return {}; }
  /// @}
  /// For each loader, by stage (the sanity check counts as validate) and number. The same on all
  /// ranks.
  virtual data_loading loading(troupe::stage purpose, std::int32_t dataloader) {
    (void)purpose, (void)dataloader;
    return {};
  }
  /// Around the move to the device; keep the type.
  /// @{
  virtual value on_before_batch_transfer(value batch, std::int32_t dataloader) {
    (void)dataloader;
    return batch;
  }
  virtual value on_after_batch_transfer(value batch, std::int32_t dataloader) {
    (void)dataloader;
    return batch;
  }
  /// @}
  /// JSON text that is saved with a checkpoint and passed back on load.
  virtual std::string state() const { return {}; }
  /// `json`: what state() returned when the checkpoint was taken, never empty. Called on every
  /// rank: in a fit that resumes, after its datasets were read; in an evaluation of a checkpoint
  /// whose data had the same name(), before.
  virtual void load_state(const std::string& json) { (void)json; }
};
/// Shared by all ranks of a process.
using data_ptr = std::shared_ptr<data_module>;

/// What one rank's loader is made with.
struct loader_options {
  /// Keys the order and the augmentation.
  std::uint64_t seed = 0;
  /// Visit samples in the epoch's order; false: from first to last.
  bool shuffle = false;
  data_layout layout;  ///< layout.size: entries of an epoch that are used
  /// Whose share of each micro-batch is read.
  std::int64_t rank = 0;
  /// Threads that assemble batches, each one batch at a time. 0: no thread, next() assembles.
  std::int32_t num_workers = 1;
  /// Batches ahead for each of these threads (torch's prefetch_factor). 0: as no thread.
  std::int32_t prefetch = 2;
  sampler_ptr order;  ///< with `shuffle`; null: the ledger's permutation of all samples
  /// Batches are made ready to be copied to its devices (accelerator::staged). Null: they are not.
  std::shared_ptr<const accelerator> staged_for = nullptr;
  /// Batches that a further thread copies to `device` ahead (accelerator::uploaded of
  /// `staged_for`). It takes them from those threads, so there are some. 0: batches stay on the
  /// host.
  std::int32_t device_prefetch = 0;
  std::optional<c10::Device> device = std::nullopt;  ///< for device_prefetch
  std::int64_t batches_per_execution = 1;            ///< data_loading::batches_per_execution
};

/// What a loader does for `how`. `ranks` and `batch_size` (of a rank; `how` may have its own) give
/// the layout. Throws user_error for what is impossible.
loader_options loader_options_of(const data_loading& how, stage purpose, const dataset& data,
                                 std::int64_t ranks, std::int64_t batch_size);

/// One rank's iteration over one dataset: micro-batches in the ledger's order (train: the epoch's
/// permutation; evaluation: 0 .. size-1). Threads of the loader assemble at most `num_workers` x
/// `prefetch` batches ahead, and another one copies at most `device_prefetch` of them to the
/// device. So at most the sum of both is under way, and one more batch that is being copied holds
/// memory of the host. Batches keep their order and have the same bytes with any number of threads.
/// An error of a thread takes the place of its batch: `next` returns the batches before it, throws
/// the error, and throws it again until the next pass. Not thread-safe; destruction ends the
/// threads.
///
/// strategy::process_dataloader may wrap a loader in one of its own, which overrides members, or
/// replace it: batches may come from anywhere, as long as `layout` says how many there are.
class loader {
public:
  /// Short for loader_options.
  using options = loader_options;
  /// Reads nothing yet. `data` is not null.
  loader(dataset_ptr data, options how);
  virtual ~loader();
  loader(const loader&) = delete;
  loader& operator=(const loader&) = delete;

  /// What it was made from. Of a wrapper: what the innermost loader was made from.
  const dataset_ptr& data() const;
  /// `layout` in it is that of an epoch that is not resumed.
  const options& settings() const;

  /// Epoch `epoch` is resumed: its micro-batch `batch` begins at entry `sample` of its order. Other
  /// epochs begin at their first entry. Before the first pass; 0 <= sample <= the dataset's size.
  virtual void resume(std::int64_t epoch, std::int64_t batch, std::int64_t sample);
  /// Micro-batches of epoch `epoch`, before any limit.
  std::int64_t batches(std::int64_t epoch = 0) const { return layout(epoch).batches(); }
  /// How epoch `epoch` is divided into micro-batches.
  virtual data_layout layout(std::int64_t epoch = 0) const;
  /// Starts a pass at micro-batch `first` of epoch `epoch`, up to but not including `last`. Drops
  /// batches that were prefetched for another pass.
  virtual void begin(std::int64_t epoch, std::int64_t first, std::int64_t last);
  /// The pass's next batch; empty value when this rank has no samples in it. Waits for the loader's
  /// threads.
  struct item {
    /// On the host, or with device_prefetch on the device; empty without samples.
    value batch;
    std::int64_t samples = 0;  ///< of this rank
    std::int64_t index = 0;    ///< micro-batch within the epoch
  };
  /// See item. Throws what the dataset throws, and internal_error at the end of the pass.
  virtual item next();

protected:
  /// A wrapper: members that it does not override are those of `inner`.
  explicit loader(std::unique_ptr<loader> inner);

private:
  struct state;
  std::unique_ptr<loader> inner_;  // or
  std::unique_ptr<state> state_;
};

/// The Debian package's data set: images float (N, 1, 28, 28) of pixel/255, labels int64 (N). Reads
/// IDX files, gzip or not, from `folder`; a missing or damaged file is a user_error that names the
/// file and how to fix it. validation() and test() are both the 10,000 test images.
data_ptr fashion_mnist(std::string folder = "/usr/share/datasets/fashion-mnist");

// Datasets and data modules from what a user has: tensors, a function, a dataset of torch::data, a
// stream, a file.

/// From samples to a batch. Shared by all ranks: thread-safe.
using collate_function = std::function<value(std::vector<value>)>;
/// What PyTorch's default_collate does: tensors are stacked, numbers become one tensor (float64,
/// int64, bool), tuples, lists and maps are collated item by item, texts become a list. Throws
/// user_error where samples differ in kind, length or shape.
value collate(std::vector<value> samples);

/// Tensors (N, ...) of one N, in memory. A sample is a tuple of one row of each.
dataset_ptr tensor_dataset(std::vector<at::Tensor> tensors);

/// `sample(i)` for 0 <= i < size. Called by several threads at once.
dataset_ptr function_dataset(std::int64_t size, std::function<value(std::int64_t)> sample,
                             collate_function how = collate);

/// Returns the next sample, or nothing after the last.
using sample_stream = std::function<std::optional<value>()>;
/// The first `size` samples of the stream `open(epoch)`, which gives the same samples each time.
/// Each rank, and each of its data_loading::num_workers, reads the stream for itself and drops the
/// samples of the others: with R ranks the stream is read R times at least. Going back opens it
/// again, so a training that reads it has data_loading::shuffle false. A stream that ends early is
/// a user_error. `open` is called by several threads at once.
dataset_ptr stream_dataset(std::int64_t size, std::function<sample_stream(std::int64_t epoch)> open,
                           collate_function how = collate);

/// `inner` with a transform of each sample, in which numbers and truth values are tensors without
/// dimensions, as in a batch. `key` depends on (seed, epoch, sample) only, and
/// random operators of LibTorch draw from it while the transform runs: a sample is augmented alike
/// in any rank, batch and thread. Thread-safe, as `inner`.
dataset_ptr transformed(dataset_ptr inner,
                        std::function<value(value sample, std::uint64_t key)> transform,
                        collate_function how = collate);

/// How many entries an epoch of a combined_dataset has, in the words of Lightning's
/// CombinedLoader. A pass of a member takes ceil(samples of its dataset / combined_member::samples)
/// entries.
enum class combined_mode {
  max_size_cycle,  ///< the longest pass; the other members begin anew, each time in another order
  min_size,        ///< the shortest pass; the others leave samples out, other ones in each epoch
  max_size,        ///< the longest pass; a member whose pass has ended is missing
  sequential,      ///< the passes one after the other: each entry is of one member
};
/// One of the datasets that combined_dataset reads together.
struct combined_member {
  std::string name;          ///< of its part of a batch; empty for all members: parts have numbers
  dataset_ptr data;          ///< with samples
  std::int64_t samples = 1;  ///< of `data` in each entry; the last entry of a pass may have fewer
};
/// Several datasets in one loader. An entry has samples of each member, and is what a loader counts
/// as a sample. A batch is a map (or a tuple, if members have no names) of the members' batches;
/// part_of returns one of them. A member of which a batch has no sample is an empty value in it.
///
/// In training with data_loading::shuffle each member is shuffled for itself, anew in each pass; so
/// each of its samples is used once in a pass. It has seeds of its own, made from the job's and its
/// number; sample_keys has them too. data_loading::order is refused. Thread-safe, as the members.
/// Throws user_error for members that do not fit.
/// @{
dataset_ptr combined_dataset(std::vector<combined_member> members,
                             combined_mode mode = combined_mode::max_size_cycle);
dataset_ptr combined_dataset(const std::vector<dataset_ptr>& members,
                             combined_mode mode = combined_mode::max_size_cycle);
/// @}
/// A member's part of a batch of combined_dataset: its own batch, with the number of its samples
/// (the rows of its first tensor); empty if there are none. Throws std::out_of_range that names the
/// parts there are.
/// @{
batch part_of(const batch& whole, std::string_view member);
batch part_of(const batch& whole, std::size_t member);
/// @}

namespace detail {

/// A call that several ranks make, one after the other.
using torch_fetch = std::function<value(const std::vector<std::size_t>&)>;
dataset_ptr locked_dataset(std::int64_t size, torch_fetch fetch);

template <class Example>
value value_of_example(Example& example) {
  if constexpr (requires { example.target; })
    return value_tuple{{boxed(example.data), boxed(example.target)}};
  else if constexpr (requires { example.data; })
    return boxed(example.data);
  else
    return value{example};
}

template <class Batch>
value value_of_batch(Batch batch, const collate_function& how) {
  if constexpr (requires { batch.begin(); }) {
    std::vector<value> samples;
    for (auto& one : batch) samples.push_back(value_of_example(one));
    return how(std::move(samples));
  } else {
    return value_of_example(batch);
  }
}

}  // namespace detail

/// A dataset of torch::data with a size, also one with transforms (`.map(...)`). An Example becomes
/// a tuple of data and target, or the data alone. Its get_batch is called by one thread at a time.
/// `how` applies unless the dataset makes whole batches itself (transforms::Stack).
template <class Data>
requires requires(Data& d) {
  d.size().value();
  typename Data::BatchType;
}
dataset_ptr torch_dataset(Data data, collate_function how = collate) {
  auto kept = std::make_shared<Data>(std::move(data));
  const auto size = static_cast<std::int64_t>(kept->size().value());
  return detail::locked_dataset(size, [kept, how](const std::vector<std::size_t>& indices) {
    return detail::value_of_batch(kept->get_batch(indices), how);
  });
}

/// Draws `entries` samples with replacement, sample i with a chance in proportion to weights[i].
/// Keyed by (seed, epoch). An epoch then has a sample several times or not at all. A loader refuses
/// it, and the next, for a dataset with another number of samples than `weights` or `lengths`.
sampler_ptr weighted_sampler(std::vector<double> weights, std::int64_t entries);
/// The ledger's permutation in windows of `window` entries, sorted by `lengths` within each: the
/// samples of a micro-batch have similar lengths. Each sample once per epoch. A window of several
/// micro-batches of all ranks is a good choice.
sampler_ptr bucketed_sampler(std::vector<std::int64_t> lengths, std::int64_t window);

/// The datasets of a job, and how they are read.
struct data_parts {
  std::string name;  ///< data_module::name
  /// Null: no such data.
  dataset_ptr train;
  /// One per loader; empty: no such data.
  /// @{
  std::vector<dataset_ptr> validation;
  std::vector<dataset_ptr> test;
  /// @}
  std::vector<dataset_ptr> predict;  ///< empty: those of `test`
  /// How `train` is read.
  data_loading train_loading;
  /// How all others are read.
  data_loading evaluation_loading;
};
/// A data module that gives these datasets to every rank.
data_ptr make_data(data_parts parts);

/// Numbers in a comma-separated file with a header: features float (N, columns - 1), targets int64
/// (N) if all are whole numbers from 0, else float (N, 1). `target` names its column; empty: the
/// last one. `path` is a file, which is the training data, or a folder with `train.csv` and perhaps
/// `validation.csv` and `test.csv`; one of the two stands for the other. Read when first used.
/// Columns are found by their names, as the training file or the evaluated checkpoint has them. A
/// file that does not fit is a user_error that names line and column.
data_ptr csv_data(std::string path, std::string target = {});
/// The same of safetensors files, `train.safetensors` and so on. Each has `inputs` (N, ...) and
/// `targets` (N, ...). Targets that are no floating-point numbers become int64.
data_ptr tensor_file_data(std::string path);
/// Characters of a text, or of all texts in a folder (files without extension, or .txt) in the
/// order of their names. Hidden files, whose names begin with a dot, are left out. A sample is a
/// window of 64 characters, int64 (N, 64): newline is 0, blank to tilde are 1 to 95. A tab is a
/// blank, one outside of ASCII "?", other control characters are left out. Its target has the
/// character after each. The last 16 of each 160 windows are for validation, test and prediction.
/// Read when first used. Throws user_error if there is no text.
data_ptr text_data(std::string path);

// Synthetic data for tests, benchmarks and first steps: of any shape, without files.

/// What the data looks like.
struct synthetic_options {
  std::int64_t samples = 2048;    ///< of training
  std::int64_t evaluation = 512;  ///< of validation(), test() and predict(), which are the same
  std::vector<std::int64_t> shape{1, 28, 28};  ///< of one sample
  /// At least 1.
  std::int64_t classes = 10;
  double spread =
      1.0;  ///< of a blob around its centre; centres lie about sqrt(2) apart per feature
  /// Other seeds give other data.
  std::uint64_t seed = 0;
};

/// One bell-shaped blob per class: features float (N, shape...), labels int64 (N), sample i of
/// class i mod classes. A pure function of the options, the same on every machine. Held in memory.
/// Throws user_error for impossible options.
data_ptr synthetic(synthetic_options options = {});

}  // namespace troupe
