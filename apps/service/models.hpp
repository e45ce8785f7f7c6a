// What the service can train, as recipes. Only models.cpp includes headers of LibTorch.
#pragma once

#include "apps/service/job_spec.hpp"

namespace service {

/// A classifier of linear layers on the request's data. Throws troupe::user_error.
troupe::recipe_ptr recipe_of(const learning& what);

}  // namespace service
