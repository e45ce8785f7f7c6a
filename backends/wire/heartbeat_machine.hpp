// The heartbeats of one end of a link: when to send an empty frame, and when the peer was silent
// for too long. A regular value without clocks, sockets or CAF. Order and resending are the
// stream's below.
//
// call      state                                       action
// beat      silent for `heartbeats_until_lost` beats    lost; the link is over
// beat      nothing was sent since the last beat        send_beat
// beat      otherwise, or the link is over              none
// sent      any                                         none; the next beat sends nothing
// received  any                                         none; silence is counted from 0 again
// close     any                                         none; the link is over
//
// The shell calls `beat` every `heartbeat_interval(D)`, `sent` when it sends a message, and
// `received` when bytes of the peer have arrived. It reads what has arrived before it calls `beat`.
// Silence is counted in the end's own beats, not by a clock: an end that was stopped itself counts
// one beat when it goes on. A peer from which nothing was ever received is still starting; the
// deadline of its start bounds that.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>

namespace troupe {

/// A peer is lost after so many beats without a sound: within D, and not before 4/5 of D.
inline constexpr std::int32_t heartbeats_until_lost = 5;

constexpr std::chrono::nanoseconds heartbeat_interval(std::chrono::nanoseconds detect) {
  return detect / heartbeats_until_lost;
}

class heartbeat_machine {
public:
  enum class action : std::uint8_t {
    none,
    send_beat,  ///< send an empty frame: no message has gone since the last beat
    lost,       ///< the peer was silent for too long: end the link. Said once.
  };

  void sent() { quiet_ = false; }
  void received() { silent_ = 0; }
  action beat();
  /// The link has ended: nothing is to be done any more.
  void close() { over_ = true; }
  bool over() const { return over_; }

  friend bool operator==(const heartbeat_machine&, const heartbeat_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const heartbeat_machine& machine);

private:
  static constexpr std::int32_t never_received = -1;
  std::int32_t silent_ = never_received;  // beats since bytes of the peer arrived
  bool quiet_ = true;                     // nothing was sent since the last beat
  bool over_ = false;
};

}  // namespace troupe
