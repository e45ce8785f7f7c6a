#include "backends/telemetry/metrics_once.hpp"

#include <limits>

namespace troupe {

void metrics_once::on(const observation& what) {
  const auto* metrics = std::get_if<seen::metrics>(&what);
  if (!metrics) return inner_->on(what);
  auto fresh = *metrics;
  // Values of no batch, such as those of an epoch's end, come after those of the last batch.
  const auto batch =
      fresh.at.batch == undefined ? std::numeric_limits<std::int64_t>::max() : fresh.at.batch;
  const std::tuple here{fresh.at.epoch, fresh.at.step, batch};
  std::erase_if(fresh.logged, [&](const auto& one) {
    const auto [found, first] = last_.try_emplace(one.first, here);
    if (!first && here <= found->second) return true;
    found->second = here;
    return false;
  });
  if (!fresh.logged.empty()) inner_->on(fresh);
}

}  // namespace troupe
