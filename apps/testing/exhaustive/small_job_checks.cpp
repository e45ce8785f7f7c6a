// Properties of the search of a small job, and texts of its states.
#include "apps/testing/exhaustive/small_job_moves.hpp"

#include "troupe/detail/stable_hash.hpp"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <sstream>
#include <tuple>

namespace troupe::testing {

namespace {

bool comes_before(const failure& a, const failure& b) {
  const auto key = [](const failure& f) {
    return std::tuple{f.follows, f.generation, f.step, f.sequence};
  };
  return key(a) < key(b);
}

template <class Is>
std::ptrdiff_t count_in_earlier(const supervision::complete& end, Is is) {
  std::ptrdiff_t all = 0;
  for (std::size_t i = 0; i + 1 < end.generations.size(); ++i) {
    const auto& by = *end.generations[i].ended_by;
    all += std::ranges::count_if(by.others, is) + (is(by) ? 1 : 0);
  }
  return all;
}

std::string first_word(const std::string& text) { return text.substr(0, text.find(' ')); }

}  // namespace

std::string small_job_space::check_state(const small_job_state& s) const {
  const auto& supervisor = tables_.supervisor(s[0]);
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    const auto& facts = tables_.rank(s[side_of(r)]);
    if (facts.active && facts.generation != supervisor.generation)
      return fmt::format("rank {} is active in generation {}, the supervisor is in {}", r,
                         facts.generation, supervisor.generation);
  }
  return {};
}

std::string small_job_space::check_end(const small_job_state& s) const {
  const auto& part = tables_.supervisor_value(s[0]);
  const auto& end = *part.end;
  if (options_.end_must)
    if (auto wrong = options_.end_must(end); !wrong.empty()) return wrong;
  const auto faults = faults_of(s);
  const auto had = [&](small_fault what) {
    return std::ranges::any_of(faults, [&](const auto& f) { return f.first == what; });
  };
  for (std::int32_t r = 0; r < options_.ranks; ++r)
    if (!tables_.rank(s[side_of(r)]).gone)
      return fmt::format("the job is complete, but rank {} is still there", r);
  if (!end.survivors.empty() && !had(small_fault::loses) && !gave_up_early(s))
    return fmt::format("a survivor where everyone answered: {}", end.survivors.front());
  if (auto wrong = check_generations(s); !wrong.empty()) return wrong;
  if (end.status == job_outcome::ending::failed) return check_first_cause(s);
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    const auto steps = tables_.rank(s[side_of(r)]).steps;
    if (const auto applied = tables_.rank(s[side_of(r)]).applied; applied != steps)
      return fmt::format("rank {} counts {} steps, but {} are applied", r, steps, applied);
    if (steps != end.loop.steps)
      return fmt::format("the job ended after {} steps, rank {} after {}", end.loop.steps, r,
                         steps);
  }
  if (part.machine.committed() != end.loop.steps)
    return fmt::format("the job ended after {} steps, {} are committed", end.loop.steps,
                       part.machine.committed());
  const bool stopped = end.status == job_outcome::ending::stopped;
  if (stopped && !had(small_fault::stops)) return "the job was stopped without a request";
  if (!stopped && end.loop.steps != options_.steps)
    return fmt::format("the job finished after {} of {} steps", end.loop.steps, options_.steps);
  // A failure that the result does not need is still reported.
  const bool answered = end.survivors.empty() && !had(small_fault::loses);
  if (had(small_fault::throws) && answered && end.late.empty() && end.generations.size() < 2)
    return "a hook threw, and the caller got no report";
  return {};
}

// The generations in the outcome.
std::string small_job_space::check_generations(const small_job_state& s) const {
  const auto& end = *tables_.supervisor_value(s[0]).end;
  if (options_.restarts == 0)
    return end.generations.empty() ? "" : "a job without restarts reports generations";
  if (end.generations.empty() ||
      end.generations.size() > static_cast<std::size_t>(options_.restarts) + 1)
    return fmt::format("{} generations where {} restarts were left", end.generations.size(),
                       options_.restarts);
  for (std::size_t i = 0; i + 1 < end.generations.size(); ++i)
    if (!end.generations[i].ended_by) return "a generation ended without a cause";
  for (const auto& one : end.generations)
    if (one.base_step > 0 && one.steps_redone > 1)
      return fmt::format("{} steps are done again from step {}", one.steps_redone, one.base_step);
  if (end.status != job_outcome::ending::failed || end.generations.size() > 1) return {};
  // A failed job that never restarted: its end was asked for, or all steps were done.
  const auto faults = faults_of(s);
  const bool asked =
      std::ranges::any_of(faults, [](const auto& f) { return f.first == small_fault::aborts; });
  const bool done =
      end.loop.steps == options_.steps ||
      std::ranges::any_of(faults, [](const auto& f) { return f.first == small_fault::stops; });
  return asked || done ? "" : "the job failed, and a restart was left";
}

// The job has failed.
std::string small_job_space::check_first_cause(const small_job_state& s) const {
  const auto& end = *tables_.supervisor_value(s[0]).end;
  if (!end.first) return "the job failed without a first cause";
  const auto& first = *end.first;
  for (const auto& other : first.others)
    if (comes_before(other, first))
      return fmt::format("the first cause is {}, but {} came before", render(first), render(other));
  const auto faults = faults_of(s);
  if (faults.empty()) return "the job failed without a fault: " + render(first);
  const auto thrown = [](const failure& f) { return f.type == injected_type; };
  const bool only_throws =
      std::ranges::all_of(faults, [](const auto& f) { return f.first == small_fault::throws; });
  const auto reported = std::ranges::count_if(first.others, thrown) + (thrown(first) ? 1 : 0) +
                        std::ranges::count_if(end.late, thrown) + count_in_earlier(end, thrown);
  if (only_throws && reported < static_cast<std::ptrdiff_t>(faults.size()))
    return fmt::format("{} hooks threw, and only {} are reported", faults.size(), reported);
  if (faults.size() > 1) return {};
  const auto [what, rank] = faults.front();
  const auto expect = [&](std::string_view type, bool of_rank) -> std::string {
    if (first.type == type && (!of_rank || first.rank == rank)) return {};
    return fmt::format("the first cause is not the {} of rank {}, but: {}", type, rank,
                       render(first));
  };
  switch (what) {
    case small_fault::throws: return expect(injected_type, true);
    case small_fault::vanishes:
    case small_fault::leaves: return expect("down", true);
    case small_fault::aborts: return expect("aborted", false);
    case small_fault::stops: return "the job failed after a stop: " + render(first);
    case small_fault::repeats: return "the job failed after a repeated message: " + render(first);
    case small_fault::loses:  // its last message: it seems to have died without one
      return first.type == "down" ? expect("down", true) : expect("deadline", false);
    case small_fault::early_deadline: return expect("deadline", false);
    case small_fault::none: break;
  }
  return {};
}

std::string small_job_space::ending(const small_job_state& s) const {
  static constexpr std::array<std::string_view, 3> names{"finished", "stopped", "failed"};
  std::string text{names[static_cast<std::size_t>(tables_.supervisor_value(s[0]).end->status)]};
  for (const auto& [what, rank] : faults_of(s)) text += fmt::format(" after {}", to_string(what));
  return text;
}

std::uint64_t small_job_space::digest(const small_job_state& s) const {
  stable_hasher hash;
  hash.add(tables_.supervisor(s[0]).digest).add(s[flags]);
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    hash.add(tables_.rank(s[side_of(r)]).digest);
    for (const auto q : {s[inbox_of(r)], s[mail_of(r)]}) {
      hash.add(tables_.messages(q).size());
      for (const auto m : tables_.messages(q)) hash.add(tables_.text(m));
    }
  }
  return hash.digest();
}

// --- words ---------------------------------------------------------------------------------------

std::string small_job_space::describe_move(const small_job_state& before,
                                           const small_job_move& move) {
  const std::int32_t r = move.rank;
  const auto head = [&](std::size_t queue) { return tables_.text(tables_.head(before[queue])); };
  static constexpr std::array<std::string_view, rank_moves> done{
      "its communicator is open",
      "its lane arrives at a collective",
      "its lane leaves the collective",
      "its lane has handled the run",
      "its lane came back early: the generation is closed",
      "its lane threw: the communicator was aborted",
      "its lane threw: peers are missing for too long",
      "its lane has ended",
      "a hook throws",
      "vanishes"};
  std::string text;
  switch (move.kind) {
    case move_kind::supervisor_receives:
      text = fmt::format("supervisor  gets from rank {}: {}", r, head(mail_of(r)));
      break;
    case move_kind::rank_receives:
      text = fmt::format("rank {}      gets: {}", r, head(inbox_of(r)));
      break;
    case move_kind::rank_does: text = fmt::format("rank {}      {}", r, done.at(move.what)); break;
    case move_kind::deadline: text = "supervisor  its deadline has passed"; break;
    case move_kind::fault: {
      const auto what = static_cast<small_fault>(move.what);
      text = fmt::format("FAULT       {}", to_string(what));
      const bool of_link = what == small_fault::loses || what == small_fault::repeats;
      if (what == small_fault::throws || what == small_fault::vanishes ||
          what == small_fault::leaves || of_link)
        text += fmt::format(" rank {}", r);
      if (of_link)
        text += fmt::format(" {} {}", move.to_supervisor ? "-> supervisor" : "<- supervisor",
                            head(move.to_supervisor ? mail_of(r) : inbox_of(r)));
      break;
    }
  }
  // The new messages follow the old ones.
  auto after = before;
  if (!make(after, move).empty()) return text;
  for (std::int32_t q = 0; q < options_.ranks; ++q)
    for (const bool mail : {false, true}) {
      const auto queue = mail ? mail_of(q) : inbox_of(q);
      const auto& old = tables_.messages(before[queue]);
      const auto& now = tables_.messages(after[queue]);
      const bool popped =
          !old.empty() && (now.empty() || after[queue] == tables_.rest(before[queue]) ||
                           !std::equal(old.begin(), old.end(), now.begin(),
                                       now.begin() + static_cast<std::ptrdiff_t>(
                                                         std::min(old.size(), now.size()))));
      const auto kept = old.size() - (popped ? 1 : 0);
      for (auto i = kept; i < now.size(); ++i)
        text += fmt::format("\n                  {} {}",
                            mail ? fmt::format("-> supervisor:") : fmt::format("-> rank {}:", q),
                            first_word(tables_.text(now[i])));
    }
  return text;
}

std::string small_job_space::describe_state(const small_job_state& s) const {
  std::ostringstream out;
  out << "  " << tables_.supervisor_value(s[0]).machine << "\n";
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    const auto& facts = tables_.rank(s[side_of(r)]);
    static constexpr std::array<std::string_view, 4> stages{"idle", "working", "in a collective",
                                                            "after a collective"};
    out << "  " << tables_.rank_value(s[side_of(r)]).machine << "; lane "
        << stages[static_cast<std::size_t>(facts.stage)] << (facts.gone ? "; gone" : "");
    for (const auto m : tables_.messages(s[inbox_of(r)]))
      out << "\n    waits for it: " << tables_.text(m);
    for (const auto m : tables_.messages(s[mail_of(r)]))
      out << "\n    sent, not received: " << tables_.text(m);
    out << "\n";
  }
  return out.str();
}

}  // namespace troupe::testing
