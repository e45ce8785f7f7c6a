#include "apps/troupe/recipe_text.hpp"

#include "troupe/failure.hpp"

#include <nlohmann/json.hpp>

namespace troupe::program {

namespace {

using nlohmann::json;

json own_json(const own_values& all) {
  auto object = json::object();
  for (const auto& [key, value] : all)
    std::visit(
        [&, &key = key](const auto& x) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(x)>, std::monostate>) object[key] = x;
        },
        value);
  return object;
}

setting_value setting_of(const json& one) {
  if (one.is_boolean()) return one.get<bool>();
  if (one.is_number_integer()) return one.get<std::int64_t>();
  if (one.is_number()) return one.get<double>();
  if (one.is_string()) return one.get<std::string>();
  if (one.is_array() && !one.empty() && one.front().is_string())
    return one.get<std::vector<std::string>>();
  return one.get<std::vector<std::int64_t>>();
}

own_values own_values_of(const json& object) {
  own_values all;
  for (const auto& [key, value] : object.items()) all.emplace(key, setting_of(value));
  return all;
}

}  // namespace

std::string recipe_text(const learning& what) {
  const auto& [model, hidden, dropout, data, data_folder, target, samples, evaluation_samples,
               optimizer, learning_rate, momentum, weight_decay, scheduler, warmup_epochs, epochs,
               callbacks, model_settings, data_settings, features, classes, searches] = what;
  return json{model,
              hidden,
              dropout,
              data,
              data_folder,
              target,
              samples,
              evaluation_samples,
              optimizer,
              learning_rate,
              momentum,
              weight_decay,
              scheduler,
              warmup_epochs,
              epochs,
              callbacks,
              own_json(model_settings),
              own_json(data_settings),
              features,
              classes,
              searches}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

learning read_recipe_text(const std::string& text) {
  learning what;
  auto& [model, hidden, dropout, data, data_folder, target, samples, evaluation_samples, optimizer,
         learning_rate, momentum, weight_decay, scheduler, warmup_epochs, epochs, callbacks,
         model_settings, data_settings, features, classes, searches] = what;
  try {
    const auto all = json::parse(text);
    std::size_t next = 0;
    const auto take = [&](auto&... fields) { (all.at(next++).get_to(fields), ...); };
    take(model, hidden, dropout, data, data_folder, target, samples, evaluation_samples, optimizer,
         learning_rate, momentum, weight_decay, scheduler, warmup_epochs, epochs, callbacks);
    model_settings = own_values_of(all.at(next++));
    data_settings = own_values_of(all.at(next++));
    take(features, classes, searches);
  } catch (const json::exception& error) {
    throw internal_error(std::string{"a rank's process got no recipe: "} + error.what());
  }
  return what;
}

}  // namespace troupe::program
