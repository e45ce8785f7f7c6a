// Collectives of ranks that are threads of one process: reduced in place, between the ranks' own
// buffers, by the threads that submit and wait.
#pragma once

#include "troupe/communicator.hpp"

namespace troupe {

struct inproc_options {
  /// Cores that ranks may use; waiters spin only while there are no more ranks than cores, and no
  /// other member of the (sub)group was seen on theirs. 0: what the process is allowed to (its
  /// affinity) at construction.
  int cores = 0;
  /// Ask for huge pages for `allocate` from 4 MiB on.
  bool huge_pages = true;
};

/// The rendezvous of thread ranks. Two backend objects know nothing of each other. Thread-safe.
///
/// Beyond the port's contract:
/// - `open` throws std::invalid_argument if the description makes no sense or its world differs
///   from what the generation's other ranks said, and internal_error if the rank is open already. A
///   group is forgotten with its last handle.
/// - Operations of a (sub)group run one after the other, in order; the last rank to submit does the
///   work that no waiter takes from it, before its submission returns. At most 4096 operations of a
///   (sub)group may be in flight (user_error beyond).
/// - A (sub)group's ranks are ascending, each once. A list of the whole world is the same as an
///   empty list.
/// - A submission that is refused (std::invalid_argument) is none: the rank may submit another.
/// - Deadlines are kept by `wait` and `poll`, from the submission on, until all have arrived.
/// - `wait` throws after all threads have released the group's memory (each has at most 256 KiB of
///   work left), so that unwinding may free it.
/// - Destroying a handle while one of its operations has not ended, or while others wait for its
///   rank, aborts the group and waits likewise; afterwards an operation that needs the rank aborts
///   the group. Memory of different ranks must not overlap.
/// - `quiescent` of a group that was not aborted: nothing is in flight.
class inproc_backend final : public communicator_backend {
public:
  explicit inproc_backend(inproc_options options = {});
  ~inproc_backend() override;
  inproc_backend(const inproc_backend&) = delete;
  inproc_backend& operator=(const inproc_backend&) = delete;

  std::string_view name() const override { return "inproc"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description& group) override;

  /// Groups with an open handle.
  std::size_t groups() const;

  class hub;

private:
  std::shared_ptr<hub> hub_;
};

}  // namespace troupe
