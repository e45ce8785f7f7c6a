#include "troupe/detail/marks.hpp"

#include <string>

#include "troupe/failure.hpp"

namespace troupe::marks {

void broken(mark which) {
  if (watcher) watcher->broken(which);
  const auto& known = product_marks[static_cast<std::size_t>(which)];
  throw internal_error("this does not hold: " + std::string{known.text} + " (" +
                       std::string{known.name} + ")");
}

}  // namespace troupe::marks
