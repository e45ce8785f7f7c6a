#include "backends/tcp/tcp.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace troupe {

std::string to_string(const tcp_address& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", brackets ? "[" : "", address.host, brackets ? "]" : "",
                     address.port);
}

void tcp_address_book::publish(const group_description& who, const tcp_address& at) {
  set(who.job, who.rank, at);
}

std::optional<tcp_address> tcp_address_book::find(const group_description& who, std::int32_t rank) {
  const std::lock_guard hold{mutex_};
  const auto found = at_.find({who.job, rank});
  if (found == at_.end()) return {};
  return found->second;
}

void tcp_address_book::set(job_id job, std::int32_t rank, tcp_address at) {
  const std::lock_guard hold{mutex_};
  at_[{job, rank}] = std::move(at);
}

void tcp_address_book::forget(job_id job) {
  const std::lock_guard hold{mutex_};
  std::erase_if(at_, [&](const auto& entry) { return entry.first.first == job; });
}

std::optional<tcp_address> tcp_fixed_addresses::find(const group_description&, std::int32_t rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size())
    throw std::invalid_argument(
        fmt::format("the table of addresses has {} ranks, not rank {}", ranks_.size(), rank));
  return ranks_[static_cast<std::size_t>(rank)];
}

}  // namespace troupe
