// The output of `troupe bench control` and `troupe bench hooks`.
#pragma once

#include "apps/bench/control.hpp"

#include <string>

namespace troupe::program {

/// One line: schema `troupe.bench_control/1`, times in microseconds.
std::string as_json(const control_question& what, const control_figures& figures);
std::string as_text(const control_question& what, const control_figures& figures);
/// The result of bench_hooks: schema `troupe.bench_hooks/1`, nanoseconds per hook.
std::string hooks_json(const control_question& what, const control_figures& figures);
std::string hooks_text(const control_figures& figures);

}  // namespace troupe::program
