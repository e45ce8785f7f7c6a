// The ready callbacks that the program offers, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "troupe/callback.hpp"

namespace troupe {

struct callback_entry {
  std::string_view name;
  std::string_view summary;
  std::vector<std::string_view> options;  ///< keys that a text may give
};
const std::vector<callback_entry>& callback_catalog();

/// A callback from a text: a name, then options: `ema`, `ema,decay=0.99,every_n_steps=10`. Throws
/// user_error (bad_configuration) that lists the names or the options there are, or names a value
/// that is impossible.
callback_factory named_callback(std::string_view text);

}  // namespace troupe
