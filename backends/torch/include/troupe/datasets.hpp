// Datasets and data modules from what a user has: tensors, a function, a dataset of torch::data, a
// stream, a file.
#pragma once

#include "troupe/data.hpp"
#include "troupe/detail/tensor.hpp"

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

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
/// Each rank reads the stream for itself, and drops the samples of the others: with R ranks the
/// stream is read R times. Going back opens it again, so a training that reads it has
/// data_loading::shuffle false. A stream that ends early is a user_error. `open` is called by
/// several threads at once.
dataset_ptr stream_dataset(std::int64_t size, std::function<sample_stream(std::int64_t epoch)> open,
                           collate_function how = collate);

/// `inner` with a transform of each sample. `key` depends on (seed, epoch, sample) only, and
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
/// Keyed by (seed, epoch). An epoch then has a sample several times or not at all.
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
/// `validation.csv` and `test.csv`; one of the two stands for the other. Read when first used. A
/// file that does not fit is a user_error that names line and column.
data_ptr csv_data(std::string path, std::string target = {});
/// The same of safetensors files, `train.safetensors` and so on. Each has `inputs` (N, ...) and
/// `targets` (N, ...), of any type.
data_ptr tensor_file_data(std::string path);
/// Characters of a text, or of all texts in a folder (files without extension, or .txt) in the
/// order of their names. A sample is a window of 64 characters, int64 (N, 64): the newline is 0,
/// the printable characters of ASCII from blank to tilde are 1 to 95, others are "?". Its target,
/// of the same shape, has the character after each. The last 16 of each 160 windows are for
/// validation, test and prediction. Read when first used. Throws user_error if there is no text.
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
