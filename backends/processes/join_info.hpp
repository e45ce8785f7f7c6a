// How a rank's process that another launcher (mpirun) has placed joins a job: the address of
// Troupe's launcher, the identification that the process sends, and the assignment that it
// receives. Fixed blocks over TCP, before the link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/process_identity.hpp"
#include "backends/tcp/frame.hpp"

namespace troupe {

/// The launcher's addresses and the secret.
struct join_info {
  static constexpr std::size_t hosts_max = 16;

  std::vector<std::string> hosts;  ///< numeric addresses, to be tried in this order
  std::uint16_t port = 0;
  tcp::job_secret secret{};
  friend bool operator==(const join_info&, const join_info&) = default;
};
/// One line.
std::string to_text(const join_info& what);
/// Throws internal_error for a text that to_text does not produce.
join_info read_join_info(const std::string& text);

/// The identification: the first bytes that such a process sends.
inline constexpr std::size_t arrival_bytes = 48;
using arrival_block = std::array<std::byte, arrival_bytes>;
arrival_block encode_arrival(const tcp::job_secret& secret, std::int32_t rank);
/// Its rank; none if the secret or the format is wrong.
std::optional<std::int32_t> decode_arrival(const arrival_block& block,
                                           const tcp::job_secret& secret);

/// The answer, perhaps much later: an incarnation of the rank, whose link begins after this block,
/// or a shutdown message: the process gets no further assignment.
struct assignment {
  bool shutdown = false;
  process_identity who;
};
inline constexpr std::size_t assignment_bytes = 72;
using assignment_block = std::array<std::byte, assignment_bytes>;
assignment_block encode_assignment(const tcp::job_secret& secret, const assignment& what);
/// None if the sender does not know the secret.
std::optional<assignment> decode_assignment(const assignment_block& block,
                                            const tcp::job_secret& secret);

}  // namespace troupe
