// Records the hooks of each rank: `--trace-hooks`.
#pragma once

#include "backends/telemetry/line_file.hpp"
#include "troupe/observer.hpp"

#include <mutex>
#include <string>
#include <string_view>

namespace troupe {

/// Each such line begins so.
inline constexpr std::string_view hooks_head = "{\"rank\":";
/// `{"rank":0,"stage":"train","hook":"on_train_batch_start","epoch":0,"step":0,"batch":0}` and a
/// line end; undefined numbers are null.
std::string trace_line(std::int32_t rank, const hook& what);

/// Writes one such line per call, at once, until the disk has no more room. Thread-safe. Lanes call
/// it at entry of every hook, so a rank's lines are in the order in which it handled the hooks.
class hook_trace {
public:
  /// Replaces the file. Throws user_error (bad_configuration) if it cannot be written.
  explicit hook_trace(std::string path);
  void operator()(std::int32_t rank, const hook& what);
  /// Why there are no more lines, with the path; empty: they are all there.
  std::string trouble() const;

private:
  mutable std::mutex mutex_;
  std::string trouble_;
  line_file file_;
};

}  // namespace troupe
