#include <fmt/format.h>

#include <sstream>

#include "apps/testing/case.hpp"
#include "apps/testing/chart.hpp"

namespace troupe::testing {

namespace {

std::string node_name(const run_report& report, std::int32_t p) {
  if (p < 0 || static_cast<std::size_t>(p) >= report.nodes.size()) return "the simulation";
  return report.nodes[static_cast<std::size_t>(p)];
}

// Lists faults that were applied at one moment, in order, then faults of a whole attempt with
// counts.
std::string faults_of(const run_report& report) {
  constexpr std::string_view mark = "fault: ";
  constexpr std::size_t most = 12;
  std::string out;
  std::size_t number = 0;
  for (const auto& n : report.notes) {
    if (!n.what.starts_with(mark) || ++number > most) continue;
    out += fmt::format("          {}) {} of {}, event {}, {:.3f} ms\n", number,
                       n.what.substr(mark.size()), node_name(report, n.to), n.event,
                       static_cast<double>(n.at) / 1e6);
  }
  if (number > most) out += fmt::format("          and {} more\n", number - most);
  std::string kinds;
  for (std::size_t f = 0; f < fault_kinds; ++f)
    if (report.faults[f] > 0)
      kinds += fmt::format(" {} x{}", to_string(static_cast<fault>(f)), report.faults[f]);
  return fmt::format("faults   {}\n{}", kinds.empty() ? " none" : kinds, out);
}

}  // namespace

std::string render(const run_report& report, std::string_view replay_line) {
  std::ostringstream out;
  for (const auto& v : report.violations) out << "violated  " << v << '\n';
  if (report.violations.empty())
    out << "violated  none; " << (report.finished ? "the job finished" : "the job did not end")
        << '\n';
  out << faults_of(report) << "run       seed " << report.seed << ", " << report.attempts
      << " attempts, " << report.events << " events, " << report.taken.size() << " choices, "
      << fmt::format("{:.3f} s of virtual time\n",
                     static_cast<double>(report.virtual_time.count()) / 1e9);
  if (const auto straggler_report = report.stragglers.text(); !straggler_report.empty())
    out << "speed     " << straggler_report << '\n';
  chart_options shown;
  // Events after the first violation explain nothing.
  if (!report.violations.empty()) shown.until = report.violations.front().event;
  if (!report.notes.empty())
    out << "chart     the last moments" << (report.violations.empty() ? "" : " before it") << '\n'
        << text_chart(report.notes, report.nodes, shown);
  if (!replay_line.empty()) out << "replay    " << replay_line << '\n';
  return out.str();
}

std::string render_unrepeated(const run_report& found, const run_report& replayed) {
  const bool repeated = replayed.violates(found.violations.front().oracle);
  return repeated && !found.violates(determinism_oracle) ? std::string{} : render(found);
}

}  // namespace troupe::testing
