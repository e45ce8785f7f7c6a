#include "apps/troupe/cmd_bench.hpp"
#include "apps/command_line/command_line.hpp"

namespace troupe::program {

void add_bench(const command& app, const schema& all, const context& around, const choose& chosen) {
  const auto bench =
      app.add_command("bench", "measures training, collectives and recovery on this machine")
          .require_command();
  add_bench_collectives(bench, around, chosen);
  add_bench_fit(bench, all, around, chosen);
  add_bench_control(bench, around, chosen);
  add_bench_recovery(bench, around, chosen);
}

}  // namespace troupe::program
