#include "backends/learner/host_devices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "troupe/failure.hpp"
#include "troupe/learner.hpp"

namespace troupe {

void check_host_devices(const device_choice& which) {
  const bool one = which.count.value_or(1) == 1 &&
                   (which.indices.empty() || which.indices == std::vector<std::int32_t>{0});
  if (one) return;
  const auto text = which.count ? fmt::format("{}", *which.count)
                                : fmt::format("[{}]", fmt::join(which.indices, ", "));
  throw user_error(errc::device,
                   fmt::format("devices = {}: the cpu is one device, 0, which all ranks share; "
                               "use --devices auto, and --ranks for more ranks",
                               text));
}

void learner_recipe::settle_devices(trainer_options& options, std::int32_t) const {
  const auto& wanted = options.accelerator.name;
  const auto host = to_string(accelerator_kind::cpu);
  if (wanted != to_string(accelerator_kind::automatic) && wanted != host)
    throw user_error(errc::device, fmt::format("accelerator = \"{}\": this job computes on the {} "
                                               "only; use --accelerator {}",
                                               wanted, host, host));
  check_host_devices(options.devices);
  options.accelerator = accelerator_kind::cpu;
}

}  // namespace troupe
