#include "actors/recovery_times.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

double milliseconds(std::optional<std::chrono::nanoseconds> from, std::chrono::nanoseconds to) {
  return from ? std::chrono::duration<double, std::milli>(to - *from).count() : 0;
}

}  // namespace

void recovery_times::see(const seen::lifecycle& what, time now) {
  switch (what.event) {
    case lifecycle_kind::rank_failed:
      if (!failed_) failed_ = now;
      break;
    case lifecycle_kind::generation_closing:
      closing_ = now;
      closed_.reset();
      break;
    case lifecycle_kind::generation_closed: closed_ = now; break;
    case lifecycle_kind::generation_forming: {
      generation_ = what.generation;
      auto& mine = of_[generation_];
      mine.detect = closing_ ? milliseconds(failed_, *closing_) : 0;
      mine.abort = closed_ ? milliseconds(closing_, *closed_) : 0;
      failed_.reset();
      active_.reset();
      healing_ = 0;
      break;
    }
    case lifecycle_kind::generation_active:
      if (closed_) of_[generation_].form = milliseconds(closed_, now);
      of_[generation_].heal = 1e3 * healing_;
      active_ = now;
      break;
    default: break;
  }
}

void recovery_times::healed(double seconds) { healing_ = std::max(healing_, seconds); }

void recovery_times::committed(time now) {
  if (closed_ && active_)
    of_[generation_].first_step = milliseconds(std::exchange(active_, {}), now);
}

void recovery_times::put_into(job_outcome& outcome,
                              const std::vector<supervision::generation_end>& all) const {
  for (const auto& one : all) {
    generation_record record;
    record.generation = one.generation.value();
    record.ranks = one.ranks;
    record.base_step = one.base_step;
    record.steps_redone = one.steps_redone;
    if (one.ended_by) record.ended_by = std::make_shared<const failure>(*one.ended_by);
    record.changed = one.changed;
    if (const auto found = of_.find(record.generation); found != of_.end())
      record.milliseconds = found->second;
    if (record.ended_by && &one != &all.back()) ++outcome.restarts;
    outcome.generations.push_back(std::move(record));
  }
}

}  // namespace troupe
