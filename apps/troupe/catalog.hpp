// The models, data sets and devices of the program, as an interface without LibTorch. main passes
// the real catalog (torch_catalog.cpp); tests of the program pass one of integers.
#pragma once

#include "apps/troupe/schema.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/learner.hpp"
#include "troupe/outcome.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::testing {
class payload;
}

namespace troupe::program {

struct model_facts {
  std::string name;
  std::string summary;
  bool own = false;   ///< a user's, and not built in
  schema settings{};  ///< a user's: keys without their table
};

struct data_facts {
  std::string name;
  std::string summary;
  std::string folder;  ///< where it is looked for by default
  bool own = false;    ///< a user's, and not built in
  schema settings{};   ///< a user's: keys without their table
};

struct device_facts {
  std::string name;  ///< `cpu`, `cuda:0`
  bool available = false;
  std::string about;  ///< what it is, or why not
  bool built = true;  ///< this build can use it, on a host that has it
};

/// The model of `troupe bench recovery`; not for users, so `models` does not list it.
inline constexpr const char* recovery_model = "recovery";

/// Values of a user's own settings, by their keys without the table. Those that are not set are
/// left out.
using own_values = std::map<std::string, setting_value>;

/// What a user chose to train. Values are those of the settings of the same names. A user's model
/// has `model_settings` and none of `hidden`, `dropout` and the optimizer's; a user's data set has
/// `data_settings` in place of the other settings of data.
struct learning {
  std::string model;
  std::vector<std::int64_t> hidden;
  double dropout = 0;
  std::string data;
  std::string data_folder;              ///< empty: the data set's own
  std::string target;                   ///< csv: the column; empty: the last one
  std::int64_t samples = 0;             ///< synthetic data: samples for training
  std::int64_t evaluation_samples = 0;  ///< the same for each of validation, test, prediction
  std::string optimizer;
  double learning_rate = 0;
  double momentum = 0;
  double weight_decay = 0;
  std::string scheduler = "none";
  std::int64_t warmup_epochs = 0;
  std::int64_t epochs = 0;             ///< of the run
  std::vector<std::string> callbacks;  ///< `NAME[,KEY=VALUE...]`, in their order
  own_values model_settings;
  own_values data_settings;
  /// Sizes of a built-in model that was trained on files; 0: those of the data.
  std::int64_t features = 0;
  std::int64_t classes = 0;
  /// A search of `tune`: of the callbacks of a program's plug-ins only schedules of accumulation
  /// take part.
  bool searches = false;
};

/// What a trained model is to write.
struct writing {
  std::string checkpoint;  ///< or the folder of a run, for its latest one
  std::string prompt;      ///< what the text goes on from
  std::int64_t characters = 400;
  double temperature = 0.8;  ///< below 1: more of what is likely; 0: always the likeliest
  std::uint64_t seed = 0;
};

/// How a fit raises the learning rate: troupe::learning_rate_range_options.
struct rate_search {
  double min = 1e-8;
  double max = 1;
  std::int64_t steps = 100;
  bool linear = false;  ///< else each rate is the one before times a constant
  double stop_at = 4;   ///< times the least loss; 0: never
};
/// What it found: troupe::learning_rate_curve.
struct rate_curve {
  std::vector<double> rates;
  std::vector<double> losses;  ///< as many; NaN: none
  std::optional<double> suggestion;
};

/// How a batch size is searched: troupe::batch_size_search.
struct size_search {
  bool bisects = false;
  std::int64_t first = 2;
  std::int64_t max = 8192;
  std::int64_t trials = 25;
  double margin = 0.05;
};

/// What a file is made of, one piece after the other.
using file_pieces = std::vector<std::shared_ptr<const std::vector<std::byte>>>;

/// Const and thread-safe. Throws user_error naming the fix.
class catalog {
public:
  virtual ~catalog() = default;

  virtual std::vector<model_facts> models() const = 0;
  /// The number of parameters of a model with default settings. Slow: it creates the model.
  virtual std::int64_t parameters(const std::string& model) const = 0;
  /// A line per layer, then the sums. As slow as `parameters`.
  virtual std::string layers(const std::string& model) const = 0;
  virtual std::vector<data_facts> data_sets() const = 0;
  /// What each rank trains or evaluates. Reads no data: what is wrong with that fails the job.
  virtual recipe_ptr recipe(const learning& what) const = 0;
  /// What its callbacks make of the options of a job: learner_recipe::configure of that recipe.
  /// Makes no data.
  virtual void configure(const learning& what, trainer_options& options) const = 0;
  /// A program's own format of checkpoints; null: it has none.
  virtual std::shared_ptr<const checkpoint_io> checkpoints() const { return nullptr; }
  /// Gives `of` the sizes with which the model of a checkpoint was made, if it holds them. Throws
  /// user_error (checkpoint).
  virtual void take_sizes(const std::string& checkpoint, learning& of) const = 0;
  /// Whether a fit of it ends with a test: a user's data are set up for one, with random numbers of
  /// `seed`. True if they throw: then the ranks of that test do, and it fails.
  virtual bool has_test(const learning& what, std::uint64_t seed) const = 0;

  /// Makes `of` a fit with `options` that raises the learning rate, and `options` those of a short
  /// one. Throws user_error (bad_configuration) for an impossible search.
  virtual void search_rate(const rate_search& how, learning& of,
                           trainer_options& options) const = 0;
  /// What such a fit found; it did not fail.
  virtual rate_curve rates_found(const job_outcome& outcome) const = 0;
  /// The largest size with which `run` did not run out of memory. Throws user_error (job_failed) if
  /// there is none, and the error of a job that failed otherwise.
  virtual std::int64_t search_batch_size(
      const size_search& how,
      const std::function<job_outcome(std::int64_t batch_size)>& run) const = 0;

  /// What `simulate --payload tensors` trains (apps/testing/payload.hpp); null: nothing.
  virtual std::shared_ptr<testing::payload> tensors() const { return nullptr; }

  /// A checkpoint as torch.load(FILE, weights_only=True) reads it, in pieces.
  virtual file_pieces torch_checkpoint(const snapshot& what) const = 0;
  /// The prompt and what the model makes of it, the same for equal arguments.
  virtual std::string write(const writing& what) const = 0;
  /// One line of JSON per prediction of the result of a predict run of that model.
  virtual std::vector<std::string> predictions(const std::string& model,
                                               const value& result) const = 0;

  /// Libraries by name, for doctor and manifests.
  virtual std::map<std::string, std::string> versions() const = 0;
  virtual std::vector<device_facts> devices() const = 0;
  /// Names that jobs may choose by, with those of a user's plug-ins.
  /// @{
  virtual std::vector<std::string> strategies() const { return {}; }
  virtual std::vector<std::string> precisions() const { return {}; }
  /// @}
  /// Float32 operations per second of one thread in a matrix product, in thousands of millions;
  /// takes about 0.1 s.
  virtual double matrix_speed() const = 0;
};

}  // namespace troupe::program
