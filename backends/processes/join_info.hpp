// How the process of a rank that something else has placed (mpirun) finds whoever starts ranks:
// where to come, how it says who it is, what it is told. Fixed blocks over TCP, before the link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/process_control.hpp"
#include "backends/tcp/frame.hpp"

namespace troupe {

/// Where to come.
struct join_info {
  static constexpr std::size_t hosts_max = 16;

  std::vector<std::string> hosts;  ///< numeric addresses, to be tried in this order
  std::uint16_t port = 0;
  tcp::job_secret secret{};
  friend bool operator==(const join_info&, const join_info&) = default;
};
/// One line.
std::string to_text(const join_info& what);
/// Throws internal_error for what to_text does not say.
join_info read_join_info(const std::string& text);

/// What such a process says first.
inline constexpr std::size_t arrival_bytes = 48;
using arrival_block = std::array<std::byte, arrival_bytes>;
arrival_block encode_arrival(const tcp::job_secret& secret, std::int32_t rank);
/// Its rank; nothing when it does not know the secret or says something else.
std::optional<std::int32_t> decode_arrival(const arrival_block& block,
                                           const tcp::job_secret& secret);

/// What it is told then, perhaps much later: a rank's life, whose link begins behind this; or that
/// there will be no more.
struct assignment {
  bool shutdown = false;
  rank_start who;
};
inline constexpr std::size_t assignment_bytes = 72;
using assignment_block = std::array<std::byte, assignment_bytes>;
assignment_block encode_assignment(const tcp::job_secret& secret, const assignment& what);
/// Nothing when it is not from who knows the secret.
std::optional<assignment> decode_assignment(const assignment_block& block,
                                            const tcp::job_secret& secret);

}  // namespace troupe
