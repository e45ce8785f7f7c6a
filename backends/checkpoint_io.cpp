#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "backends/checkpoint_facts.hpp"
#include "troupe/failure.hpp"

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

namespace {

[[noreturn]] void refuse_files(const std::string& why) {
  throw user_error(errc::checkpoint, "encode() of the checkpoint format returned " + why);
}

bool is_entry(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::vector<checkpoint_file> files_of(const checkpoint_io& io, const snapshot& what) {
  auto files = io.encode(what);
  if (files.empty()) refuse_files("no file: return at least the commit file");
  std::set<std::string_view> names;
  for (const auto& file : files) {
    if (!is_entry(file.name))
      refuse_files(fmt::format("a file named \"{}\": a name is not empty, and has no folder in it",
                               file.name));
    if (!names.insert(file.name).second)
      refuse_files(fmt::format("two files named \"{}\"", file.name));
    if (std::any_of(file.chunks.begin(), file.chunks.end(), [](const auto& x) { return !x; }))
      refuse_files(
          fmt::format("the file \"{}\" with a chunk that is null: leave it out", file.name));
  }
  if (files.back().name != io.commit_file())
    refuse_files(
        fmt::format("\"{}\" as the last file, and its commit_file() is \"{}\": make them equal",
                    files.back().name, io.commit_file()));
  return files;
}

}  // namespace troupe
