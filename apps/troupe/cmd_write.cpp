#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"

namespace troupe::program {

void add_write(const command& app, const context& around, const choose& chosen) {
  const auto what = std::make_shared<writing>();
  const auto command = app.add_command("write", "writes text with a trained model gpt");
  command.add("RUN_DIR", what->checkpoint, "the folder of a run, or of one of its checkpoints")
      .required();
  command.add("--prompt", what->prompt, "what the text goes on from (a newline)").type_name("TEXT");
  command.add("--characters", what->characters, "how many characters to add, up to 100,000 (400)")
      .type_name("N")
      .check([](const std::string& text) -> std::string {
        const auto number = whole_number(text);
        return number && *number <= 100'000 ? "" : "must be a whole number from 0 to 100000";
      });
  command
      .add("--temperature", what->temperature,
           "below 1: more of what is likely; 0: always the likeliest character (0.8)")
      .type_name("X");
  command.add("--seed", what->seed, "of the random choices (0)")
      .type_name("N")
      .check(&wrong_with_seed);
  command.on_chosen([=, &around] {
    chosen([=, &around] {
      if (!(what->temperature >= 0 && what->temperature <= 100))
        throw user_error(errc::bad_usage, "--temperature must be from 0 to 100");
      what->checkpoint = checkpoint_at(what->checkpoint, around);
      around.screen.results(around.learning.write(*what) + "\n");
      return program_end{};
    });
  });
}

}  // namespace troupe::program
