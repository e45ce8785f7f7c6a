// IDX files: the format of MNIST and its kin. Big-endian header (two zeros, the element type, the
// number of dimensions, then each extent), then the elements; here bytes only. Plain or gzip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// Reads the header alone: the extents. `mend` ends every error: what the user can do about it.
std::vector<std::int64_t> read_idx_shape(const std::string& path, const std::string& mend);

/// Reads a file of unsigned bytes whose extents are `shape`. Throws user_error
/// (bad_configuration) that names the file when it cannot be read, says something else, is cut
/// short or goes on too long. Memory grows with what is really there, not with what a header says.
std::vector<std::uint8_t> read_idx(const std::string& path, const std::vector<std::int64_t>& shape,
                                   const std::string& mend);

}  // namespace troupe
