#include "troupe/checkpoint.hpp"

#include <algorithm>
#include <string_view>

namespace troupe {

std::string checkpoint_folder_name(std::int64_t step) {
  const auto number = std::to_string(step);
  constexpr std::size_t digits = 8;
  return "step-" + std::string(digits - std::min(digits, number.size()), '0') + number;
}

std::int64_t step_of_checkpoint_folder(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix) || name.size() < prefix.size() + 8 || name.size() > 24) return -1;
  std::int64_t step = 0;
  for (const char c : std::string_view{name}.substr(prefix.size())) {
    if (c < '0' || c > '9' || __builtin_mul_overflow(step, 10, &step) ||
        __builtin_add_overflow(step, c - '0', &step))
      return -1;
  }
  return name == checkpoint_folder_name(step) ? step : -1;
}

}  // namespace troupe
