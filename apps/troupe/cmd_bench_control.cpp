#include "apps/bench/control_text.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/troupe/cmd_bench.hpp"

#include <memory>

namespace troupe::program {

namespace {

struct control_flags {
  control_question what;
  bool json = false;
};

void add(const command& bench_app, const char* name, const char* summary, bool whole,
         const context& around, const choose& chosen) {
  const auto command = bench_app.add_command(name, summary);
  auto flags = std::make_shared<control_flags>();
  command.add("--steps", flags->what.steps, "measured in each round (5000)");
  command.add("--rounds", flags->what.rounds, "how often it is measured (5)");
  if (whole) {
    command.add("--ranks", flags->what.ranks, "how many take part (2)");
    command.add("--throws", flags->what.throws, "how often a rank throws (20)");
  }
  command.add_flag("--json", flags->json, "one object");
  command.on_chosen([=, &around] {
    chosen([=, &around] {
      const auto& what = flags->what;
      if (whole) {
        const auto figures = bench_control(what);
        around.screen.result(flags->json ? as_json(what, figures) : as_text(what, figures));
      } else {
        const auto figures = bench_hooks(what);
        around.screen.result(flags->json ? hooks_json(what, figures) : hooks_text(figures));
      }
      return program_end{};
    });
  });
}

}  // namespace

void add_bench_control(const command& bench_app, const context& around, const choose& chosen) {
  add(bench_app, "hooks", "what a hook costs before it does anything", false, around, chosen);
  add(bench_app, "control",
      "what a step of ranks that do nothing costs; how fast a throw reaches the caller", true,
      around, chosen);
}

}  // namespace troupe::program
