#include "troupe/data.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

constexpr std::int64_t most_features_in_all = std::int64_t{1} << 31;

/// Mean 0, variance 1: the sum of four uniform numbers from one draw. It uses no mathematical
/// functions, because their last bits differ between machines.
float bell(std::uint64_t bits) {
  std::int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<std::int64_t>((bits >> (16 * i)) & 0xffff);
  constexpr float mean = 4 * 65535 / 2.0f;
  constexpr float deviation = 37837.23f;  // 65536 * sqrt(4 / 12)
  return (static_cast<float>(sum) - mean) / deviation;
}

std::int64_t features_of(const std::vector<std::int64_t>& shape) {
  std::int64_t features = 1;
  for (const auto extent : shape)
    if (extent < 1 || __builtin_mul_overflow(features, extent, &features)) return 0;
  return features;
}

class blobs : public dataset {
public:
  blobs(const synthetic_options& options, std::int64_t size, std::uint64_t stream)
      : size_(size), classes_(options.classes), shape_(options.shape) {
    const auto features = features_of(shape_);
    features_.resize(static_cast<std::size_t>(size * features));
    const auto centres = mix(options.seed);
    const auto noise = mix(centres + stream);
    const auto spread = static_cast<float>(options.spread);
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t j = 0; j < features; ++j) {
        const auto centre = static_cast<std::uint64_t>((i % classes_) * features + j);
        const auto at = static_cast<std::uint64_t>(i * features + j);
        features_[at] = bell(mix(centres ^ mix(centre))) + spread * bell(mix(noise ^ mix(at)));
      }
  }

  std::int64_t size() const override { return size_; }

  value get(std::span<const std::int64_t> indices) const override {
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(indices.size())};
    shape.insert(shape.end(), shape_.begin(), shape_.end());
    auto features = at::empty(shape, at::kFloat);
    auto labels = at::empty({shape[0]}, at::kLong);
    const auto each = features_of(shape_);
    auto* feature = features.mutable_data_ptr<float>();
    auto* label = labels.mutable_data_ptr<std::int64_t>();
    for (const auto index : indices) {
      if (index < 0 || index >= size_) throw internal_error("a sample index is out of range");
      feature = std::copy_n(features_.data() + index * each, each, feature);
      *label++ = index % classes_;
    }
    return value_tuple{{boxed(std::move(features)), boxed(std::move(labels))}};
  }

private:
  std::int64_t size_, classes_;
  std::vector<std::int64_t> shape_;
  std::vector<float> features_;
};

class synthetic_data : public data_module {
public:
  explicit synthetic_data(const synthetic_options& options)
      : train_(std::make_shared<blobs>(options, options.samples, 1)),
        evaluation_(std::make_shared<blobs>(options, options.evaluation, 2)) {}

  std::string name() const override { return "synthetic"; }
  dataset_ptr train() override { return train_; }
  std::vector<dataset_ptr> validation() override { return {evaluation_}; }
  std::vector<dataset_ptr> test() override { return {evaluation_}; }
  std::vector<dataset_ptr> predict() override { return {evaluation_}; }

private:
  dataset_ptr train_, evaluation_;
};

void check(const synthetic_options& options) {
  const auto refuse = [](std::string what) {
    throw user_error(errc::bad_configuration, "synthetic data: " + std::move(what));
  };
  if (options.samples < 0 || options.evaluation < 0) refuse("a number of samples is negative");
  if (options.classes < 1)
    refuse(fmt::format("classes is {}; it must be 1 or more", options.classes));
  const auto features = features_of(options.shape);
  if (features == 0) refuse("every extent of shape must be 1 or more");
  std::int64_t all = 0;
  if (__builtin_mul_overflow(std::max(options.samples, options.evaluation), features, &all) ||
      all > most_features_in_all)
    refuse("more than 2^31 numbers; take fewer samples or a smaller shape");
}

}  // namespace

data_ptr synthetic(synthetic_options options) {
  check(options);
  return std::make_shared<synthetic_data>(options);
}

}  // namespace troupe
