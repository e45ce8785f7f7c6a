#include "apps/testing/durability_tracker.hpp"

#include <charconv>
#include <string_view>
#include <type_traits>

namespace troupe::testing {

namespace {

constexpr std::string_view folder_word = "step-";

// Step of the checkpoint folder in a path, hidden or not; -1: the path names none.
std::int64_t step_in(std::string_view path) {
  const auto at = path.find(folder_word);
  std::int64_t step = -1;
  if (at == std::string_view::npos) return step;
  const auto digits = path.substr(at + folder_word.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return step;
}

bool hidden(std::string_view path) { return path.find("/.step-") != std::string_view::npos; }

// Whether the fault breaks the operation's promise without an error that the program can see.
template <class Operation>
constexpr bool damages(storage_fault::kind what) {
  using kind = storage_fault::kind;
  if constexpr (std::is_same_v<Operation, storage_ops::write>)
    return what == kind::lost_sync || what == kind::torn || what == kind::bit_flip;
  if constexpr (std::is_same_v<Operation, storage_ops::sync_folder> ||
                std::is_same_v<Operation, storage_ops::make_folder> ||
                std::is_same_v<Operation, storage_ops::rename>)
    return what == kind::lost_sync;
  return false;
}

}  // namespace

void durability_tracker::meets(const storage_op& op, const storage_fault& with) {
  std::int64_t step = none;
  if (const auto* x = std::get_if<storage_ops::make_folder>(&op)) {
    step = step_in(x->path);
    if (step >= 0) writing_ = step, broken_ = false;
  } else if (const auto* x = std::get_if<storage_ops::rename>(&op)) {
    step = step_in(x->to);
    if (hidden(x->to)) {
      durable_.erase(step_in(x->from));  // removed, or about to be
    } else {
      durable_.erase(durable_.upper_bound(step), durable_.end());  // of a branch that was given up
      if (!broken_) damaged_.erase(step);
    }
  } else if (const auto* x = std::get_if<storage_ops::write>(&op)) {
    step = step_in(x->path);
  } else if (const auto* x = std::get_if<storage_ops::sync_folder>(&op)) {
    step = step_in(x->path);
  }
  const bool damaged =
      std::visit([&](const auto& x) { return damages<std::decay_t<decltype(x)>>(with.what); }, op);
  if (damaged) damage(step >= 0 ? step : writing_);
}

// Before the program has written anything, the fault may affect everything on the disk.
void durability_tracker::damage(std::int64_t step) {
  if (step < 0) return durable_.clear();
  broken_ = broken_ || step == writing_;
  damaged_.insert(step);
  durable_.erase(step);
}

}  // namespace troupe::testing
