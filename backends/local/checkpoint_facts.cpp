#include "backends/checkpoint_facts.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include "troupe/failure.hpp"

namespace troupe {

std::optional<checkpoint_facts> facts_at(const checkpoint_io& io, const std::string& folder) {
  std::ifstream file{std::filesystem::path{folder} / io.commit_file(), std::ios::binary};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  if (text.empty()) return std::nullopt;
  try {
    return io.facts(std::as_bytes(std::span{text}), folder);
  } catch (const user_error&) {
    return std::nullopt;
  }
}

}  // namespace troupe
