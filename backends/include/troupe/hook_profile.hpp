// How long the hooks of a rank took (trainer_options::profiler).
//
//   const auto outcome = trainer.fit<classifier>(data);  // .profiler = profiler_kind::simple
//   std::cout << to_string(troupe::profile_of(outcome));
#pragma once

#include "troupe/outcome.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace troupe {

/// Times of hooks, by name. A regular value.
class hook_profile {
public:
  /// The calls of one hook.
  struct entry {
    std::int64_t calls = 0;  ///< how many
    /// The time in the rank's lane. Hooks that ran within this one are not part of it: those of an
    /// optimizer_step's closure have entries of their own.
    std::chrono::nanoseconds took{0};
    std::chrono::nanoseconds waited{0};  ///< the part of `took` in collectives of training
    friend bool operator==(const entry&, const entry&) = default;
  };

  /// Counts one call.
  void add(std::string_view hook, std::chrono::nanoseconds took, std::chrono::nanoseconds waited);
  /// By the name of the hook.
  const std::map<std::string, entry, std::less<>>& entries() const { return entries_; }

  /// For job_outcome::queue, and back; an entry that is none of a profile is left out.
  /// @{
  value as_value() const;
  static hook_profile from(const value& what);
  /// @}
  friend bool operator==(const hook_profile&, const hook_profile&) = default;

private:
  std::map<std::string, entry, std::less<>> entries_;
};

/// Rank 0's, from the start of the job until its hook post_dispatch. Empty for a job that was not
/// measured, or that failed.
hook_profile profile_of(const job_outcome& outcome);
/// A table, the hooks that took longest first; each line has its end. Empty for an empty profile.
std::string to_string(const hook_profile& profile);

}  // namespace troupe
