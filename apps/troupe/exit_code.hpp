// The program's exit codes (contract, section 2).
#pragma once

#include "messages/control.hpp"

#include <exception>

namespace troupe::program {

namespace exits {
inline constexpr int done = 0;
inline constexpr int job_failed = 1;
inline constexpr int bad_usage = 2;
inline constexpr int membership = 4;
inline constexpr int checkpoint = 5;
inline constexpr int internal = 70;
inline constexpr int stopped_early = 75;
}  // namespace exits

/// 128 and the signal's number.
int exit_code_of_signal(int signal);
/// A user_error's own; 70 for a broken invariant; 1 for everything else.
int exit_code(const std::exception_ptr& error);
/// For a job that no signal stopped: the exit code of its first cause.
int exit_code(const job_outcome& outcome);

}  // namespace troupe::program
