#include "backends/wire/heartbeat_machine.hpp"

#include <utility>

#include "troupe/detail/coverage.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

heartbeat_machine::action heartbeat_machine::beat() {
  if (over_) return action::none;
  if (silent_ != never_received && ++silent_ >= heartbeats_until_lost) {
    over_ = sometimes(true, coverage_point::link_silent);
    return action::lost;
  }
  return std::exchange(quiet_, true) ? action::send_beat : action::none;
}

std::uint64_t heartbeat_machine::digest() const {
  return stable_hasher{}.add(silent_).add(quiet_).add(over_).digest();
}

std::ostream& operator<<(std::ostream& out, const heartbeat_machine& m) {
  out << "heartbeat(";
  if (m.silent_ == heartbeat_machine::never_received)
    out << "nothing received yet";
  else
    out << m.silent_ << " beats silent";
  return out << (m.over_ ? ", over)" : ")");
}

}  // namespace troupe
