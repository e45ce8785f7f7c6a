#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <sstream>

namespace troupe::testing {

std::vector<program::model_facts> integer_catalog::models() const {
  return {{"mlp", "integers that add up"}, {"cnn", "the same"}};
}

std::vector<program::data_facts> integer_catalog::data_sets() const {
  return {{"fashion_mnist", "the numbers from 0", "/absent/data"}};
}

recipe_ptr integer_catalog::recipe(const program::learning&) const {
  auto options = options_;
  options.can_wait = true;
  return std::make_shared<integer_recipe>(options);
}

void integer_catalog::search_rate(const program::rate_search& how, program::learning&,
                                  trainer_options& options) const {
  options.max_steps = how.steps;
  options.checkpoint.enabled = false;
}

program::rate_curve integer_catalog::rates_found(const job_outcome& outcome) const {
  if (outcome.loop.steps < 3) return {{0.1}, {1.5}, {}};
  return {{0.1, 0.25, 0.5}, {1.5, NAN, 1}, 0.25};
}

std::int64_t integer_catalog::search_batch_size(
    const program::size_search& how, const std::function<job_outcome(std::int64_t)>& run) const {
  std::int64_t size = how.first;
  for (; size < how.max; size *= 2) run(size).rethrow();
  return size;
}

program::file_pieces integer_catalog::torch_checkpoint(const snapshot& what) const {
  return {what.model.at(0).bytes};
}

std::string integer_catalog::write(const program::writing& what) const {
  return what.prompt + std::to_string(what.characters);
}

std::vector<std::string> integer_catalog::predictions(const std::string&, const value&) const {
  return {};
}

said troupe_says(std::vector<std::string> arguments, std::map<std::string, std::string> variables,
                 integer_options options) {
  said all;
  std::mutex guard;
  const auto into = [&guard](std::string& text) {
    return [&guard, &text](std::string_view more) {
      const std::lock_guard lock{guard};
      text += more;
    };
  };
  program::console screen{into(all.out), into(all.err), {}};
  const integer_catalog learning{std::move(options)};
  cluster_facts cluster;
  cluster.variable = [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional{found->second};
  };
  std::erase_if(variables, [](const auto& one) { return !one.first.starts_with("TROUPE_"); });
  const program::context around{.screen = screen,
                                .learning = learning,
                                .world = [] { return local_ports(); },
                                .variables = std::move(variables),
                                .wall = [] { return std::chrono::system_clock::now(); },
                                .age = [] { return 1.0; },
                                .cluster = std::move(cluster)};
  const auto end = program::run_program(std::move(arguments), around);
  all.code = end.code;
  all.survivors = end.survivors;
  return all;
}

std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace troupe::testing
