// Helpers of the communicator conformance suite: adapters, ranks on threads, turnstiles. Each case
// is written once against the port. A new adapter is one line in communicator_suite.cpp.
#pragma once

#include "tests/conformance/port_cases.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/thrown.hpp"
#include "troupe/communicator.hpp"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::testing {

/// One adapter under test. `make` returns a fresh backend that all ranks of a case share.
struct communicator_adapter {
  std::string name;
  std::function<std::shared_ptr<communicator_backend>()> make;
  /// generations of the leak test; fewer for slow adapters
  std::uint64_t generations = sanitized ? 100 : 1000;
};
const std::vector<communicator_adapter>& communicator_adapters();

/// True if an abort ends the group on all ranks at once; false if it travels over a network first.
bool ends_at_once(const communicator_backend& backend);
/// Returns when groups whose handles are closed have no background work left.
void settle(communicator_backend& backend);
void await_abort(const communicator& c);

/// Opens the handles of one generation and runs one thread per rank on them. Handles stay open
/// until `close` or destruction, so that a rank that is done early does not end the group of the
/// others.
class company {
public:
  company(communicator_backend& backend, std::int32_t world, std::uint64_t generation = 1,
          std::chrono::nanoseconds deadline = std::chrono::nanoseconds{0});

  communicator& operator[](std::int32_t rank) { return *handles_.at(rank); }
  std::int32_t size() const { return static_cast<std::int32_t>(handles_.size()); }
  void close(std::int32_t rank) { handles_.at(rank).reset(); }

  using body = std::function<void(communicator&)>;
  /// Runs `what` on one thread per rank and rethrows the exception of the lowest rank.
  void run(const body& what);
  /// The same, but returns what each rank threw; null for ranks that did not throw.
  std::vector<std::exception_ptr> attempt(const body& what);

private:
  std::vector<std::shared_ptr<communicator>> handles_;
};

/// Lets threads pass one after the other: `await(n)` returns after n calls of `pass`.
class turnstile {
public:
  void await(int turn);
  void pass();

private:
  std::mutex mutex_;
  std::condition_variable moved_;
  int turn_ = 0;
};

/// Catch2 2 does not support assertions on other threads. This throws an exception, which `attempt`
/// and `run` hand to the main thread.
void expect(bool condition, const std::string& what);

/// Runs `what(backend, world)` for every adapter and world size of the suite.
void for_each_world(const std::function<void(communicator_backend&, std::int32_t)>& what);
/// The same for worlds of `least` or more ranks.
void for_each_world_from(std::int32_t least,
                         const std::function<void(communicator_backend&, std::int32_t)>& what);

/// One vector per rank, filled with ones.
inline std::vector<std::vector<float>> ones(std::int32_t world, std::size_t count) {
  return std::vector<std::vector<float>>(world, std::vector<float>(count, 1.0f));
}

}  // namespace troupe::testing
