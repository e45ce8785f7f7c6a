// What an uninterrupted fit must do, written as the plain nested loops it is: independent of the
// machine and of its hook sequences.
#pragma once

#include "tests/unit/actors/fit_drive.hpp"

namespace fit_drive {

/// All hooks of a fit from scratch, in order. Knows everything but resuming, early stopping, late
/// optimizers and words from hooks.
std::vector<troupe::hook> expected_fit(const troupe::fit_plan& plan, const facts& known);

/// Says what is wrong with the order of `hooks` as such, empty when nothing is: every batch at most
/// once per epoch and in order, starts and ends nested, closures as long as they say, windows
/// whole. `broken_off`: an epoch (or a window within it) may lack its end.
std::string disorder(const std::vector<troupe::hook>& hooks, bool broken_off = false);

}  // namespace fit_drive
