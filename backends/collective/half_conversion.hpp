// Half to float and back with the processor's own instructions, a row at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::detail {

/// The processor has them.
bool converts_halves();
/// Exact. Only where converts_halves().
void widen_halves(const std::uint16_t* from, float* to, std::size_t n);
/// Rounds to nearest, ties to even; every NaN becomes 0x7e00. Only where converts_halves().
void narrow_to_halves(const float* from, std::uint16_t* to, std::size_t n);

}  // namespace troupe::detail
