// `troupe init`: writes a project of a user's own.
#pragma once

#include "apps/troupe/commands.hpp"

namespace troupe::program {

void add_init(const command& app, const context& around, const choose& chosen);

}  // namespace troupe::program
