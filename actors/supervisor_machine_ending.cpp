// The supervisor machine's shutdown: closing, teardown, flushing, the outcome.
#include "actors/supervisor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

using supervision::phase;

// A rank failed in an orderly teardown: this releases the ranks that wait for it at the barrier.
void supervisor_machine::release_teardown(const failure& why, actions& out) {
  current_.orderly = false;
  out.make_room();
  for (auto& m : members_) {
    if (m.gone) continue;
    close_generation order{members_.fence_for(m), why};
    out.send(m, std::move(order));
  }
  out.arm(limits_.teardown);
}

void supervisor_machine::send_close(actions& out) {
  failure why;
  why.what = "the membership changes";
  why.generation = generation().value();
  if (failures_.first()) why = *failures_.first();
  current_.close_sent = true;
  current_.resting = false;
  current_.waits = 0;
  for (auto& m : members_) m.answered = false;
  current_.over = !recovery_.may_restart(situation());
  out.make_room();
  for (auto& m : members_) {
    if (m.gone) continue;
    close_generation order{members_.fence_for(m), why, current_.over};
    out.send(m, std::move(order));
  }
  out.arm(limits_.close);
  close_if_all_closed(out);
}

void supervisor_machine::handle(const closed_generation& e, actions& out) {
  auto* m = members_.sender(e.at);
  if (!m || phase_ != phase::closing || e.last != current_.over) return;
  // A rank that is lost may have held that point and not reported it.
  if (e.saves) commit(progress_of(e.held.loop), out);
  if (m->closed) return;
  m->point = e.held;
  m->digest = e.digest;
  m->held = std::max(m->held, progress_of(e.held.loop));
  members_.close(*m);
  close_if_all_closed(out);
}

void supervisor_machine::close_if_all_closed(actions& out) {
  if (phase_ != phase::closing || members_.unclosed() > 0 || current_.resting) return;
  if (!current_.close_sent && !current_.over) return;
  out.announce(lifecycle_kind::generation_closed);
  if (current_.over) return start_teardown(out);
  restart(out);
}

void supervisor_machine::handle(const rank_busy& e, actions&) {
  auto* m = members_.sender(e.at);
  if (!m) return;
  const bool forming = phase_ == phase::forming && !m->prepared;
  const bool ending = phase_ == phase::closing || (phase_ == phase::tearing && e.arriving);
  if (forming || ending) m->answered = !e.overdue;
  m->arriving = e.arriving;
  if (!forming || e.overdue) m->busy = e.what;
}

void supervisor_machine::handle(const supervision::rank_down& e, actions& out) {
  auto& m = members_.at(e.rank);
  if (e.incarnation != incarnation_id{} && e.incarnation != m.incarnation) return;
  auto what =
      make_failure(failure_kind::down, fmt::format("the actor of rank {} ended: {}", e.rank,
                                                   e.why.empty() ? "without a reason" : e.why));
  what.rank = e.rank;
  what.step = current_.base.reached_by(m);
  what.generation = generation().value();
  lose(m, std::move(what), false, out);
}

// Nothing of the rank is left. If the rank was about to end, only a reported failure counts.
void supervisor_machine::lose(member& m, failure what, bool reported, actions& out) {
  if (m.gone) return;
  const bool expected = m.torn_down || m.abandoned;
  sometimes(phase_ == phase::forming, coverage_point::down_in_forming);
  sometimes(phase_ == phase::tearing && !expected, coverage_point::down_before_torn);
  if (!m.abandoned) m.unresponsive.clear();
  members_.leave(m);
  if (!expected) {
    const bool missed = rules_.has_result && members_.rank_of(m) == 0;
    if (rules_.elastic.enabled() && done_ && !missed) what.follows = true;
    if (current_.over && what.hook == hooks::on_exception::name) what.follows = true;
    fail(std::move(what), out);
  } else if (reported) {
    failures_.add_late(std::move(what));
  }
  close_if_all_closed(out);
  flush_if_all_gone(out);
}

// --- taking down ---------------------------------------------------------------------------------

void supervisor_machine::start_teardown(actions& out) {
  phase_ = phase::tearing;
  out.announce(lifecycle_kind::teardown, -1, {{"orderly", current_.orderly ? "true" : "false"}});
  out.make_room();
  current_.waits = 0;
  for (auto& m : members_) {
    m.answered = false;
    if (m.gone) continue;
    tear_down order{members_.fence_for(m), current_.orderly};
    out.send(m, order);
  }
  for (const auto& p : placements_.all()) out.add(supervision::end_process{p.number});
  out.arm(current_.orderly ? limits_.orderly_teardown : limits_.teardown);
  flush_if_all_gone(out);
}

void supervisor_machine::handle(const torn_down& e, actions& out) {
  auto* m = members_.sender(e.at);
  if (members_.is_of_former(e.at))
    for (const auto& f : e.late) report_of_moved_rank(f, out);
  if (!m || phase_ != phase::tearing) return;
  m->torn_down = true;
  if (!m->abandoned) m->unresponsive.clear();
  for (const auto& f : e.late) failures_.add_late(f);
  flush_if_all_gone(out);
}

void supervisor_machine::flush_if_all_gone(actions& out) {
  if (phase_ != phase::tearing) return;
  if (members_.there() > 0 || !placements_.all().empty()) return;
  phase_ = phase::flushing_checkpointer;
  out.add(supervision::flush_checkpointer{});
  // After an abort, too, the checkpoint that rank 0 saves because the job fails is waited for.
  out.arm(recovery_.aborted() && !rules_.saves ? limits_.teardown : limits_.flush);
}

void supervisor_machine::handle(const supervision::checkpointer_done& e, actions& out) {
  for (const auto& f : e.late) failures_.add_late(f);
  if (phase_ != phase::flushing_checkpointer) return;
  phase_ = phase::flushing_observers;
  out.announce(lifecycle_kind::job_ended, -1, {{"status", failures_.first() ? "failed" : "ended"}});
  out.add(supervision::flush_observers{});
  out.arm(limits_.teardown);
}

void supervisor_machine::handle(const supervision::observers_done& e, actions& out) {
  for (const auto& f : e.late) failures_.add_late(f);
  if (phase_ == phase::flushing_observers) finish(out);
}

void supervisor_machine::finish(actions& out) {
  phase_ = phase::done;
  ++deadline_;
  supervision::complete end;
  end.loop = loop_;
  // A rank that had finished may have been beyond the committed step.
  if (failures_.first() && loop_.steps != committed_.steps) {
    end.loop = {};
    end.loop.steps = committed_.steps;
    end.loop.epoch = committed_.epoch;
    end.loop.samples = committed_.samples;
  }
  end.generation = generation();
  for (const auto& m : members_)
    if (!m.unresponsive.empty()) end.survivors.push_back(m.unresponsive);
  end.survivors.insert(end.survivors.end(), survivors_.begin(), survivors_.end());
  end.late = failures_.late();
  if (rules_.elastic.enabled()) {
    end.generations = recovery_.ended();
    end.generations.push_back(record());
  }
  end.why = current_.ended_by;
  if (failures_.first()) {
    end.status = job_outcome::ending::failed;
    end.first = failures_.whole();
  } else {
    // A run that a hook or a decider ends early is finished. A run that the caller or a signal ends
    // is stopped.
    const bool stopped = current_.ended_by == stop_reason::caller ||
                         current_.ended_by == stop_reason::interrupt ||
                         current_.ended_by == stop_reason::terminate;
    end.status = stopped ? job_outcome::ending::stopped : job_outcome::ending::finished;
  }
  out.add(std::move(end));
}

}  // namespace troupe
