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
  hash.add(mine_.generation.value()).add(mine_.sequence.value()).add(world_).add(phase_);
  hash.add(fit_.digest()).add(in_flight_.has_value());
  if (in_flight_) hash.add(in_flight_->value());
  hash.add(std::string_view{first_.type}).add(std::string_view{first_.what});
  hash.add(ended_by_).add(std::string_view{failed_with_.type}).add(failed_with_.step);
  hash.add(orderly_).add(tear_down_asked_).add(overdue_).add(late_.size());
  hash.add(failures_);
  if (plan_.fit->keeps_points) {
    hash.add(base_.number).add(holders_.size()).add(reopening_).add(used_);
    hash.add(next_ ? next_->at.generation.value() : 0);
    hash.add(torn_).add(rewinding_).add(over_).add(std::string_view{digest_});
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
