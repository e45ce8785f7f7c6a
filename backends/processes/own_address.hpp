// This host, as processes of other hosts know it: addresses that they can dial, and a name.
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

/// A process can share memory with those for which this text is the same. Where the host or one of
/// the process's namespaces cannot be read below `proc`, each call gives another text.
std::string own_host(const std::string& proc = "/proc");

}  // namespace troupe
