// All random decisions of a simulated run are drawn here.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::testing {

/// The purpose of a draw. A case names sites by name, so their order may change.
enum class site : std::uint8_t {
  entropy,        ///< answers of the entropy port: no fault, never shrunk
  setup,          ///< the run's schedule, host layout and existing faults (swarm)
  schedule,       ///< which runnable actor runs next
  latency,        ///< of a message, an answer or a completion; 0 is the mean
  compute,        ///< duration of a hook; 0 is the mean
  priority,       ///< PCT: priority of a node; 0 is the highest
  change_point,   ///< PCT: the event at which priorities change
  fault,          ///< whether and when a fault is applied
  detail,         ///< parameters of a fault
  link,           ///< loss and duplication of a frame
  storage,        ///< faults of a storage operation
  rare,           ///< whether a rare path of product code exists in this run and is taken
  stale_message,  ///< whether a stale control message is delivered, which one, and how late
  count_,
};
std::string_view to_string(site s);

/// One draw: its label and its value.
struct choice {
  site where = site::schedule;
  std::uint32_t who = 0;         ///< node, link, or what else the site counts by
  std::uint32_t occurrence = 0;  ///< counted per site and `who`, from 0
  std::uint64_t value = 0;       ///< 0 is the benign value
  friend bool operator==(const choice&, const choice&) = default;
};
std::ostream& operator<<(std::ostream& out, const choice& c);

/// A stream of labelled draws, made from a seed or read from a recorded list (missing draws are 0).
/// A draw depends on its label only, so a new draw changes no other. Value 0 is always the benign
/// one: first come first served, mean latency, no fault.
class choices {
public:
  static constexpr std::uint32_t who_max = 1 << 24;  ///< bound of `who` in a label

  static choices of_seed(std::uint64_t seed);
  static choices of_list(std::uint64_t seed, const std::vector<choice>& taken);

  /// Returns a value in [0, bound). With a bound below 2 the value is 0 and the occurrence is still
  /// counted.
  std::uint64_t draw(site where, std::uint32_t who, std::uint64_t bound);
  /// Returns the index of one of `keys`. Each key has its own draw and the highest one wins, so an
  /// added key changes the result only when it wins. A listed value is an index, as for `draw`.
  std::uint64_t pick(site where, std::uint32_t who, std::span<const std::uint64_t> keys);
  /// Returns true with probability `per_million`, recorded as 1.
  bool chance(site where, std::uint32_t who, std::uint32_t per_million);
  /// Returns 64 bits that are not a choice: they depend on the seed, never on the list.
  std::uint64_t bits(std::uint32_t who);

  /// Records non-zero draws from now on.
  void record() { recording_ = true; }
  const std::vector<choice>& taken() const { return taken_; }
  std::uint64_t seed() const { return seed_; }
  std::uint64_t draws() const { return draws_; }
  /// Digest of the labels and values of all draws so far.
  std::uint64_t digest() const { return digest_; }

private:
  // The state of one (site, who) pair.
  struct stream {
    std::uint64_t noise = 0;  // hash of seed and label; valid after the first draw
    std::uint32_t occurred = 0;
  };
  struct next_draw {
    std::uint32_t occurrence;
    std::uint64_t noise;
  };
  void begin(site where, std::uint32_t who);
  next_draw next(site where, std::uint32_t who);
  stream* plain(site where, std::uint32_t who);
  std::uint64_t draw_slowly(site where, std::uint32_t who, std::uint64_t bound);
  bool chance_slowly(site where, std::uint32_t who, std::uint32_t per_million);
  void count(std::uint64_t key, std::uint64_t value);
  std::uint64_t listed(site where, std::uint32_t who, std::uint32_t occurrence,
                       std::uint64_t bound);
  std::uint64_t note(site where, std::uint32_t who, std::uint32_t occurrence, std::uint64_t value);

  std::uint64_t seed_ = 0;
  bool from_list_ = false;
  std::unordered_map<std::uint64_t, std::uint64_t> listed_;
  std::array<std::vector<stream>, static_cast<std::size_t>(site::count_)> streams_;
  bool recording_ = false;
  std::vector<choice> taken_;
  std::uint64_t draws_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace troupe::testing
