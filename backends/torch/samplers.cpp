#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "backends/torch/sampler_check.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

class weighted_order final : public sampler {
public:
  weighted_order(const std::vector<double>& weights, std::int64_t entries) : entries_(entries) {
    double sum = 0;
    for (const auto weight : weights) {
      if (!(weight >= 0) || !std::isfinite(weight))
        throw user_error(errc::job_failed,
                         "weighted_sampler: weights must be 0 or more and finite");
      upto_.push_back(sum += weight);
    }
    if (!(sum > 0) || !std::isfinite(sum) || entries < 1)
      throw user_error(errc::job_failed,
                       "weighted_sampler: give a weight above 0, and 1 entry or more");
  }
  std::int64_t size() const override { return entries_; }
  std::size_t weights() const { return upto_.size(); }
  std::vector<std::int64_t> order(std::uint64_t seed, std::int64_t epoch) const override {
    const auto key = stable_hasher{}.add(seed).add(epoch).add("weighted_sampler").digest();
    std::vector<std::int64_t> drawn;
    for (std::int64_t i = 0; i < entries_; ++i) {
      const auto bits = mix(key + static_cast<std::uint64_t>(i)) >> 11;
      const auto share = static_cast<double>(bits) * 0x1p-53;  // below 1
      const auto found = std::ranges::upper_bound(upto_, share * upto_.back());
      drawn.push_back(std::min(found, last_positive()) - upto_.begin());
    }
    return drawn;
  }

private:
  // Rounding may make share * sum the sum itself.
  std::vector<double>::const_iterator last_positive() const {
    return std::ranges::lower_bound(upto_, upto_.back());
  }

  std::vector<double> upto_;  // sums of the weights up to each sample
  std::int64_t entries_;
};

class bucketed_order final : public sampler {
public:
  bucketed_order(std::vector<std::int64_t> lengths, std::int64_t window)
      : lengths_(std::move(lengths)), window_(window) {
    if (window < 1)
      throw user_error(errc::job_failed, "bucketed_sampler: window must be 1 or more");
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::vector<std::int64_t> order(std::uint64_t seed, std::int64_t epoch) const override {
    auto all = permutation(seed, epoch, size());
    for (auto first = all.begin(); first != all.end();) {
      const auto last = first + std::min<std::int64_t>(window_, all.end() - first);
      std::ranges::stable_sort(first, last, {}, [this](std::int64_t i) { return lengths_[i]; });
      first = last;
    }
    return all;
  }

private:
  std::vector<std::int64_t> lengths_;
  std::int64_t window_;
};

}  // namespace

void check_sampler(const sampler& order, std::int64_t samples) {
  const auto refuse_unless = [samples](std::string_view name, std::string_view what,
                                       std::int64_t given) {
    if (given == samples) return;
    throw user_error(errc::bad_configuration,
                     fmt::format("{} was given {} {}, and the dataset has {} samples: give one for "
                                 "each sample",
                                 name, given, what, samples));
  };
  if (const auto* one = dynamic_cast<const weighted_order*>(&order))
    refuse_unless("weighted_sampler", "weights", static_cast<std::int64_t>(one->weights()));
  if (const auto* one = dynamic_cast<const bucketed_order*>(&order))
    refuse_unless("bucketed_sampler", "lengths", one->size());
}

sampler_ptr weighted_sampler(std::vector<double> weights, std::int64_t entries) {
  return std::make_shared<weighted_order>(weights, entries);
}
sampler_ptr bucketed_sampler(std::vector<std::int64_t> lengths, std::int64_t window) {
  return std::make_shared<bucketed_order>(std::move(lengths), window);
}

}  // namespace troupe
