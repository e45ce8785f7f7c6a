#include "backends/processes/own_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <fstream>

#include "backends/processes/join_info.hpp"
#include "backends/tcp/frame.hpp"
#include "troupe/failure.hpp"

namespace troupe {

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const auto* one = all; one && found.size() < join_info::hosts_max; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto& at = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (::inet_ntop(AF_INET, &at, text.data(), text.size())) found.emplace_back(text.data());
  }
  ::freeifaddrs(all);
  return found;
}

std::string own_address_towards(const std::string& peer) {
  using boost::asio::ip::udp;
  boost::asio::io_context loop;
  udp::resolver names{loop};
  boost::system::error_code failed;
  for (const auto& one : names.resolve(udp::v4(), peer, "9", failed)) {
    udp::socket towards{loop, udp::v4()};
    // For datagrams this only chooses the route.
    if (towards.connect(one.endpoint(), failed)) continue;
    const auto own = towards.local_endpoint(failed).address();
    if (failed) continue;
    if (!own.is_loopback()) return own.to_string();
    if (const auto others = own_addresses(); !others.empty()) return others.front();
  }
  throw user_error(errc::device,
                   fmt::format("this host has no IPv4 address from which {} can be reached{}{}",
                               peer, failed ? ": " : "", failed ? failed.message() : ""));
}

std::string own_host(const std::string& proc) {
  const auto space = [&](const char* name) {
    struct stat of {};
    const bool known = ::stat((proc + name).c_str(), &of) == 0;
    return known ? static_cast<std::uint64_t>(of.st_ino) : 0;
  };
  std::string boot;
  std::ifstream{proc + "/sys/kernel/random/boot_id"} >> boot;
  const auto net = space("/self/ns/net");
  const auto pid = space("/self/ns/pid");
  // The first namespaces have the same numbers on each host.
  if (boot.empty() || net == 0 || pid == 0)
    return fmt::format("{:02x}", fmt::join(tcp::fresh_secret(), ""));
  return fmt::format("{} {} {} {}", boot, net, pid, ::geteuid());
}

}  // namespace troupe
