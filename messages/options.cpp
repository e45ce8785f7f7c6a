#include "troupe/options.hpp"

#include "messages/control.hpp"

#include <algorithm>

namespace troupe {

std::int64_t apply_limit(const batch_limit& limit, std::int64_t batches) {
  if (const auto* count = std::get_if<std::int64_t>(&limit))
    return std::clamp<std::int64_t>(*count, 0, batches);
  const auto share = std::get<double>(limit);
  if (batches <= 0 || !(share > 0)) return 0;
  if (share >= 1.0) return batches;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(batches) * share));
}

std::string_view to_string(stop_reason r) {
  switch (r) {
    case stop_reason::none: return "none";
    case stop_reason::hook: return "hook";
    case stop_reason::early_stopping: return "early_stopping";
    case stop_reason::caller: return "caller";
    case stop_reason::interrupt: return "interrupt";
    case stop_reason::terminate: return "terminate";
  }
  return "unknown";
}

}  // namespace troupe
