// Why a run ended early: job_outcome::why, and module::why_ended in the hooks at the end of a fit.
#pragma once

#include <cstdint>
#include <string_view>

namespace troupe {

/// Why a run ended early; `none`: it did not.
enum class stop_reason : std::uint8_t { none, hook, early_stopping, caller, interrupt, terminate };
/// The enumerator's name.
std::string_view to_string(stop_reason r);

}  // namespace troupe
