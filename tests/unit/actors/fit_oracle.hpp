// The hooks of an uninterrupted fit, written as plain nested loops. It is independent of the
// machine and of its hook sequences.
#pragma once

#include "tests/unit/actors/fit_drive.hpp"

namespace fit_drive {

/// All hooks of a fit from scratch, in order. It covers everything but resuming, early stopping,
/// late optimizers and outcomes of hooks that change the run.
std::vector<troupe::hook> expected_fit(const troupe::fit_plan& plan, const facts& known);

/// Returns what is wrong with the order of `hooks`, or an empty text. Every batch comes at most
/// once per epoch and in order, starts and ends are nested, closures have the stated length, and
/// windows are whole. `broken_off`: an epoch, or a window in it, may lack its end.
std::string disorder(const std::vector<troupe::hook>& hooks, bool broken_off = false);

}  // namespace fit_drive
