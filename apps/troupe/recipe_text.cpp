#include "apps/troupe/recipe_text.hpp"

#include "troupe/failure.hpp"

#include <nlohmann/json.hpp>

namespace troupe::program {

std::string recipe_text(const learning& what) {
  const auto& [model, hidden, dropout, data, data_folder, target, samples, evaluation_samples,
               optimizer, learning_rate, momentum, weight_decay, scheduler, warmup_epochs, epochs,
               callbacks] = what;
  return nlohmann::json{model,       hidden,        dropout,  data,
                        data_folder, target,        samples,  evaluation_samples,
                        optimizer,   learning_rate, momentum, weight_decay,
                        scheduler,   warmup_epochs, epochs,   callbacks}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

learning read_recipe_text(const std::string& text) {
  learning what;
  auto& [model, hidden, dropout, data, data_folder, target, samples, evaluation_samples, optimizer,
         learning_rate, momentum, weight_decay, scheduler, warmup_epochs, epochs, callbacks] = what;
  try {
    const auto all = nlohmann::json::parse(text);
    std::size_t next = 0;
    const auto take = [&](auto&... fields) { (all.at(next++).get_to(fields), ...); };
    take(model, hidden, dropout, data, data_folder, target, samples, evaluation_samples, optimizer,
         learning_rate, momentum, weight_decay, scheduler, warmup_epochs, epochs, callbacks);
  } catch (const nlohmann::json::exception& error) {
    throw internal_error(std::string{"a rank's process got no recipe: "} + error.what());
  }
  return what;
}

}  // namespace troupe::program
