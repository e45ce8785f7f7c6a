// Names in texts that are written for another name.
#pragma once

#include <string>
#include <string_view>

namespace troupe::program {

/// `text` with each `from` replaced by `to`, from left to right.
inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace troupe::program
