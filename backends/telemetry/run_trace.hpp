// Writes what ranks do over time, as Perfetto and Chrome show it: `--trace`.
#pragma once

#include "backends/local/file_descriptor.hpp"
#include "troupe/observer.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// A file of trace events in JSON. Each rank is a process with its lane; a slice is a hook. The job
/// has its generations as slices, and its other lifecycle events as instants.
///
/// A hook's slice ends when the next hook of its rank begins, or when its generation has closed: it
/// includes the time until then. The hooks of an optimizer_step's closure lie inside its slice; the
/// last of them ends with it.
///
/// A collective that a lane called is a slice in the row `collectives` of its rank, or in a further
/// row where it overlaps with others. From the slice of the rank that called it last an arrow goes
/// to those of all others: this rank kept them waiting.
///
/// The file is whole JSON after every write, so also after a crash, which loses the last second at
/// most. Memory is bounded by one buffer. A file of `file_max` bytes gets no more hooks, and an
/// instant says so. Thread-safe. Never throws after construction: a full disk ends the trace.
class run_trace {
public:
  using clock = std::function<std::chrono::nanoseconds()>;
  /// Each such file begins so.
  static constexpr std::string_view head = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  static constexpr std::uint64_t default_file_max = std::uint64_t{1} << 30;

  /// Replaces the file. Throws user_error (bad_configuration) if it is no regular file or cannot be
  /// written.
  run_trace(std::string path, clock now, std::uint64_t file_max = default_file_max);
  ~run_trace();
  run_trace(const run_trace&) = delete;
  run_trace& operator=(const run_trace&) = delete;

  /// A rank's lane enters a hook.
  void enter(std::int32_t rank, const hook& what);
  void add(const seen::lifecycle& what);
  /// Arrows of at most `open_max` collectives wait for the other ranks' slices.
  void add(const seen::collective& what);
  static constexpr std::size_t open_max = 1024;
  /// Ends all slices and writes what is in the buffer.
  void finish();
  /// The error of the disk that ended the trace; empty: none so far.
  std::string trouble() const;

private:
  struct slice {
    std::string_view name, category;
    position at;
    std::chrono::nanoseconds since{0};
  };
  struct lane_state {
    bool known = false;
    std::optional<slice> outer, inner;  ///< an optimizer_step; any other hook, in it or alone
    std::uint32_t left = 0, closure = 0;
    std::string_view first;                      ///< of the closure
    std::vector<std::chrono::nanoseconds> rows;  ///< of collectives: where the last slice ends
  };
  struct called {
    std::int32_t rank = 0;
    std::size_t row = 0;
    std::chrono::nanoseconds began{0}, ended{0};
  };
  using collective_key = std::pair<std::uint64_t, std::uint64_t>;  ///< generation, number

  void end(std::int32_t rank, std::optional<slice>& open, std::chrono::nanoseconds now);
  void end_all(std::chrono::nanoseconds now);
  void know(std::int32_t rank);
  std::size_t row_of(std::int32_t rank, const seen::collective& what);
  void draw_arrows(const std::vector<called>& all);
  void name_process(std::int64_t process, const std::string& name, const char* thread);
  void add_text(std::string_view event);
  void flush(std::chrono::nanoseconds now);
  void write_out(std::string_view text);

  mutable std::mutex guard_;
  std::string path_;
  clock now_;
  std::uint64_t file_max_;
  file_descriptor file_;
  std::chrono::nanoseconds began_{0}, flushed_{0};
  std::uint64_t end_ = 0;  ///< of the events in the file; the tail comes after
  std::string buffer_;
  bool first_ = true, full_ = false, generation_open_ = false;
  std::map<std::int32_t, lane_state> lanes_;
  std::map<collective_key, std::vector<called>> open_;
  std::uint64_t arrows_ = 0;
  std::string trouble_;
};

/// Makes the observer that adds a job's lifecycle events to `trace`.
observer_factory lifecycle_of(std::shared_ptr<run_trace> trace);

}  // namespace troupe
