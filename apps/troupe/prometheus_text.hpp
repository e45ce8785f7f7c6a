// How a job stands, in Prometheus' text format.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace troupe::program {

/// `status` is what live_status says, `run` the run's folder. Names and units: docs/watching.md.
/// What is not known yet is left out.
std::string prometheus_text(const nlohmann::ordered_json& status, const std::string& run);

}  // namespace troupe::program
