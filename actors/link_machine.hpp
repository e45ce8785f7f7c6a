// One end of a link that keeps order and loses nothing while it lasts, on a path that may lose,
// repeat and reorder: numbers, cumulative acknowledgements, sending again, and silence that ends
// it. A regular value without clocks, sockets or CAF; the shell around it holds the messages by
// number and carries frames.
//
// A sender keeps what is not acknowledged, `window` messages at most: one more ends the link. A
// receiver hands on the next number, and holds what came before its turn (`window` bounds that
// too); it says how far it has heard, and which of the next ones it holds. What was there at the
// last beat and is still missing goes again, `burst` messages at most per beat: a peer that is slow
// and not deaf must not drown in repeats. Both speak every `beat`, by a message or else by an empty
// frame, so that silence means something: a peer that was not heard for `limit` is lost, on this
// side; the other side finds out for itself. What a link that has ended still hears changes
// nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <vector>

namespace troupe {

struct link_limits {
  std::chrono::nanoseconds beat{std::chrono::milliseconds{100}};
  std::chrono::nanoseconds limit{std::chrono::milliseconds{500}};
  std::uint64_t window = 1024;
  std::uint64_t burst = 16;
  friend bool operator==(const link_limits&, const link_limits&) = default;
};

/// What travels: message `number` (0: none), how far the sender of the frame has heard, and by bits
/// what it holds: the lowest one stands for `heard` + 2.
struct link_frame {
  std::uint64_t number = 0;
  std::uint64_t heard = 0;
  std::uint64_t holds = 0;
  friend bool operator==(const link_frame&, const link_frame&) = default;
};

class link_machine {
public:
  explicit link_machine(link_limits limits, std::chrono::nanoseconds now)
      : limits_(limits), last_heard_(now) {}

  /// The number of a message that is to be sent now; 0 when the window is full: the link is over.
  std::uint64_t submit();
  /// A frame for message `number`, or for none.
  link_frame frame(std::uint64_t number = 0) const { return {number, heard_, holds()}; }

  struct receipt {
    bool deliver = false;  ///< the frame's message is next, and then those held, up to `heard()`
    bool hold = false;     ///< the frame's message came before its turn: to be kept until then
    std::uint64_t release_to = 0;  ///< messages up to this number are acknowledged
  };
  receipt arrived(const link_frame& what, std::chrono::nanoseconds now);

  struct beat_result {
    bool lost = false;                 ///< the peer was silent for too long: the link is over
    std::vector<std::uint64_t> again;  ///< send these again, in order
    bool speak = false;                ///< send `frame()`: no message has gone since the last beat
  };
  /// To be called every `beat`.
  beat_result beat(std::chrono::nanoseconds now);
  void close() { over_ = true; }

  bool over() const { return over_; }
  std::uint64_t acknowledged() const { return acknowledged_; }
  std::uint64_t submitted() const { return submitted_; }
  std::uint64_t heard() const { return heard_; }
  const link_limits& limits() const { return limits_; }

  friend bool operator==(const link_machine&, const link_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const link_machine& machine);

private:
  void hear_held();
  bool hold(std::uint64_t number);
  void learn(const link_frame& what);
  std::vector<std::uint64_t> missing() const;
  std::uint64_t holds() const;

  link_limits limits_;
  std::uint64_t submitted_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t peer_holds_ = 0;  // as in a frame that says acknowledged_
  std::uint64_t submitted_at_beat_ = 0;
  std::uint64_t heard_ = 0;
  std::vector<std::uint64_t> held_;  // in order, all behind heard_ + 1
  std::chrono::nanoseconds last_heard_;
  bool over_ = false;
};

}  // namespace troupe
