#include "troupe/detail/coverage.hpp"

#include <string>

#include "troupe/failure.hpp"

namespace troupe::coverage {

void broken(coverage_point which) {
  if (sink) sink->broken(which);
  const auto& known = coverage_points[static_cast<std::size_t>(which)];
  throw internal_error("this does not hold: " + std::string{known.text} + " (" +
                       std::string{known.name} + ")");
}

}  // namespace troupe::coverage
