#include "apps/testing/exhaustive/small_job_moves.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::testing {

using lane_stage = rank_part::lane_stage;

small_job_space::small_job_space(const exhaustive_options& options, rank_permutations symmetry)
    : options_(options), tables_(options, std::move(symmetry)) {}

small_job_state small_job_space::start() {
  small_job_state s{};
  const auto begun = tables_.begun_supervisor();
  s[0] = begun.next;
  for (const auto& [rank, part] : begun.started) s[side_of(rank)] = part;
  for (const auto& [rank, order] : begun.sent)
    s[inbox_of(rank)] = tables_.longer(s[inbox_of(rank)], order);
  return s;
}

// --- what may happen -----------------------------------------------------------------------------

void small_job_space::moves(const small_job_state& s, std::vector<small_job_move>& out) {
  out.clear();
  if (ended(s)) return;
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    if (s[mail_of(r)] != 0)
      out.push_back({move_kind::supervisor_receives, static_cast<std::uint8_t>(r)});
    rank_moves_of(s, r, out);
  }
  if (out.empty()) late_moves(s, out);
  if (faults_used(s) < options_.budget && !options_.faults.empty()) return fault_moves(s, out);
  if (options_.reduce && out.size() > 1) keep_one_rank(s, out) || keep_supervisor(s, out);
}

bool small_job_space::collective_complete(const small_job_state& s, std::int32_t r) const {
  const auto mine = tables_.rank(s[side_of(r)]).rendezvous_kinds;
  const auto generation = tables_.rank(s[side_of(r)]).generation;
  for (std::int32_t q = 0; q < options_.ranks; ++q) {
    const auto& other = tables_.rank(s[side_of(q)]);
    if (other.generation < generation || other.rendezvous_kinds < mine) return false;
  }
  return true;
}

void small_job_space::rank_moves_of(const small_job_state& s, std::int32_t r,
                                    std::vector<small_job_move>& out) const {
  const auto& facts = tables_.rank(s[side_of(r)]);
  if (facts.gone) return;
  const auto rank = static_cast<std::uint8_t>(r);
  const auto may = [&](rank_move what) {
    out.push_back({move_kind::rank_does, rank, static_cast<std::uint8_t>(what)});
  };
  if (s[inbox_of(r)] != 0) out.push_back({move_kind::rank_receives, rank});
  if (facts.opening) may(rank_move::opens);
  switch (facts.stage) {
    case lane_stage::idle:
      if (facts.lane_ends) may(rank_move::lane_ends);
      break;
    case lane_stage::before:
      if (!facts.meets) {
        may(rank_move::answers);
        break;
      }
      may(aborted(s) ? rank_move::follows : rank_move::arrives);
      if (facts.attention) may(rank_move::attends);
      break;
    case lane_stage::waits:  // a complete collective stays complete: an abort is too late for it
      if (collective_complete(s, r))
        may(rank_move::passes);
      else if (aborted(s))
        may(rank_move::follows);
      break;
    case lane_stage::after: may(rank_move::answers); break;
  }
}

// Time passes. The supervisor's deadlines are shorter than a collective's.
void small_job_space::late_moves(const small_job_state& s, std::vector<small_job_move>& out) const {
  if (tables_.supervisor(s[0]).waits) {
    out.push_back({move_kind::deadline});
    return;
  }
  for (std::int32_t r = 0; r < options_.ranks; ++r)
    if (tables_.rank(s[side_of(r)]).stage == lane_stage::waits)
      out.push_back({move_kind::rank_does, static_cast<std::uint8_t>(r),
                     static_cast<std::uint8_t>(rank_move::peers_missing)});
}

void small_job_space::fault_moves(const small_job_state& s,
                                  std::vector<small_job_move>& out) const {
  const auto before = faults_of(s);
  for (const auto what : options_.faults) {
    const auto is_what = [what](const auto& fault) { return fault.first == what; };
    if (options_.once && std::ranges::any_of(before, is_what)) continue;
    const auto may = [&](std::int32_t r, bool to_supervisor = false) {
      out.push_back({move_kind::fault, static_cast<std::uint8_t>(r),
                     static_cast<std::uint8_t>(what), to_supervisor});
    };
    if (what == small_fault::stops || what == small_fault::aborts) may(0);
    if (what == small_fault::early_deadline && tables_.supervisor(s[0]).waits) may(0);
    for (std::int32_t r = 0; r < options_.ranks; ++r) {
      const auto& facts = tables_.rank(s[side_of(r)]);
      const bool works = facts.stage == lane_stage::before || facts.stage == lane_stage::after;
      if (what == small_fault::throws && works) may(r);
      if ((what == small_fault::vanishes || what == small_fault::leaves) && !facts.gone) may(r);
      if (what != small_fault::loses && what != small_fault::repeats) continue;
      if (s[inbox_of(r)] != 0) may(r);
      if (s[mail_of(r)] != 0 && !tables_.is_down(tables_.head(s[mail_of(r)]))) may(r, true);
    }
  }
}

// --- reduction -----------------------------------------------------------------------------------

bool small_job_space::lane_is_its_own(const small_job_state& s, std::int32_t r) const {
  const auto& facts = tables_.rank(s[side_of(r)]);
  switch (facts.stage) {
    case lane_stage::idle:
    case lane_stage::after: return true;
    case lane_stage::before: return !facts.meets || aborted(s);
    case lane_stage::waits: return collective_complete(s, r) || aborted(s);
  }
  return false;
}

bool small_job_space::keep_one_rank(const small_job_state& s, std::vector<small_job_move>& out) {
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    if (s[inbox_of(r)] == 0 || tables_.rank(s[side_of(r)]).gone || !lane_is_its_own(s, r)) continue;
    const auto is_its = [&](const small_job_move& m) {
      return m.kind != move_kind::supervisor_receives && m.rank == r;
    };
    const auto steps = tables_.rank(s[side_of(r)]).steps;
    const auto is_seen = [&](const small_job_move& m) {
      if (!is_its(m)) return false;
      const auto& outcome = m.kind == move_kind::rank_receives
                                ? tables_.rank_after(s[side_of(r)], tables_.head(s[inbox_of(r)]))
                                : tables_.after(s[side_of(r)], static_cast<rank_move>(m.what));
      return (outcome.aborts && !aborted(s)) || tables_.rank(outcome.next).steps != steps;
    };
    if (std::ranges::any_of(out, is_seen)) continue;
    std::erase_if(out, [&](const small_job_move& m) { return !is_its(m); });
    return true;
  }
  return false;
}

bool small_job_space::silent(const small_job_state& s, std::int32_t r) const {
  const auto& facts = tables_.rank(s[side_of(r)]);
  return facts.gone || (facts.stage == lane_stage::idle && !facts.opening && !facts.lane_ends &&
                        s[inbox_of(r)] == 0);
}

bool small_job_space::keep_supervisor(const small_job_state& s,
                                      std::vector<small_job_move>& out) const {
  bool any = false;
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    if (s[mail_of(r)] == 0) {
      if (!silent(s, r)) return false;
      continue;
    }
    if (tables_.may_commit(tables_.head(s[mail_of(r)]))) return false;
    any = true;
  }
  if (!any) return false;
  std::erase_if(out,
                [](const small_job_move& m) { return m.kind != move_kind::supervisor_receives; });
  return true;
}

// --- images of states under permutations of the ranks --------------------------------------------

namespace {

bool is_of_rank(small_fault what) {
  switch (what) {
    case small_fault::throws:
    case small_fault::vanishes:
    case small_fault::leaves:
    case small_fault::loses:
    case small_fault::repeats: return true;
    default: return false;
  }
}

}  // namespace

small_job_state small_job_space::image(const small_job_state& s, std::size_t permutation) {
  small_job_state out{};
  out[0] = tables_.supervisor_image(s[0], permutation);
  out[flags] = s[flags];
  if (faults_used(s) == 1) {  // of two faults the ranks are not kept
    auto faults = faults_of(s);
    if (is_of_rank(faults[0].first))
      faults[0].second = symmetry().rank(permutation, faults[0].second);
    set_faults(out, faults);
  }
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    const auto to = symmetry().rank(permutation, r);
    out[side_of(to)] = tables_.rank_image(s[side_of(r)], permutation);
    out[inbox_of(to)] = tables_.queue_image(s[inbox_of(r)], permutation);
    out[mail_of(to)] = tables_.queue_image(s[mail_of(r)], permutation);
  }
  return out;
}

small_job_move small_job_space::image(const small_job_move& move, std::size_t permutation) const {
  auto out = move;
  const bool of_rank = move.kind == move_kind::fault ? is_of_rank(small_fault{move.what})
                                                     : move.kind != move_kind::deadline;
  if (of_rank) out.rank = static_cast<std::uint8_t>(symmetry().rank(permutation, move.rank));
  return out;
}

// The image with the lowest numbers.
std::size_t small_job_space::make_canonical(small_job_state& s) {
  std::uint32_t lowest = s[0];
  for (std::size_t p = 1; p < symmetry().size(); ++p)
    lowest = std::min(lowest, tables_.supervisor_image(s[0], p));
  std::optional<small_job_state> best;
  std::size_t by = 0;
  for (std::size_t p = 0; p < symmetry().size(); ++p) {
    if (tables_.supervisor_image(s[0], p) != lowest) continue;
    auto one = p == 0 ? s : image(s, p);
    if (best && *best <= one) continue;
    best = one;
    by = p;
  }
  s = *best;
  return by;
}

// --- what it leads to ----------------------------------------------------------------------------

std::string small_job_space::make(small_job_state& s, const small_job_move& move) {
  const std::int32_t r = move.rank;
  std::string wrong;
  const bool late =
      move.kind == move_kind::deadline || (move.kind == move_kind::rank_does &&
                                           move.what == static_cast<int>(rank_move::peers_missing));
  if (late && !may_be_late(s)) return "nothing was lost, but it goes on only by a deadline";
  switch (move.kind) {
    case move_kind::supervisor_receives: {
      const auto event = tables_.head(s[mail_of(r)]);
      s[mail_of(r)] = tables_.rest(s[mail_of(r)]);
      wrong = supervise(s, event);
      break;
    }
    case move_kind::rank_receives: wrong = receive_order(s, r, true); break;
    case move_kind::rank_does:
      wrong = take(s, r, tables_.after(s[side_of(r)], static_cast<rank_move>(move.what)));
      break;
    case move_kind::deadline: wrong = supervise(s, tables_.supervisor(s[0]).deadline); break;
    case move_kind::fault: wrong = do_fault(s, move); break;
  }
  return wrong.empty() ? check_state(s) : wrong;
}

std::string small_job_space::receive_order(small_job_state& s, std::int32_t r, bool pops) {
  const auto order = tables_.head(s[inbox_of(r)]);
  if (pops) s[inbox_of(r)] = tables_.rest(s[inbox_of(r)]);
  return take(s, r, tables_.rank_after(s[side_of(r)], order));
}

std::string small_job_space::take(small_job_state& s, std::int32_t r, const rank_outcome& out) {
  if (!out.broken.empty()) return fmt::format("rank {}: {}", r, out.broken);
  s[side_of(r)] = out.next;
  for (const auto message : out.sent) s[mail_of(r)] = tables_.longer(s[mail_of(r)], message);
  if (out.aborts) abort(s, r);
  if (tables_.rank(out.next).gone) s[inbox_of(r)] = 0;
  return {};
}

// The communicator of this rank. Those of earlier generations are aborted already.
void small_job_space::abort(small_job_state& s, std::int32_t r) const {
  if (tables_.rank(s[side_of(r)]).generation == tables_.supervisor(s[0]).generation) s[flags] |= 1;
}

// In a new generation a rank that is lost begins anew. What it sent before may still come.
std::string small_job_space::form(small_job_state& s, const supervisor_outcome& out) const {
  s[flags] &= ~std::uint32_t{1};
  std::vector<bool> stays(static_cast<std::size_t>(options_.ranks), true);
  for (const auto& [rank, part] : out.started) {
    if (!tables_.rank(s[side_of(rank)]).gone)
      return fmt::format("rank {} is replaced, but is still there", rank);
    stays[static_cast<std::size_t>(rank)] = false;
    s[side_of(rank)] = part;
    s[inbox_of(rank)] = 0;
  }
  std::uint64_t highest = 0;
  for (std::int32_t r = 0; r < options_.ranks; ++r)
    if (stays[static_cast<std::size_t>(r)])
      highest = std::max(highest, tables_.rank(s[side_of(r)]).held);
  if (out.formed->base.number != highest)
    return fmt::format("the base is point {}, but a rank holds point {}", out.formed->base.number,
                       highest);
  std::vector<std::int32_t> holders;
  for (std::int32_t r = 0; r < options_.ranks; ++r)
    if (highest > 0 && stays[static_cast<std::size_t>(r)] &&
        tables_.rank(s[side_of(r)]).held == highest)
      holders.push_back(r);
  if (out.formed->holders != holders) return "the base is held by other ranks than the order names";
  return {};
}

std::string small_job_space::supervise(small_job_state& s, message_number event) {
  const auto former = tables_.supervisor(s[0]).committed;
  const auto out = tables_.supervisor_after(s[0], event);
  if (!out.broken.empty()) return "supervisor: " + out.broken;
  for (const auto rank : out.abandoned)
    if (!tables_.rank(s[side_of(rank)]).gone) {
      take(s, rank, tables_.after(s[side_of(rank)], rank_move::vanishes));
      abort(s, rank);
    }
  s[0] = out.next;
  if (out.formed)
    if (auto wrong = form(s, out); !wrong.empty()) return wrong;
  for (const auto& [rank, order] : out.sent)
    if (!tables_.rank(s[side_of(rank)]).gone)
      s[inbox_of(rank)] = tables_.longer(s[inbox_of(rank)], order);
  if (out.committed != undefined && out.formed) {  // the ranks have lost what was committed
    if (out.committed >= former)
      return fmt::format("a new generation goes from step {} to {}", former, out.committed);
  } else if (out.committed != undefined) {
    if (out.committed <= former)
      return fmt::format("step {} was committed after step {}", out.committed, former);
    for (std::int32_t q = 0; q < options_.ranks; ++q)
      if (const auto holds = tables_.rank(s[side_of(q)]).steps; holds < out.committed)
        return fmt::format("step {} was committed, but rank {} holds {}", out.committed, q, holds);
  }
  return {};
}

// A deadline may pass only when a message was lost.
bool small_job_space::may_be_late(const small_job_state& s) const {
  return std::ranges::any_of(faults_of(s),
                             [](const auto& f) { return f.first == small_fault::loses; });
}

// An early deadline has given up ranks. Other early deadlines only shorten a pause.
bool small_job_space::gave_up_early(const small_job_state& s) const {
  return std::ranges::any_of(faults_of(s), [](const auto& f) {
    return f.first == small_fault::early_deadline && f.second != 0;
  });
}

std::vector<std::pair<small_fault, std::int32_t>> small_job_space::faults_of(
    const small_job_state& s) const {
  std::vector<std::pair<small_fault, std::int32_t>> all;
  for (std::uint32_t i = 0; i < faults_used(s); ++i) {
    const auto bits = s[flags] >> (4 + 8 * i);
    all.emplace_back(static_cast<small_fault>(bits & 15),
                     static_cast<std::int32_t>(bits >> 4 & 15));
  }
  return all;
}

// Keeps only what is read later: of one fault its rank, of two the kinds in any order.
void small_job_space::note_fault(small_job_state& s, small_fault what, std::int32_t detail) const {
  auto all = faults_of(s);
  all.emplace_back(what, detail);
  if (all.size() > 1)
    for (auto& [kind, rank] : all)
      if (kind != small_fault::early_deadline) rank = 0;
  std::ranges::sort(all);
  set_faults(s, all);
}

void small_job_space::set_faults(
    small_job_state& s, const std::vector<std::pair<small_fault, std::int32_t>>& all) const {
  s[flags] = (s[flags] & 1) | static_cast<std::uint32_t>(all.size()) << 1;
  for (std::size_t i = 0; i < all.size(); ++i)
    s[flags] |=
        (static_cast<std::uint32_t>(all[i].first) | static_cast<std::uint32_t>(all[i].second) << 4)
        << (4 + 8 * i);
}

std::string small_job_space::do_fault(small_job_state& s, const small_job_move& move) {
  const std::int32_t r = move.rank;
  const auto what = static_cast<small_fault>(move.what);
  // Instead of a rank: whether the supervisor gives up those ranks that have not answered.
  const auto phase = tables_.supervisor_value(s[0]).machine.phase();
  const bool gives_up = phase == supervision::phase::tearing ||
                        (options_.restarts > 0 && phase == supervision::phase::closing);
  const auto detail = what == small_fault::early_deadline ? gives_up : is_of_rank(what) ? r : 0;
  note_fault(s, what, detail);
  auto& queue = s[move.to_supervisor ? mail_of(r) : inbox_of(r)];
  switch (what) {
    case small_fault::none: return {};
    case small_fault::throws: return take(s, r, tables_.after(s[side_of(r)], rank_move::throws));
    case small_fault::leaves: abort(s, r); [[fallthrough]];
    case small_fault::vanishes:
      return take(s, r, tables_.after(s[side_of(r)], rank_move::vanishes));
    case small_fault::stops: return supervise(s, tables_.stop());
    case small_fault::aborts: return supervise(s, tables_.abort());
    case small_fault::early_deadline: return supervise(s, tables_.supervisor(s[0]).deadline);
    case small_fault::loses: queue = tables_.rest(queue); return {};
    case small_fault::repeats:
      return move.to_supervisor ? supervise(s, tables_.head(queue)) : receive_order(s, r, false);
  }
  return {};
}

}  // namespace troupe::testing
