// The rendezvous port: how ranks in processes of their own connect to each other. One kind for each
// communicator that reaches from process to process.
#pragma once

#include "troupe/communicator.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The options of a rendezvous.
struct rendezvous_options {
  /// Connections between two ranks of tcp and hier; unset: the adapter's default.
  std::optional<std::int64_t> tcp_streams;
};

/// The rendezvous of one job. The process of the supervisor holds it while the job runs.
class rendezvous {
public:
  virtual ~rendezvous() = default;
  /// Sent to each rank: text that only the kind reads.
  virtual std::string address() const { return {}; }
  /// Open descriptors that each rank's process inherits, in this order.
  virtual std::vector<int> descriptors() const { return {}; }
};

/// In `ports::rendezvous_kinds`, the same in the supervisor's process and in the ranks'. Const and
/// thread-safe.
class rendezvous_kind {
public:
  virtual ~rendezvous_kind() = default;
  /// The name of its communicator.
  virtual std::string_view name() const = 0;
  /// Empty when it can be used here, else the reason why not, for `doctor` and for errors.
  virtual std::string unusable() const = 0;
  /// What to know before choosing it (for `doctor`); may be empty.
  virtual std::string about() const { return {}; }
  /// In the supervisor's process, once per job. Throws user_error that says how to fix it.
  virtual std::shared_ptr<rendezvous> arrange(const rendezvous_options& options) const = 0;
  /// In a rank's process, once, with the address and the descriptors of the rendezvous. Throws
  /// user_error.
  virtual std::shared_ptr<communicator_backend> join(const std::string& address,
                                                     const std::vector<int>& descriptors) const = 0;
};

}  // namespace troupe
