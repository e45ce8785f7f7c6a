// Addresses of this host that processes of other hosts can dial.
#pragma once

#include <string>
#include <vector>

namespace troupe {

/// IPv4 addresses of the network interfaces that are up, without loopback, in the kernel's order;
/// at most `join_info::hosts_max`. Empty: there are none.
std::vector<std::string> own_addresses();

/// The IPv4 address by which this host sends to `peer` (a name or an address). Where that is
/// loopback, because `peer` is this host, the first of own_addresses. Sends nothing; a name is
/// looked up. Throws user_error (device) when there is no such address.
std::string own_address_towards(const std::string& peer);

}  // namespace troupe
