// Shows a run's progress in a terminal.
#pragma once

#include "backends/telemetry/rank_figures.hpp"
#include "troupe/observer.hpp"
#include "troupe/options.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace troupe {

/// Shows epoch, batch, loss, what is logged with prog_bar, samples per second and the time left.
/// Live: a terminal line that is overwritten at most ten times a second. Its text begins with a
/// carriage return. Below it, a line per rank if a rank_monitor logs and the terminal is high
/// enough. Otherwise one new line every ten seconds. The caller passes time and output.
class progress_line : public observer {
public:
  struct style {
    /// The limits of a fit with these options.
    static style of(const trainer_options& options);
    bool live = false;
    /// How wide the terminal is now; the live line leaves out what has no room.
    std::function<std::size_t()> columns = [] { return std::size_t{80}; };
    /// How many lines it has now; 0: it is no terminal.
    std::function<std::size_t()> rows = [] { return std::size_t{0}; };
    std::int64_t epochs = 1;                ///< in total; -1: without a limit
    std::optional<std::int64_t> max_steps;  ///< in total
    /// Of training. What runs before a resume took of it is not known here.
    std::optional<std::chrono::nanoseconds> max_time;
    std::chrono::nanoseconds live_interval = std::chrono::milliseconds{100};
    std::chrono::nanoseconds line_interval = std::chrono::seconds{10};
  };
  using clock = std::function<std::chrono::nanoseconds()>;
  using writer = std::function<void(std::string_view)>;

  progress_line(style how, clock now, writer write);
  void on(const observation& what) override;
  void finish(std::uint64_t dropped) override;

private:
  struct mark {
    std::chrono::nanoseconds when{0};
    std::int64_t samples = 0;
    std::int64_t steps = 0;
    std::optional<double> epochs;  ///< done, with the part of the one that is trained
  };
  void progress(const seen::progress& what);
  static mark mark_of(const seen::progress& what, std::chrono::nanoseconds now);
  void track(const seen::progress& what, std::chrono::nanoseconds now);
  static double seconds_between(const mark& first, const mark& last);
  void measure();
  std::string text(const seen::progress& what) const;
  std::optional<double> seconds_left() const;
  void show(const std::string& line);

  style how_;
  clock now_;
  writer write_;
  std::optional<std::chrono::nanoseconds> shown_;  ///< when a line was last shown
  std::optional<mark> mark_;                       ///< where the rate was last measured
  std::optional<mark> first_;  ///< of training in this generation, for the time left
  std::optional<std::chrono::nanoseconds> began_;  ///< when training was first seen
  mark last_seen_;                                 ///< of training
  double samples_per_second_ = 0;
  metrics last_;
  rank_figures ranks_;
  std::set<std::string> chosen_;  ///< logged with prog_bar
  bool live_ = false;             ///< a live line is on the screen
};

}  // namespace troupe
