// Goal: gradients are divided into buckets in the right order, within the size limits, and apart by
// dtype and optimizer.
#include "troupe/detail/bucket_plan.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

using buckets = std::vector<std::vector<std::size_t>>;

buckets cut(const std::vector<bucket_item>& items, const bucket_caps& caps) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return cut_into_buckets(order, items, caps);
}

TEST_CASE("a bucket takes the next gradients that fit and the first bucket is smaller") {
  const std::vector<bucket_item> items{{10}, {10}, {10}, {30}, {10}, {100}, {10}};
  CHECK(cut(items, {.first = 20, .others = 40}) == buckets{{0, 1}, {2, 3}, {4}, {5}, {6}});
  CHECK(cut(items, {.first = 100, .others = 10}) == buckets{{0}, {1}, {2}, {3}, {4}, {5}, {6}});
  CHECK(cut({}, {}).empty());
}

TEST_CASE("buckets follow the given order of parameters") {
  const std::vector<bucket_item> items{{10}, {10}, {10}};
  const std::vector<std::size_t> order{2, 0, 1};
  CHECK(cut_into_buckets(order, items, {.first = 10, .others = 20}) == buckets{{2}, {0, 1}});
  CHECK(cut_into_buckets(std::vector<std::size_t>{1}, items, {}) == buckets{{1}});
}

TEST_CASE("gradients of different dtypes or optimizers go into separate buckets") {
  const std::vector<bucket_item> items{{10, 0, 1}, {10, 1, 1}, {10, 0, 2}, {10, 0, 1}, {10, 1, 1}};
  CHECK(cut(items, {.first = 100, .others = 100}) == buckets{{2}, {0, 3}, {1, 4}});
}

TEST_CASE("a gradient that travels alone leaves when it is ready and delays no other bucket") {
  const bucket_item alone{50, 0, 1, true};
  const std::vector<bucket_item> items{{10}, alone, {10}, alone, {10}};
  CHECK(cut(items, {.first = 100, .others = 100}) == buckets{{1}, {3}, {0, 2, 4}});
  CHECK(cut(items, {.first = 20, .others = 20}) == buckets{{1}, {0, 2}, {3}, {4}});
  CHECK(cut({alone}, {}) == buckets{{0}});
}

TEST_CASE("bucket sizes grow with latency and bandwidth within bounds") {
  constexpr std::size_t mebibyte = std::size_t{1} << 20;
  const auto threads = tuned_caps(0.5e-6, 30e9);
  CHECK(threads == bucket_caps{.first = mebibyte / 4, .others = mebibyte});
  const auto oversubscribed = tuned_caps(20e-6, 15e9);
  CHECK(oversubscribed == bucket_caps{.first = mebibyte / 2, .others = 4 * mebibyte});
  CHECK(tuned_caps(1e-3, 10e9).others == 25 * mebibyte);
  CHECK(tuned_caps(1e-3, 10e9).first == 2 * mebibyte);
  const double odd[] = {0, -1, std::numeric_limits<double>::infinity(), std::nan("")};
  for (const auto latency : odd)
    for (const auto speed : odd) {
      const auto caps = tuned_caps(latency, speed);
      CHECK((caps.others == mebibyte || caps.others == 25 * mebibyte));
    }
}

}  // namespace
}  // namespace troupe::testing
