#include "backends/torch/learner_json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "troupe/failure.hpp"

namespace troupe::learner_json {

// JSON has no infinities and no NaN.
json number_to(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}

double number_from(const json& x) {
  if (x.is_number()) return x.get<double>();
  const auto text = x.get<std::string>();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

json book_to(const book_entries& book) {
  auto all = json::object();
  for (const auto& [name, e] : book)
    all[name] = {static_cast<int>(e.how), number_to(e.sum), number_to(e.count), number_to(e.least),
                 number_to(e.most)};
  return all;
}

book_entries book_from(const json& all) {
  book_entries book;
  for (const auto& [name, e] : all.items())
    book[name] = {.how = static_cast<log_reduction>(e.at(0).get<int>()),
                  .sum = number_from(e.at(1)),
                  .count = number_from(e.at(2)),
                  .least = number_from(e.at(3)),
                  .most = number_from(e.at(4))};
  return book;
}

json schedulers_to(const std::vector<scheduler>& schedulers) {
  auto all = json::array();
  for (const auto& one : schedulers) {
    auto fed = json::array();
    for (const double metric : one.metrics_fed()) fed.push_back(number_to(metric));
    all.push_back({{"offered", one.offered()}, {"fed", fed}});
  }
  return all;
}

void schedulers_from(std::vector<scheduler>& schedulers, const json& all) {
  if (schedulers.size() != all.size())
    throw user_error(errc::checkpoint,
                     fmt::format("the checkpoint has {} schedulers for an optimizer that now has "
                                 "{}: configure_optimizers must return what it did",
                                 all.size(), schedulers.size()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<double> fed;
    for (const auto& metric : all[i].at("fed")) fed.push_back(number_from(metric));
    schedulers[i].replay(all[i].at("offered").get<std::int64_t>(), fed);
  }
}

namespace {

json parameter_to(const value& one) {
  if (const auto* x = one.get_if<bool>()) return *x;
  if (const auto* x = one.get_if<std::int64_t>()) return *x;
  if (const auto* x = one.get_if<double>()) return number_to(*x);
  if (const auto* x = one.get_if<std::string>()) return *x;
  const auto* list = one.get_if<value_list>();
  if (!list)
    throw user_error(errc::checkpoint,
                     fmt::format("save_hyperparameters: {} is none of a bool, a number, a text and "
                                 "a list of these",
                                 to_string(one)));
  auto all = json::array();
  for (const auto& item : list->items) all.push_back(parameter_to(item));
  return all;
}

value parameter_from(const json& one) {
  if (one.is_boolean()) return one.get<bool>();
  if (one.is_number_integer()) return one.get<std::int64_t>();
  if (one.is_number()) return one.get<double>();
  if (one.is_string()) return one.get<std::string>();
  value_list all;
  for (const auto& item : one) all.items.push_back(parameter_from(item));
  return all;
}

}  // namespace

json hyper_parameters_to(const value_map& all) {
  auto named = json::object();
  for (const auto& [name, one] : all.items) named[name] = parameter_to(one);
  return named;
}

value_map hyper_parameters_of_state(const std::string& text) {
  value_map all;
  const auto state = parse_state(text);
  const auto found = state.find("hyper_parameters");
  if (found == state.end()) return all;
  for (const auto& [name, one] : found->items()) all.items[name] = parameter_from(one);
  return all;
}

json parse_state(const std::string& text) {
  if (text.empty()) return json::object();
  return json::parse(text);
}

json metrics_to(const metrics& numbers) {
  auto all = json::object();
  for (const auto& [name, number] : numbers) all[name] = number_to(number);
  return all;
}

metrics metrics_from(const json& all) {
  metrics numbers;
  for (const auto& [name, number] : all.items()) numbers[name] = number_from(number);
  return numbers;
}

}  // namespace troupe::learner_json
