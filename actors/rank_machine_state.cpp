// The rank machine as a value: its digest and its words.
#include "actors/rank_machine.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

namespace ranks {

std::string_view to_string(phase p) {
  switch (p) {
    case phase::waiting: return "waiting";
    case phase::reopening: return "reopening";
    case phase::opening: return "opening";
    case phase::setting_up: return "setting_up";
    case phase::restoring: return "restoring";
    case phase::prepared: return "prepared";
    case phase::active: return "active";
    case phase::finished: return "finished";
    case phase::failed: return "failed";
    case phase::closing: return "closing";
    case phase::closed: return "closed";
    case phase::tearing: return "tearing";
    case phase::ending: return "ending";
    case phase::gone: return "gone";
  }
  return "unknown";
}

}  // namespace ranks

std::uint64_t rank_machine::digest() const {
  stable_hasher hash;
  hash.add(plan_.rank).add(plan_.incarnation.value()).add(plan_.job.value());
  hash.add(mine_.generation.value()).add(mine_.sequence.value()).add(phase_);
  hash.add(fit_.digest()).add(in_flight_.has_value());
  if (in_flight_) hash.add(in_flight_->value());
  here_.add_to(hash);
  hash.add(late_.size()).add(failures_);
  if (plan_.fit->keeps_points) {
    hash.add(reopening_).add(used_).add(torn_).add(std::string_view{digest_});
    if (next_) next_->add_to(hash);
  }
  return hash.digest();
}

std::ostream& operator<<(std::ostream& out, const rank_machine& machine) {
  out << "rank " << machine.plan_.rank << ' ' << to_string(machine.phase_) << " generation "
      << machine.mine_.generation << " run " << machine.mine_.sequence
      << (machine.in_flight_ ? " in flight" : "") << "; " << machine.fit_;
  return out;
}

}  // namespace troupe
