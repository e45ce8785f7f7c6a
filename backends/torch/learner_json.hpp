// The parts of a learner's state that travel as JSON, in checkpoints and between ranks.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "troupe/detail/metric_accumulator.hpp"
#include "troupe/optimizers.hpp"
#include "troupe/value.hpp"

namespace troupe::learner_json {

using json = nlohmann::json;
using book_entries = std::map<std::string, metric_accumulator::entry>;

/// JSON has no infinities and no NaN: they are texts.
json number_to(double x);
double number_from(const json& x);
/// Without `touched`.
json book_to(const book_entries& book);
book_entries book_from(const json& all);
/// Positions: how often each scheduler was offered a step, and the metrics it was fed.
json schedulers_to(const std::vector<scheduler>& schedulers);
/// Throws user_error (checkpoint) if the number of schedulers differs.
void schedulers_from(std::vector<scheduler>& schedulers, const json& all);
json metrics_to(const metrics& numbers);
metrics metrics_from(const json& all);
/// Empty text is an empty object.
json parse_state(const std::string& text);
/// The module's hyper-parameters: bools, integers, numbers, texts, and lists of these.
json hyper_parameters_to(const value_map& all);
/// The hyper-parameters in a checkpoint's state; empty if it has none.
value_map hyper_parameters_of_state(const std::string& text);

}  // namespace troupe::learner_json
