#include "apps/troupe/cmd_bench.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace troupe::program {

void add_bench(CLI::App& app, const schema& all, const context& around, const choose& chosen) {
  auto* bench =
      app.add_subcommand("bench", "how fast this machine is at it")->require_subcommand(1);
  add_bench_collectives(*bench, around, chosen);
  add_bench_fit(*bench, all, around, chosen);
  add_bench_control(*bench, around, chosen);
}

}  // namespace troupe::program
