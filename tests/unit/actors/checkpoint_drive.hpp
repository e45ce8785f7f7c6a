// Carries out the actions of a checkpoint machine on a simulated disk, one operation at a time. The
// disk is a value.
#pragma once

#include "actors/checkpoint_machine.hpp"
#include "backends/simulated/disk.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/value.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::testing {

/// A value: changes to a copy do not affect the original.
struct checkpoint_drive {
  checkpoint_machine machine;
  simulated_disk disk;
  std::shared_ptr<const checkpoint_io> io;
  /// Whether the n-th operation of this drive (counted from 0) fails.
  std::function<bool(std::uint64_t)> fails;

  std::map<std::uint64_t, snapshot> held;  ///< by ticket
  std::vector<checkpoint_file> files;      ///< files of the snapshot being written
  std::optional<checkpointing::store> in_flight;
  std::uint64_t done = 0;  ///< completed operations
  std::uint64_t tickets = 0;
  std::vector<checkpointing::action> said;  ///< the actions written, failed, flushed and drop

  explicit checkpoint_drive(checkpoint_policy policy, simulated_disk on = {},
                            std::optional<std::int64_t> resumed = {});

  /// Offers a snapshot whose step is committed.
  void offer(std::int64_t step, double loss, bool must = false, std::uint64_t generation = 1);
  /// Offers a snapshot whose step may not be committed yet.
  void offer_early(std::int64_t step, double loss, bool must = false, std::uint64_t generation = 1);
  void commit(std::int64_t step, std::uint64_t generation = 1) {
    feed(checkpointing::committed{generation_id{generation}, step});
  }
  void feed(const checkpointing::event& what);
  /// The operation in flight.
  std::optional<storage_op> next() const;
  /// Performs the operation in flight. Returns false when there is none.
  bool step();
  void run() {
    while (step()) continue;
  }

  /// Steps reported as written, in order.
  std::vector<std::int64_t> written() const;
  std::vector<checkpointing::failed> failures() const;
  /// Entries of the run's folder `checkpoints`.
  std::vector<std::string> entries() const;

private:
  void take(const checkpointing::action& a);
};

checkpoint_policy keep(std::int32_t last, std::int32_t best);

}  // namespace troupe::testing
