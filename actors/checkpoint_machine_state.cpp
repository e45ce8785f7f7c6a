// The checkpoint machine as a value: its digest and its words.
#include "actors/checkpoint_machine.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

namespace checkpointing {

namespace {

struct words {
  std::ostream& out;

  void operator()(const write_file& x) const { out << "write " << x.path; }
  void operator()(const storage_ops::make_folder& x) const { out << "make folder " << x.path; }
  void operator()(const storage_ops::sync_folder& x) const { out << "sync " << x.path; }
  void operator()(const storage_ops::rename& x) const {
    out << "rename " << x.from << " to " << x.to;
  }
  void operator()(const storage_ops::remove& x) const { out << "remove " << x.path; }
  void operator()(const storage_ops::link& x) const {
    out << "link " << x.path << " to " << x.target;
  }
  void operator()(const storage_ops::list& x) const { out << "list " << x.path; }
  void operator()(const storage_ops::read& x) const { out << "read " << x.path; }

  void operator()(const open& x) const { out << "open " << x.ticket; }
  void operator()(const drop& x) const { out << "drop " << x.ticket; }
  void operator()(const store& x) const {
    out << x.number << ": ";
    std::visit(*this, x.what);
  }
  void operator()(const written& x) const {
    out << "written step " << x.step << " " << x.path << " best " << x.best;
    if (x.skipped > 0) out << " skipped " << x.skipped;
  }
  void operator()(const found& x) const { out << "found best " << x.best; }
  void operator()(const failed& x) const { out << "failed step " << x.step << ": " << x.text; }
  void operator()(const flushed& x) const { out << "flushed" << (x.lost ? ", lost" : ""); }
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const action& a) {
  std::visit(words{out}, a);
  return out;
}

std::string_view to_string(phase p) {
  switch (p) {
    case phase::asleep: return "asleep";
    case phase::listing: return "listing";
    case phase::making: return "making";
    case phase::reading: return "reading";
    case phase::sweeping: return "sweeping";
    case phase::idle: return "idle";
    case phase::opening: return "opening";
    case phase::writing: return "writing";
    case phase::publishing: return "publishing";
    case phase::retiring: return "retiring";
    case phase::undoing: return "undoing";
  }
  return "unknown";
}

}  // namespace checkpointing

namespace {

void add(stable_hasher& hash, const checkpointing::offered& x) {
  hash.add(x.ticket).add(x.step).add(x.generation.value()).add(x.must);
  hash.add(x.has_monitor).add(x.monitor).add(x.skipped);
}

}  // namespace

// Leaves out the operations of script_: they follow from the phase and from the members that are
// hashed here. Only the names of a snapshot's files do not.
std::uint64_t checkpoint_machine::digest() const {
  stable_hasher hash;
  hash.add(phase_).add(at_).add(number_).add(generation_.value()).add(flush_).add(script_.size());
  hash.add(std::string_view{why_}).add(std::string_view{given_.folder}).add(given_.resumed);
  hash.add(committed_).add(skipped_).add(lost_).add(early_.size());
  for (const auto& one : early_) add(hash, one);
  add(hash, current_);
  hash.add(waiting_.size());
  for (const auto& one : waiting_) add(hash, one);
  hash.add(kept_.size());
  for (const auto& one : kept_) hash.add(one.step).add(one.has_monitor).add(one.monitor);
  hash.add(abandoned_.size());
  for (const auto step : abandoned_) hash.add(step);
  hash.add(retiring_.size());
  for (const auto step : retiring_) hash.add(step);
  hash.add(leftovers_.size());
  for (const auto& path : leftovers_) hash.add(std::string_view{path});
  return hash.digest();
}

std::ostream& operator<<(std::ostream& out, const checkpoint_machine& machine) {
  out << "checkpoints " << to_string(machine.phase_);
  if (machine.current_.ticket != 0) out << " step " << machine.current_.step;
  if (machine.at_ < machine.script_.size()) {
    out << " at ";
    std::visit(checkpointing::words{out}, machine.script_[machine.at_]);
  }
  for (const auto& one : machine.waiting_)
    out << "; waits: step " << one.step << (one.must ? " (must)" : "");
  for (const auto& one : machine.early_) out << "; not committed: step " << one.step;
  for (const auto& one : machine.kept_) {
    out << "; kept: step " << one.step;
    if (one.has_monitor) out << " (" << one.monitor << ")";
  }
  for (const auto step : machine.abandoned_) out << "; given up: step " << step;
  if (!machine.why_.empty()) out << "; failing: " << machine.why_;
  return out << (machine.flush_ ? "; to be flushed" : "");
}

}  // namespace troupe
