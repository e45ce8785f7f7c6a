// How ranks in processes of their own find each other: one kind per communicator that reaches from
// process to process.
#pragma once

#include "troupe/communicator.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// What a user may set about how ranks meet.
struct rendezvous_options {
  /// Connections between two ranks of tcp and hier; unset: as many as the adapter likes.
  std::optional<std::int64_t> tcp_streams;
};

/// One job's, held by the supervisor's side while the job runs.
class rendezvous {
public:
  virtual ~rendezvous() = default;
  /// What each rank is told: text of the kind's own.
  virtual std::string address() const { return {}; }
  /// Open descriptors that each rank's process inherits, in this order.
  virtual std::vector<int> descriptors() const { return {}; }
};

/// Injected by main, the same on both sides. Const and thread-safe.
class rendezvous_kind {
public:
  virtual ~rendezvous_kind() = default;
  /// The communicator's.
  virtual std::string_view name() const = 0;
  /// Empty when it can be used here, else the reason why not (for `doctor` and for errors).
  virtual std::string unusable() const = 0;
  /// What to know before choosing it (for `doctor`); may be empty.
  virtual std::string about() const { return {}; }
  /// On the supervisor's side, once per job. Throws user_error naming the mend.
  virtual std::shared_ptr<rendezvous> arrange(const rendezvous_options& options) const = 0;
  /// In a rank's process, once, with what the meeting gave. Throws user_error.
  virtual std::shared_ptr<communicator_backend> join(const std::string& address,
                                                     const std::vector<int>& descriptors) const = 0;
};

}  // namespace troupe
