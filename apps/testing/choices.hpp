// Every decision of a simulated run, drawn from one place.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::testing {

/// Where a choice is made. A case names sites by name, so the order may change.
enum class site : std::uint8_t {
  entropy,        ///< what the entropy port answers: no fault, and never shrunk
  setup,          ///< what this run is like: schedule, host layout, which faults exist (swarm)
  schedule,       ///< which runnable actor comes next
  latency,        ///< of a message, an answer, a completion: 0 is the mean
  compute,        ///< how long a hook takes: 0 is the mean
  priority,       ///< PCT: of a place; 0 is the highest
  change_point,   ///< PCT: at which event priorities change
  fault,          ///< whether and when a fault strikes
  detail,         ///< what exactly a fault does
  link,           ///< loss and duplication of one frame
  storage,        ///< faults of one operation
  rare,           ///< whether a rare path of product code exists in this run, and is taken
  stale_message,  ///< whether an old control message is heard, which one and how late
  count_,
};
std::string_view to_string(site s);

/// One draw: label and value.
struct choice {
  site where = site::schedule;
  std::uint32_t who = 0;         ///< place, link or what else the site counts by
  std::uint32_t occurrence = 0;  ///< counted per site and who, from 0
  std::uint64_t value = 0;       ///< 0 is benign
  friend bool operator==(const choice&, const choice&) = default;
};
std::ostream& operator<<(std::ostream& out, const choice& c);

/// One stream of labelled draws: of a seed, or of a recorded list in which what is missing is 0.
/// A draw depends on its label only, so a new one moves no other. Value 0 is the benign one
/// everywhere: first come first served, mean latency, no fault.
class choices {
public:
  static constexpr std::uint32_t who_max = 1 << 24;  ///< labels have room for so many

  static choices of_seed(std::uint64_t seed);
  static choices of_list(std::uint64_t seed, const std::vector<choice>& taken);

  /// In [0, bound). A bound below 2 leaves nothing to draw: 0, but it counts as an occurrence.
  std::uint64_t draw(site where, std::uint32_t who, std::uint64_t bound);
  /// One of `keys`, as its place among them. Each has a draw of its own, and the highest wins: one
  /// key more takes only what it wins. A listed value is a place, as of `draw`.
  std::uint64_t pick(site where, std::uint32_t who, std::span<const std::uint64_t> keys);
  /// True with probability `per_million`; recorded as 1.
  bool chance(site where, std::uint32_t who, std::uint32_t per_million);
  /// 64 bits that are not a choice: the same for a seed, whatever the list says.
  std::uint64_t bits(std::uint32_t who);

  /// From now on remembers draws that are not 0.
  void record() { recording_ = true; }
  const std::vector<choice>& taken() const { return taken_; }
  std::uint64_t seed() const { return seed_; }
  std::uint64_t draws() const { return draws_; }
  /// Depends on every draw so far: label and value.
  std::uint64_t digest() const { return digest_; }

private:
  // What is drawn under one site and who.
  struct stream {
    std::uint64_t noise = 0;  // of the seed and the label; known once something was drawn
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
