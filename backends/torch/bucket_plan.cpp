#include "backends/torch/bucket_plan.hpp"

#include <algorithm>
#include <bit>

namespace troupe {

std::vector<std::vector<std::size_t>> cut_into_buckets(std::span<const std::size_t> order,
                                                       std::span<const bucket_item> items,
                                                       const bucket_caps& caps) {
  struct filling {
    std::size_t bucket;
    std::size_t bytes;
  };
  std::vector<std::vector<std::size_t>> buckets;
  std::vector<filling> open;  // one of each kind
  for (const auto index : order) {
    const auto& item = items[index];
    const auto same = std::find_if(open.begin(), open.end(), [&](const filling& one) {
      const auto& first = items[buckets[one.bucket].front()];
      return first.kind == item.kind && first.optimizers == item.optimizers;
    });
    if (same != open.end()) {
      const auto cap = same->bucket == 0 ? std::min(caps.first, caps.others) : caps.others;
      if (same->bytes + item.bytes <= cap) {
        buckets[same->bucket].push_back(index);
        same->bytes += item.bytes;
        continue;
      }
      open.erase(same);
    }
    open.push_back({buckets.size(), item.bytes});
    buckets.push_back({index});
  }
  return buckets;
}

bucket_caps tuned_caps(double latency_seconds, double bytes_per_second) {
  constexpr std::size_t mebibyte = std::size_t{1} << 20;
  constexpr std::size_t most = 25 * mebibyte;
  const double bytes = 16 * latency_seconds * bytes_per_second;
  // Written so that NaN counts as little.
  const auto wanted = bytes > mebibyte ? std::min(bytes, double{most}) : double{mebibyte};
  bucket_caps caps;
  caps.others = wanted >= most ? most : std::bit_floor(static_cast<std::size_t>(wanted));
  caps.first = std::max(caps.first, std::bit_floor(caps.others) / 8);
  return caps;
}

}  // namespace troupe
