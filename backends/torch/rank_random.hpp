// Randomness that belongs to a rank, never to the process: inside a random_scope every random
// operator of LibTorch on tensors of the host draws from that rank's generator. The host program's
// default generator is neither read nor moved. The rank's device, which it has for itself, keeps
// LibTorch's default generator of that device; it restarts together with the rank's own.
//
// How: a boxed kernel for each operator with a Generator argument under the dispatch key
// TESTING_ONLY_GenericMode, registered when the program loads and inert on threads that did not
// switch the key on. Operators without that argument (dropout, rand, ...) end in ones that have it.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The position in a run that random numbers depend on: equal keys give equal numbers, whatever was
/// drawn before.
struct random_key {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  std::int64_t shard = 0;
  std::string_view purpose;  ///< the hook's name; any text
};

/// One rank's generator. Used by one thread at a time.
class rank_random {
public:
  /// Begins with the stream for initialisation: the numbers that torch.manual_seed(seed) gives, so
  /// that a module starts with the weights PyTorch would give it. The same on every rank.
  explicit rank_random(std::uint64_t seed);

  void reset_for_initialisation();
  /// Restarts at the stream of (seed, key). All 64 bits of the key count. Under a microsecond.
  void reset(const random_key& key);

  std::uint64_t seed() const { return seed_; }
  const at::Generator& generator() const { return generator_; }
  /// The rank also computes on the device of `on` (accelerator::generator), which restarts with the
  /// rank's other streams.
  void add_device(at::Generator on);

private:
  std::uint64_t seed_;
  at::Generator generator_;
  at::Generator on_device_;
};

/// While it exists, random operators of this thread draw from `whose`. Scopes nest; the innermost
/// one applies. Must be destroyed in the thread that created it, in reverse order. It does not
/// affect a generator that the caller passes to an operator, nor tensors that are not on the host.
class random_scope {
public:
  explicit random_scope(rank_random& whose);
  ~random_scope();
  random_scope(const random_scope&) = delete;
  random_scope& operator=(const random_scope&) = delete;

private:
  const at::Generator* outer_;
  c10::impl::IncludeDispatchKeyGuard on_;
};

/// Random operators of the loaded LibTorch that a scope may not reach: they are not intercepted, do
/// not end in an intercepted operator as far as is known, and may run on the CPU. Empty with
/// LibTorch 2.13. `doctor` and a test check it, because new versions add operators.
std::vector<std::string> random_operators_out_of_reach();

}  // namespace troupe
