// How jobs stand, in Prometheus' text format.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

struct labelled_status {
  std::string labels;             ///< of each sample, as `job="x"`; empty: none
  nlohmann::ordered_json status;  ///< as to_json(job_status) has it
};

/// Names and units: docs/watching.md. What is not known yet is left out.
std::string prometheus_text(const std::vector<labelled_status>& all);

/// The two lines before a family's samples.
std::string prometheus_head(std::string_view name, std::string_view type, std::string_view help);
/// A label's value, quoted.
std::string prometheus_label(std::string_view text);

}  // namespace troupe::program
