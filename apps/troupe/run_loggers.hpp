// The loggers of a run that the setting `logger` names.
#pragma once

#include "apps/troupe/settings.hpp"
#include "apps/troupe/trouble_report.hpp"
#include "backends/telemetry/event_log.hpp"
#include "troupe/detail/position.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

/// Figures that the program itself has asked for. They are for its displays and for figures_file.
struct hidden_figures {
  bool of_ranks = false;  ///< those of rank_monitor, for the display
  bool of_run = false;    ///< those of report_monitor, for reports
  bool hides(std::string_view metric) const;
};

/// The job whose metrics are logged.
struct logged_job {
  std::string folder;                   ///< the run's
  bool restarts = false;                ///< steps may be done again: each value is logged once
  std::int64_t resumed_at = undefined;  ///< where a resumed fit goes on
  hidden_figures hidden = {};           ///< what the loggers leave out
  bool is_test = false;                 ///< the test after a fit, which the fit has logged about
};

/// One factory per logger, and one for figures_file. Each is wrapped by `report`, which must
/// outlive the observers.
std::vector<observer_factory> loggers_of(const settings& s, const logged_job& about,
                                         const trouble_report& report, const wall_clock& wall);

}  // namespace troupe::program
