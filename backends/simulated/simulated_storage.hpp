// The storage port in virtual time, on a simulated disk.
#pragma once

#include "backends/simulated/disk.hpp"
#include "backends/simulated/later.hpp"

namespace troupe {

using storage_cost_fn = std::function<std::chrono::nanoseconds(const storage_op& op)>;
using storage_fault_fn = std::function<storage_fault(const storage_op& op)>;

/// Performs operations one after the other, each after its cost in virtual time, and answers within
/// an event of `later`. Default: no cost, no faults. Not thread-safe: one simulation, one thread.
/// Bound: storage_queue; a refused operation has no cost and no fault.
class simulated_storage final : public storage {
public:
  explicit simulated_storage(later_fn later, storage_cost_fn cost = {}, storage_fault_fn fault = {},
                             simulated_disk disk = {});
  /// Waiting operations are neither done nor answered.
  ~simulated_storage() override;

  void submit(storage_op op, std::function<void(storage_result)> done) override;

  const simulated_disk& disk() const;
  /// Grows whenever the disk may have changed.
  std::uint64_t changes() const;
  /// `fault` is called once per operation, at its turn.
  void set_fault(storage_fault_fn fault);
  /// Number of faults by storage_fault::kind. A fault without effect on its operation (a full disk
  /// and a read) counts, too.
  const std::vector<std::uint64_t>& faults() const;
  /// Continues after a `hang`; otherwise does nothing.
  void go_on();

  /// The program is killed. Waiting operations are never answered. Of the current operation the
  /// first `calls` calls were made (all of them, if it has fewer). The disk stays as it is, and the
  /// storage is ready for the next program.
  void kill(std::size_t calls);
  /// Loss of power: as `kill`, and of the changes that were not durable only those selected by
  /// `kept` are left (simulated_disk::after_power_loss).
  void crash(std::size_t calls, const std::function<bool(std::size_t)>& kept);

private:
  struct body;
  std::shared_ptr<body> body_;
};

}  // namespace troupe
