#include "backends/processes/join_info.hpp"

#include <fmt/format.h>

#include <cstring>
#include <sstream>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

// Contains the format's version, so that a program with another version is refused.
constexpr std::array<char, 8> arriving{'t', 'r', 'o', 'u', 'p', 'e', 'A', '1'};
constexpr std::array<char, 8> assigning{'t', 'r', 'o', 'u', 'p', 'e', 'T', '1'};

// In the machine's byte order, as all data between processes of one program.
struct arrival_fields {
  std::array<char, 8> magic = arriving;
  tcp::job_secret secret{};
  std::int32_t rank = -1;
  std::uint32_t rest = 0;
};
static_assert(sizeof(arrival_fields) == arrival_bytes);

struct assignment_fields {
  std::array<char, 8> magic = assigning;
  tcp::job_secret secret{};
  std::uint64_t job = 0;
  std::uint64_t incarnation = 0;
  std::int32_t rank = 0;
  std::int32_t world = 0;
  std::uint64_t shutdown = 0;
};
static_assert(sizeof(assignment_fields) == assignment_bytes);

template <class Block, class Fields>
Block bytes_of(const Fields& fields) {
  Block block;
  std::memcpy(block.data(), &fields, block.size());
  return block;
}

template <class Fields, class Block>
Fields fields_of(const Block& block) {
  Fields fields;
  std::memcpy(&fields, block.data(), block.size());
  return fields;
}

}  // namespace

std::string to_text(const join_info& what) {
  auto text = fmt::format("{} ", what.port);
  for (const auto b : what.secret) text += fmt::format("{:02x}", b);
  for (const auto& host : what.hosts) text += " " + host;
  return text;
}

join_info read_join_info(const std::string& text) {
  join_info what;
  std::istringstream in{text};
  std::string secret;
  in >> what.port >> secret;
  bool whole = !in.fail() && what.port != 0 && secret.size() == 2 * what.secret.size() &&
               secret.find_first_not_of("0123456789abcdef") == std::string::npos;
  for (std::size_t i = 0; whole && i < what.secret.size(); ++i)
    what.secret[i] = static_cast<std::uint8_t>(std::stoi(secret.substr(2 * i, 2), nullptr, 16));
  for (std::string host; in >> host;) what.hosts.push_back(host);
  whole = whole && !what.hosts.empty() && what.hosts.size() <= join_info::hosts_max;
  if (!whole) throw internal_error("a rank's process was given no address to connect to");
  return what;
}

arrival_block encode_arrival(const tcp::job_secret& secret, std::int32_t rank) {
  return bytes_of<arrival_block>(arrival_fields{.secret = secret, .rank = rank});
}

std::optional<std::int32_t> decode_arrival(const arrival_block& block,
                                           const tcp::job_secret& secret) {
  const auto fields = fields_of<arrival_fields>(block);
  if (!tcp::same_secret(fields.secret, secret) || fields.magic != arriving) return std::nullopt;
  return fields.rank;
}

assignment_block encode_assignment(const tcp::job_secret& secret, const assignment& what) {
  return bytes_of<assignment_block>(assignment_fields{.secret = secret,
                                                      .job = what.who.job.value(),
                                                      .incarnation = what.who.incarnation.value(),
                                                      .rank = what.who.number,
                                                      .world = what.who.world,
                                                      .shutdown = what.shutdown ? 1U : 0U});
}

std::optional<assignment> decode_assignment(const assignment_block& block,
                                            const tcp::job_secret& secret) {
  const auto fields = fields_of<assignment_fields>(block);
  if (!tcp::same_secret(fields.secret, secret) || fields.magic != assigning) return std::nullopt;
  return assignment{
      fields.shutdown != 0,
      {job_id{fields.job}, fields.rank, fields.world, incarnation_id{fields.incarnation}}};
}

}  // namespace troupe
