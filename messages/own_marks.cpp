#include "troupe/own_marks.hpp"

#include <string>

#include "troupe/failure.hpp"

namespace troupe::marks {

namespace {

own_marks_watcher* own_watcher() { return dynamic_cast<own_marks_watcher*>(watcher); }

}  // namespace

bool own_rare(const own_mark& which) {
  auto* const to = own_watcher();
  return to && to->rare(which);
}

void own_hit(const own_mark& which) {
  if (auto* const to = own_watcher()) to->hit(which);
}

void own_broken(const own_mark& which) {
  if (auto* const to = own_watcher()) to->broken(which);
  throw internal_error("this does not hold: " + std::string{which.text});
}

}  // namespace troupe::marks
