// The kinds of `troupe bench`: each adds its own subcommand.
#pragma once

#include "apps/troupe/commands.hpp"

namespace troupe::program {

void add_bench_collectives(CLI::App& bench, const context& around, const choose& chosen);
void add_bench_control(CLI::App& bench, const context& around, const choose& chosen);
void add_bench_fit(CLI::App& bench, const schema& all, const context& around, const choose& chosen);

}  // namespace troupe::program
