#include "backends/simulated/simulated_storage.hpp"

#include "backends/storage/storage_queue.hpp"

namespace troupe {

// Scheduled events share ownership, so destroying a storage leaves no dangling reference.
struct simulated_storage::body : std::enable_shared_from_this<body> {
  later_fn later;
  storage_cost_fn cost;
  storage_fault_fn fault;
  simulated_disk disk;
  std::uint64_t changes = 0;  // number of changes of the disk
  storage_queue waiting;      // the first one is being done
  storage_fault current;      // fault of the current operation
  bool hangs = false;
  std::uint64_t program = 0;  // events of an earlier program are void
  std::vector<std::uint64_t> faults =
      std::vector<std::uint64_t>(static_cast<std::size_t>(storage_fault::kind::hang) + 1);

  void begin_next() {
    if (waiting.empty()) return;
    const auto& op = waiting.front().op;
    current = {};
    if (!op) return schedule(std::chrono::nanoseconds{0});
    if (fault) current = fault(*op);
    if (current.what != storage_fault::kind::none)
      ++faults.at(static_cast<std::size_t>(current.what));
    hangs = current.what == storage_fault::kind::hang;
    if (hangs) return;
    auto delay = cost ? cost(*op) : std::chrono::nanoseconds{0};
    if (current.what == storage_fault::kind::slow) delay += current.lasts;
    schedule(delay);
  }

  void schedule(std::chrono::nanoseconds delay) {
    later(delay, [self = shared_from_this(), of = program] {
      if (of == self->program) self->finish();
    });
  }

  void finish() {
    auto [op, done] = waiting.pop();
    ++changes;
    auto result = op ? disk.perform(*op, current) : storage_queue::refusal();
    begin_next();
    done(std::move(result));
  }

  void stop(std::size_t calls) {
    ++program;
    ++changes;
    if (!waiting.empty() && waiting.front().op) disk.perform_part(*waiting.front().op, calls);
    waiting.clear();
    hangs = false;
  }
};

simulated_storage::simulated_storage(later_fn later, storage_cost_fn cost, storage_fault_fn fault,
                                     simulated_disk disk)
    : body_(std::make_shared<body>()) {
  body_->later = std::move(later);
  body_->cost = std::move(cost);
  body_->fault = std::move(fault);
  body_->disk = std::move(disk);
}

simulated_storage::~simulated_storage() {
  ++body_->program;
  body_->waiting.clear();
}

void simulated_storage::submit(storage_op op, std::function<void(storage_result)> done) {
  const bool idle = body_->waiting.empty();
  body_->waiting.push(std::move(op), std::move(done));
  if (idle) body_->begin_next();
}

const simulated_disk& simulated_storage::disk() const { return body_->disk; }

std::uint64_t simulated_storage::changes() const { return body_->changes; }

void simulated_storage::set_fault(storage_fault_fn fault) { body_->fault = std::move(fault); }

const std::vector<std::uint64_t>& simulated_storage::faults() const { return body_->faults; }

void simulated_storage::go_on() {
  if (!std::exchange(body_->hangs, false)) return;
  body_->current = {};
  body_->schedule(std::chrono::nanoseconds{0});
}

void simulated_storage::kill(std::size_t calls) { body_->stop(calls); }

void simulated_storage::crash(std::size_t calls, const std::function<bool(std::size_t)>& kept) {
  body_->stop(calls);
  ++body_->changes;
  body_->disk = body_->disk.after_power_loss(kept);
}

}  // namespace troupe
