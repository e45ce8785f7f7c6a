#include "troupe/coverage.hpp"

#include <string>

#include "troupe/failure.hpp"

namespace troupe::coverage {

namespace {

user_coverage_sink* user_sink() { return dynamic_cast<user_coverage_sink*>(sink); }

}  // namespace

bool user_rare(const user_coverage& which) {
  auto* const to = user_sink();
  return to && to->rare(which);
}

void user_hit(const user_coverage& which) {
  if (auto* const to = user_sink()) to->hit(which);
}

void user_broken(const user_coverage& which) {
  if (auto* const to = user_sink()) to->broken(which);
  throw internal_error("this does not hold: " + std::string{which.text});
}

}  // namespace troupe::coverage
