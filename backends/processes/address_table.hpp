// The addresses of a job's ranks and their shared secret, in memory that its processes share.
#pragma once

#include <array>
#include <cstdint>

#include "backends/local/file_descriptor.hpp"
#include "backends/tcp/tcp.hpp"

namespace troupe {

/// The table of one job. A rank's process writes its own entry and reads the others. Thread-safe.
///
/// An entry counts from the generation for which it was published. So no rank dials the port of a
/// process that was replaced: another program may listen there. A process that opens an older
/// generation does not overwrite it. A rank that looks for an older generation gets the newer
/// entry, and learns at that address that its generation is over.
class address_table : public tcp_rendezvous {
public:
  static constexpr std::int32_t ranks_max = 4096;

  /// Creates a table. Throws user_error if the kernel has no memory for it.
  static std::shared_ptr<address_table> create(const std::array<std::uint8_t, 32>& secret);
  /// From an inherited descriptor. The table keeps a copy, because the ranks of a process share the
  /// descriptor, and may come after others have left. Throws internal_error if it is no table, and
  /// user_error if the kernel has no descriptor or memory for it.
  static std::shared_ptr<address_table> adopt(int descriptor);
  ~address_table() override;
  address_table(const address_table&) = delete;
  address_table& operator=(const address_table&) = delete;

  int descriptor() const { return file_.get(); }
  std::array<std::uint8_t, 32> secret() const;

  void publish(const group_description& who, const tcp_address& at) override;
  std::optional<tcp_address> find(const group_description& who, std::int32_t rank) override;

private:
  struct sheet;
  static std::shared_ptr<address_table> over(file_descriptor file);
  address_table(file_descriptor file, sheet* at) : file_(std::move(file)), sheet_(at) {}

  const file_descriptor file_;
  sheet* const sheet_;
};

}  // namespace troupe
