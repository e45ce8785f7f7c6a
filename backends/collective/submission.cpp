#include "backends/collective/submission.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace troupe::collectives {

void check_in_flight(std::string_view operation, std::uint64_t in_flight) {
  if (in_flight >= operations_max)
    throw user_error(
        errc::bad_usage,
        fmt::format("{}: {} operations in flight already, the most there may be: wait for some of "
                    "them first; if they are buckets of gradients, raise bucket_cap_mb",
                    operation, operations_max));
}

std::string generation_text(const group_description& who) {
  return fmt::format("generation {} of job {}", who.generation.value(), who.job.value());
}

void check_rank(const group_description& who) {
  if (who.world < 1 || who.rank < 0 || who.rank >= who.world)
    throw std::invalid_argument(fmt::format("{}: there is no rank {} in a world of {}",
                                            generation_text(who), who.rank, who.world));
}

std::string closed_in_flight(std::int32_t rank, std::string_view operation) {
  return fmt::format("rank {} closed its communicator while {} was in flight", rank, operation);
}

std::string closed_before(const collective_call& call, std::int32_t rank) {
  return fmt::format("{} cannot be met: rank {} has closed its communicator", describe(call), rank);
}

}  // namespace troupe::collectives
