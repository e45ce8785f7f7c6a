#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "apps/testing/case.hpp"

namespace troupe::testing {

std::string render(const run_report& report, std::size_t last_notes) {
  std::ostringstream out;
  for (const auto& v : report.violations) out << "violated  " << v << '\n';
  out << "faults   ";
  for (std::size_t f = 0; f < fault_kinds; ++f)
    if (report.faults[f] > 0)
      out << ' ' << to_string(static_cast<fault>(f)) << " x" << report.faults[f];
  out << "\nseed      " << report.seed << ", " << report.attempts << " attempts, " << report.events
      << " events, " << report.taken.size() << " choices\n";
  const auto name = [&](std::int32_t p) {
    return p < 0 || static_cast<std::size_t>(p) >= report.places.size()
               ? std::string{"world"}
               : fmt::format("{} #{}", report.places[static_cast<std::size_t>(p)], p);
  };
  // Up to the first violation: what came later explains nothing.
  const auto until = report.violations.empty() ? report.events : report.violations.front().event;
  auto end = std::ranges::find_if(report.notes, [&](const noted& n) { return n.event > until; });
  const auto there = static_cast<std::size_t>(end - report.notes.begin());
  auto at = end - static_cast<std::ptrdiff_t>(std::min(last_notes, there));
  for (; at != end; ++at)
    out << fmt::format("{:>8} {:>12.3f} ms  {} -> {}: {}\n", at->event,
                       static_cast<double>(at->at) / 1e6, name(at->from), name(at->to), at->what);
  return out.str();
}

}  // namespace troupe::testing
