// The recipe of a rank's process, as text.
#pragma once

#include "apps/troupe/catalog.hpp"

#include <string>

namespace troupe::program {

std::string recipe_text(const learning& what);
/// The same again. Throws internal_error for any other text.
learning read_recipe_text(const std::string& text);

}  // namespace troupe::program
