// The kinds of `troupe bench`: each adds its own subcommand.
#pragma once

#include "apps/troupe/commands.hpp"

namespace troupe::program {

void add_bench_collectives(const command& bench, const context& around, const choose& chosen);
void add_bench_control(const command& bench, const context& around, const choose& chosen);
void add_bench_recovery(const command& bench, const context& around, const choose& chosen);
void add_bench_fit(const command& bench, const schema& all, const context& around,
                   const choose& chosen);

}  // namespace troupe::program
