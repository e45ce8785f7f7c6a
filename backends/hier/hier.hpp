// Collectives of ranks on several hosts. Each host reduces among its own ranks first, and only the
// partial results cross the network.
#pragma once

#include "troupe/communicator.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

class tcp_backend;

/// The hosts of a generation's ranks, as far as these have said where they are. Thread-safe.
class host_finder {
public:
  virtual ~host_finder() = default;
  /// Says where this rank is. Does not wait for others.
  virtual void publish(const group_description& who) = 0;
  /// hier_options::hosts; nothing: not all ranks have said it within `patience`. Throws when they
  /// cannot say it any more.
  virtual std::optional<std::vector<std::int32_t>> find(const group_description& who,
                                                        std::chrono::milliseconds patience) = 0;
};

struct hier_options {
  /// Between the ranks of this host: `inproc` or `shm`.
  std::shared_ptr<communicator_backend> local;
  /// Between all ranks.
  std::shared_ptr<tcp_backend> remote;
  /// How many ranks each host has, in the order of ranks: {4, 3} are ranks 0 to 3 and 4 to 6. The
  /// same on all ranks of a generation. A host whose ranks do not follow each other stands there
  /// several times.
  std::function<std::vector<std::int32_t>(const group_description&)> hosts;
  /// In place of `hosts`, where ranks learn it from each other.
  std::shared_ptr<host_finder> finder;
  /// An all_reduce of fewer bytes uses the network only, because its time is mostly latency.
  std::size_t local_from = std::size_t{64} << 10;
};

/// Ranks per block of the canonical tree that every host can reduce alone: the largest power of two
/// such that no block of as many consecutive ranks lies on two hosts. Throws std::invalid_argument
/// if `hosts` do not add up to `world`.
std::int32_t block_of(const std::vector<std::int32_t>& hosts, std::int32_t world);

/// Same bits as in process. An all_reduce over the world (sum, product, min, max) of types that are
/// their own accumulation type has three steps: the ranks of a block reduce on their host, the
/// first ranks of the blocks reduce among each other, each block gets the result. Everything else
/// goes directly over `remote`: a mean needs all leaves if its sum overflows, and half types must
/// round only once. With a finder, `open` does not wait for the hosts. The first such all_reduce
/// does, when all ranks have come to it, and so does `allocate`.
///
/// Operations are checked, compared and waited for over `remote`, whose contract holds for errors,
/// deadlines and ends. One thread per handle carries the steps out, also while no rank waits.
/// Thread-safe.
class hier_backend final : public communicator_backend {
public:
  explicit hier_backend(hier_options options);

  std::string_view name() const override { return "hier"; }
  std::string unusable() const override;
  std::shared_ptr<communicator> open(const group_description& group) override;

private:
  const hier_options options_;
};

}  // namespace troupe
