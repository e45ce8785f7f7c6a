#include "troupe/detail/bucket_plan.hpp"

#include <algorithm>
#include <bit>

namespace troupe {

std::vector<std::vector<std::size_t>> cut_into_buckets(std::span<const std::size_t> order,
                                                       std::span<const bucket_item> items,
                                                       const bucket_caps& caps) {
  struct filling {
    std::vector<std::size_t> list;
    std::size_t bytes = 0;
    std::size_t last = 0;  // position of its last item in the order
    bool open = true;
  };
  std::vector<filling> buckets;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const auto& item = items[order[at]];
    const auto same = std::find_if(buckets.begin(), buckets.end(), [&](const filling& one) {
      const auto& first = items[one.list.front()];
      return one.open && first.kind == item.kind && first.optimizers == item.optimizers;
    });
    auto home = item.alone ? buckets.end() : same;
    if (home != buckets.end()) {
      const auto cap = home == buckets.begin() ? std::min(caps.first, caps.others) : caps.others;
      if (home->bytes + item.bytes > cap) {
        home->open = false;
        home = buckets.end();
      }
    }
    if (home == buckets.end()) {
      buckets.push_back({.open = !item.alone});
      home = std::prev(buckets.end());
    }
    home->list.push_back(order[at]);
    home->bytes += item.bytes;
    home->last = at;
  }
  std::sort(buckets.begin(), buckets.end(),
            [](const filling& a, const filling& b) { return a.last < b.last; });
  std::vector<std::vector<std::size_t>> lists;
  for (auto& one : buckets) lists.push_back(std::move(one.list));
  return lists;
}

bucket_caps tuned_caps(double latency_seconds, double bytes_per_second) {
  constexpr std::size_t mebibyte = std::size_t{1} << 20;
  constexpr std::size_t most = 25 * mebibyte;
  const double bytes = 16 * latency_seconds * bytes_per_second;
  // Written so that NaN gives the smallest cap.
  const auto wanted = bytes > mebibyte ? std::min(bytes, double{most}) : double{mebibyte};
  bucket_caps caps;
  caps.others = wanted >= most ? most : std::bit_floor(static_cast<std::size_t>(wanted));
  caps.first = std::max(caps.first, std::bit_floor(caps.others) / 8);
  return caps;
}

}  // namespace troupe
