#include "backends/processes/address_table.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace troupe {

// Starts as zeros: no address is published yet. All processes are on this host, so a port is an
// address. An entry is a generation in the upper 48 bits and the port.
struct address_table::sheet {
  std::array<std::uint8_t, 32> secret;
  std::array<std::atomic<std::uint64_t>, ranks_max> entries;
};

namespace {

constexpr unsigned port_bits = 16;

[[noreturn]] void refuse() {
  throw user_error(errc::device,
                   fmt::format("tcp: the kernel gives no memory file: {}; raise the limits of open "
                               "files and of memory (ulimit)",
                               std::strerror(errno)));
}

}  // namespace

std::shared_ptr<address_table> address_table::create(const std::array<std::uint8_t, 32>& secret) {
  file_descriptor file{::memfd_create("troupe-addresses", MFD_CLOEXEC)};
  if (!file || ::ftruncate(file.get(), sizeof(sheet)) != 0) refuse();
  auto control_segment = over(std::move(file));
  control_segment->sheet_->secret = secret;
  return control_segment;
}

std::shared_ptr<address_table> address_table::adopt(int descriptor) {
  struct stat about {};
  if (::fstat(descriptor, &about) != 0 || about.st_size != static_cast<off_t>(sizeof(sheet)))
    throw internal_error("an inherited descriptor is no address table");
  file_descriptor copy{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)};
  if (!copy) refuse();
  return over(std::move(copy));
}

std::shared_ptr<address_table> address_table::over(file_descriptor file) {
  void* at = ::mmap(nullptr, sizeof(sheet), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) refuse();
  return std::shared_ptr<address_table>(
      new address_table(std::move(file), static_cast<sheet*>(at)));
}

address_table::~address_table() { ::munmap(sheet_, sizeof(sheet)); }

std::array<std::uint8_t, 32> address_table::secret() const { return sheet_->secret; }

void address_table::publish(const group_description& who, const tcp_address& at) {
  if (who.rank >= ranks_max)
    throw user_error(errc::device, fmt::format("tcp: at most {} ranks on a host", ranks_max));
  auto& entry = sheet_->entries.at(static_cast<std::size_t>(who.rank));
  const auto fresh = who.generation.value() << port_bits | at.port;
  auto known = entry.load();
  while (known >> port_bits <= who.generation.value() &&
         !entry.compare_exchange_weak(known, fresh)) {
  }
}

std::optional<tcp_address> address_table::find(const group_description& who, std::int32_t rank) {
  const auto entry = sheet_->entries.at(static_cast<std::size_t>(rank)).load();
  const auto port = static_cast<std::uint16_t>(entry);
  if (port == 0 || entry >> port_bits < who.generation.value()) return std::nullopt;
  return tcp_address{"127.0.0.1", port};
}

}  // namespace troupe
