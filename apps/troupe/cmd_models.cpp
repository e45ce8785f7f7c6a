#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace troupe::program {

void add_models(const command& app, const context& around, const choose& chosen) {
  const auto command = app.add_command("models", "lists the models that can be trained");
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "one object per line");
  auto layers = std::make_shared<bool>(false);
  command.add_flag("--layers", *layers, "the layers of each model with default settings");
  command.on_chosen([=, &around] {
    chosen([=, &around] {
      for (const auto& model : around.learning.models()) {
        const auto parameters = around.learning.parameters(model.name);
        nlohmann::ordered_json object{{"schema", "troupe.model/1"},
                                      {"name", model.name},
                                      {"summary", model.summary},
                                      {"parameters", parameters}};
        const auto table = *layers ? around.learning.layers(model.name) : "";
        if (*layers) object["layers"] = table;
        around.screen.result(*json ? object.dump()
                                   : fmt::format("{:<12} {:>10} parameters  {}", model.name,
                                                 parameters, model.summary));
        if (*layers && !*json) around.screen.result(table);
      }
      return program_end{};
    });
  });
}

}  // namespace troupe::program
