// The rest of the supervisor machine: unresponsive ranks, counts, and the machine as a value.
#include "actors/supervisor_machine.hpp"

#include <utility>

#include "troupe/detail/stable_hash.hpp"

#include <fmt/format.h>

namespace troupe {

namespace supervision {

std::string_view to_string(phase p) {
  switch (p) {
    case phase::idle: return "idle";
    case phase::forming: return "forming";
    case phase::active: return "active";
    case phase::closing: return "closing";
    case phase::tearing: return "tearing";
    case phase::flushing_checkpointer: return "flushing_checkpointer";
    case phase::flushing_observers: return "flushing_observers";
    case phase::done: return "done";
  }
  return "unknown";
}

}  // namespace supervision

std::uint64_t supervisor_machine::digest() const {
  stable_hasher hash;
  hash.add(members_.job().value()).add(phase_).add(generation().value()).add(committed_.steps);
  hash.add(deadline_).add(stop_);
  current_.add_to(hash);
  hash.add(loop_.steps).add(loop_.epoch).add(loop_.batch).add(loop_.samples);
  for (const auto& m : members_) {
    hash.add(m.incarnation.value())
        .add(m.prepared)
        .add(m.answered)
        .add(m.held.steps)
        .add(m.vote)
        .add(m.finished);
    hash.add(m.closed).add(m.torn_down).add(m.gone).add(m.abandoned).add(std::string_view{m.busy});
    hash.add(std::string_view{m.unresponsive}).add(m.arriving);
  }
  if (scales_) hash.add(scales_);
  if (recovery_.aborted()) hash.add(true).add(rules_.saves);
  failures_.add_to(hash);
  for (const auto& s : survivors_) hash.add(std::string_view{s});
  if (rules_.elastic.enabled()) {
    recovery_.add_to(hash);
    hash.add(done_);
    for (const auto& m : members_) hash.add(m.point.number).add(std::string_view{m.digest});
  }
  return hash.digest();
}

std::ostream& operator<<(std::ostream& out, const supervisor_machine& machine) {
  out << "supervisor " << to_string(machine.phase_) << " generation " << machine.generation()
      << " committed " << machine.committed_.steps;
  for (const auto& m : machine.members_) {
    out << "; rank " << machine.members_.rank_of(m) << (m.prepared ? " prepared" : "") << " holds "
        << m.held.steps;
    if (m.vote) out << " votes " << *m.vote;
    out << (m.finished ? " finished" : "") << (m.closed ? " closed" : "")
        << (m.torn_down ? " torn" : "") << (m.gone ? " gone" : "")
        << (m.abandoned ? " abandoned" : "");
  }
  if (const auto& first = machine.failures_.first()) out << "; first cause: " << render(*first);
  return out;
}

}  // namespace troupe
