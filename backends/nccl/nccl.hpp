// Collectives between GPUs by NCCL. The libraries are loaded at run time, so that one program
// serves machines with and without a GPU.
#pragma once

#include "troupe/communicator.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

namespace nccl {
struct library;
class hub;
}  // namespace nccl

struct nccl_options {
  /// Where to look for libnccl.so.2 and libcudart.so, before the system's own places and the
  /// folders beside the headers that this was built with.
  std::vector<std::string> folders;
  /// The CUDA device of a rank; empty: rank modulo the devices of this machine.
  std::function<int(const group_description&)> device_of;
  /// In place of the libraries; for tests. Null: loads them.
  std::shared_ptr<const nccl::library> functions;
};

/// Thread-safe. Beside `control`, a communicator between the same ranks on the host, which carries
/// everything but tensors: fingerprints, barriers, decisions, deadlines, aborts, and what NCCL
/// needs to connect. A tensor operation begins on the GPU once all ranks have submitted it alike.
///
/// What differs from the host communicators:
/// - Memory is that of GPUs (std::invalid_argument else), ready after the buffer's event, or where
///   the legacy default stream has got to at submission. Results may be used from any stream once
///   the work has ended, and from a stream that waits for the event of work::on_device.
/// - Bits: NCCL's own order and accumulation. Equal on all ranks, not to the canonical tree.
///   std::invalid_argument for what NCCL lacks: int16, products of complex numbers.
/// - One GPU per rank: ranks that share one get an abort that names them, where NCCL would hang.
/// - Numbers in texts of disagreements count the control group's operations, two more than the
///   tensors' from the second one of each (sub)group on.
/// - Abort: works end at once. One thread watches all groups and aborts NCCL's kernels; the group
///   is quiescent when they have ended. NCCL's asynchronous errors abort the group likewise.
/// - At most 4096 operations of a group may be in flight, two less for a (sub)group whose first one
///   has not begun (user_error beyond).
class nccl_backend final : public communicator_backend {
public:
  explicit nccl_backend(std::shared_ptr<communicator_backend> control, nccl_options options = {});
  ~nccl_backend() override;
  nccl_backend(const nccl_backend&) = delete;
  nccl_backend& operator=(const nccl_backend&) = delete;

  std::string_view name() const override { return "nccl"; }
  /// Loads the libraries at the first call.
  std::string unusable() const override;
  std::shared_ptr<communicator> open(const group_description& group) override;

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe
