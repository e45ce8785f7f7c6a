// The storage port in virtual time, on a disk that is a value.
#pragma once

#include "backends/simulated/disk.hpp"
#include "backends/simulated/later.hpp"

namespace troupe {

using storage_cost_fn = std::function<std::chrono::nanoseconds(const storage_op& op)>;
using storage_fault_fn = std::function<storage_fault(const storage_op& op)>;

/// Does operations one after the other, each after its cost of virtual time, and answers at that
/// moment, inside what the world calls through `later`. Without a cost: zero; without a fault
/// source: none. Not thread-safe: one world, one thread.
class simulated_storage final : public storage {
public:
  /// Operations that may wait at a time; one more is an internal_error.
  static constexpr std::size_t waiting_limit = 256;

  explicit simulated_storage(later_fn later, storage_cost_fn cost = {}, storage_fault_fn fault = {},
                             simulated_disk disk = {});
  /// What waits is neither done nor answered.
  ~simulated_storage() override;

  void submit(storage_op op, std::function<void(storage_result)> done) override;

  const simulated_disk& disk() const;
  /// Grows whenever the disk may have changed.
  std::uint64_t changes() const;
  /// Asked once per operation, when it is its turn.
  void set_fault(storage_fault_fn fault);
  /// How many of each fault took effect, in the order of storage_fault::kind. A fault that does not
  /// concern an operation (a full disk and a read) counts too.
  const std::vector<std::uint64_t>& faults() const;
  /// Goes on behind a `hang`; nothing when there is none.
  void go_on();

  /// The program is killed: what waits is never answered, and the operation whose turn it is was
  /// done in part: `calls` of its calls (any number: all, when it has fewer). What is on the disk
  /// stays. The storage is ready for the next program.
  void kill(std::size_t calls);
  /// Power is lost: as kill, and of what was not durable only what `kept` names is left
  /// (simulated_disk::after_power_loss).
  void crash(std::size_t calls, const std::function<bool(std::size_t)>& kept);

private:
  struct body;
  std::shared_ptr<body> body_;
};

}  // namespace troupe
