// IDX files, the format of MNIST. A big-endian header (two zeros, the element type, the number of
// dimensions, each extent) is followed by the elements. Only bytes are read. Plain or gzip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// Reads only the header: the extents. Every error text ends in `fix`, which says how to fix it.
std::vector<std::int64_t> read_idx_shape(const std::string& path, const std::string& fix);

/// Reads a file of unsigned bytes whose extents are `shape`. Throws user_error
/// (bad_configuration) that names the file if it cannot be read, has another shape, is too short or
/// too long. Memory grows with the bytes that were read, not with the extents of the header.
std::vector<std::uint8_t> read_idx(const std::string& path, const std::vector<std::int64_t>& shape,
                                   const std::string& fix);

}  // namespace troupe
