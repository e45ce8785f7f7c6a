#include "tests/unit/actors/elastic_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "troupe/detail/stable_hash.hpp"

namespace elastic {

using namespace troupe;

namespace {

std::uint64_t next_number(std::uint64_t number, std::int64_t step) {
  return stable_hasher{}.add(number).add(step).digest();
}

fit_plan plan_of(const job_options& options) {
  fit_plan plan;
  plan.max_epochs = -1;
  plan.max_steps = options.steps;
  plan.val_batches = std::int64_t{0};
  plan.checkpoint.enabled = false;
  plan.keeps_points = options.max_restarts > 0;
  return plan;
}

template <class Ranks>
std::string text_of(const char* what, const supervisor_machine& machine, const Ranks& ranks) {
  std::ostringstream out;
  out << what << "; " << machine;
  for (const auto& r : ranks) {
    out << "\n";
    if (r.machine) out << *r.machine;
    out << (r.alive ? "" : " dead") << (r.attention ? " attention" : "")
        << (r.aborted ? " aborted" : "") << (r.stuck ? " stuck" : "")
        << (r.lane.alone ? " alone" : "") << " arrived " << r.collectives << " inbox "
        << r.inbox.size();
    if (r.run) out << " in flight " << r.run->hooks.front();
  }
  return out.str();
}

bool is_collective(const hook& h) {
  return h
      .is<hooks::barrier, hooks::optimizer_step, hooks::restore_state, hooks::model_to_device>();
}

// A run that holds a collective waits for the same run of all ranks of its generation.
bool meets(const hook_run& run) { return std::ranges::any_of(run.hooks, is_collective); }

supervision::rules elastic_of(const job_options& options) {
  const bool moves = options.leaves + options.scales > 0;
  return {.elastic = {.max_restarts = options.max_restarts},
          .processes = moves ? options.ranks : 0};
}

}  // namespace

job::job(job_options options, std::uint64_t seed)
    : options_(options),
      random_(seed),
      supervisor_(job_id{1}, options.ranks, derive({}), elastic_of(options)),
      ranks_(static_cast<std::size_t>(options.ranks)),
      kills_left_(options.kills),
      throws_left_(options.throws),
      stuck_left_(options.stuck),
      scales_left_(options.scales) {
  for (int i = 0; i < options.leaves + options.scales; ++i)
    asks_for_change_.insert(static_cast<int>(pick(200)));
}

std::uint64_t job::expected(std::int64_t steps) {
  std::uint64_t number = 0;
  for (std::int64_t i = 0; i < steps; ++i) number = next_number(number, i);
  return number;
}

std::vector<std::uint64_t> job::numbers() const {
  std::vector<std::uint64_t> all;
  for (const auto& r : ranks_) all.push_back(r.lane.number);
  return all;
}

void job::run() {
  supervision::begin begin;
  for (std::int32_t r = 0; r < options_.ranks; ++r)
    begin.incarnations.push_back(incarnation_id{static_cast<std::uint64_t>(100 + r)});
  feed(begin);
  for (int moves = 0; !end_; ++moves) {
    if (moves > 200'000) throw std::runtime_error(text_of("no end", supervisor_, ranks_));
    const auto all = choices();
    if (all.empty()) throw std::runtime_error(text_of("stuck", supervisor_, ranks_));
    take(all[pick(all.size())]);
    for (auto n = asks_for_change_.erase(moves); n > 0; --n) ask_for_change();
    end_processes();
  }
}

void job::take(const choice& c) {
  switch (c.what) {
    case choice::kind::order: {
      auto& r = at(c.which);
      const auto order = r.inbox.front();
      r.inbox.pop_front();
      std::visit([&](const auto& m) { feed(r, m); }, order);
      break;
    }
    case choice::kind::report: {
      const auto e = reports_.front();
      reports_.pop_front();
      feed(e);
      break;
    }
    case choice::kind::answer: answer(at(c.which)); break;
    case choice::kind::lane_end: {
      auto& r = at(c.which);
      r.lane_closing = false;
      r.lane = r.machine->phase() == ranks::phase::ending ? r.lane : lane_state{};
      feed(r, ranks::lane_ended{});
      break;
    }
    case choice::kind::fault: kill(at(c.which)); break;
    case choice::kind::overdue: {
      auto& r = at(c.which);
      r.overdue = true;
      ranks::looked look{.busy = true, .hook = "stuck"};
      look.since = derive({}).hook_limit;
      feed(r, look);
      break;
    }
    case choice::kind::deadline: feed(deadline_passed{*std::exchange(deadline_, {})}); break;
  }
}

// A process with a rank wants to leave, or the caller scales.
void job::ask_for_change() {
  if (scales_left_ > 0 && pick(2) == 0) {
    --scales_left_;
    reports_.emplace_back(request_scale{1 + static_cast<std::int32_t>(pick(ranks_.size()))});
  } else {
    const auto& r = ranks_[pick(ranks_.size())];
    reports_.emplace_back(
        process_changed{job_id{1}, r.process, process_changed::change::leaves, {}, false});
  }
}

void job::end_processes() {
  std::erase_if(ending_, [&](std::int32_t number) {
    for (std::size_t i = 0; i < all_ranks(); ++i)
      if (at(i).alive && at(i).process == number) return false;
    reports_.emplace_back(
        process_changed{job_id{1}, number, process_changed::change::gone, {}, true});
    return true;
  });
}

std::vector<job::choice> job::choices() const {
  std::vector<choice> all;
  for (std::size_t i = 0; i < all_ranks(); ++i) {
    const auto& r = at(i);
    if (!r.alive) continue;
    if (!r.inbox.empty()) all.push_back({choice::kind::order, i});
    if (r.lane_closing) all.push_back({choice::kind::lane_end, i});
    if (r.run && may_answer(r)) all.push_back({choice::kind::answer, i});
  }
  if (!reports_.empty()) all.push_back({choice::kind::report, 0});
  const bool faults = kills_left_ > 0 && supervisor_.phase() < supervision::phase::tearing;
  for (std::size_t i = 0; faults && !all.empty() && i < all_ranks(); ++i)
    if (at(i).alive) all.push_back({choice::kind::fault, i});
  // Time passes when nothing else happens.
  const bool quiet = all.empty();
  for (std::size_t i = 0; quiet && i < all_ranks(); ++i)
    if (at(i).alive && at(i).stuck && !at(i).overdue) all.push_back({choice::kind::overdue, i});
  if (all.empty() && deadline_) all.push_back({choice::kind::deadline, 0});
  return all;
}

bool job::all_arrived(const rank& r) const {
  const auto found = arrived_.find(r.generation);
  return found != arrived_.end() &&
         std::ranges::all_of(found->second, [&](std::size_t n) { return n >= r.collectives; });
}

bool job::may_answer(const rank& r) const {
  if (r.stuck) return false;
  return r.attention || r.aborted || r.lane.alone || !meets(*r.run) || all_arrived(r);
}

void job::feed(const supervision::event& e) {
  for (const auto& a : supervisor_.on(e)) carry_out(a);
}

void job::carry_out(const supervision::action& a) {
  if (const auto* start = std::get_if<supervision::start_rank>(&a)) {
    auto& r = ranks_[static_cast<std::size_t>(start->rank)];
    if (r.alive) old_.push_back(std::move(r));
    r = rank{};
    r.number = start->rank;
    r.process = start->process;
    r.incarnation = start->incarnation;
    r.alive = true;
    r.machine.emplace(rank_plan{job_id{1}, start->rank, start->incarnation,
                                shared_value<fit_plan>{plan_of(options_)}, derive({})});
  } else if (const auto* message = std::get_if<supervision::send>(&a)) {
    auto& r = ranks_[static_cast<std::size_t>(message->rank)];
    if (r.alive) r.inbox.push_back(message->what);
  } else if (const auto* gone = std::get_if<supervision::abandon>(&a)) {
    ranks_[static_cast<std::size_t>(gone->rank)].alive = false;
    reports_.emplace_back(supervision::rank_down{
        gone->rank, "killed", ranks_[static_cast<std::size_t>(gone->rank)].incarnation});
  } else if (const auto* arm = std::get_if<supervision::arm>(&a)) {
    deadline_ = arm->id;
  } else if (const auto* ends = std::get_if<supervision::end_process>(&a)) {
    ending_.insert(ends->number);
  } else if (std::holds_alternative<supervision::flush_checkpointer>(a)) {
    reports_.emplace_back(supervision::checkpointer_done{});
  } else if (std::holds_alternative<supervision::flush_observers>(a)) {
    reports_.emplace_back(supervision::observers_done{});
  } else if (const auto* commit = std::get_if<supervision::commit>(&a)) {
    commits.push_back(commit->steps);
  } else if (const auto* end = std::get_if<supervision::complete>(&a)) {
    end_ = *end;
  }
}

void job::feed(rank& r, const ranks::event& e) {
  for (const auto& a : r.machine->on(e)) carry_out(r, a);
}

void job::carry_out(rank& r, const ranks::action& a) {
  if (const auto* open = std::get_if<ranks::open>(&a)) {
    r.generation = open->generation.value();
    r.aborted = false;
    r.collectives = 0;
    r.lane.alone = open->alone;
    feed(r, ranks::opened{});
  } else if (std::holds_alternative<ranks::bind>(a)) {
    r.lane.alone = false;
  } else if (const auto* run = std::get_if<ranks::submit>(&a)) {
    if (r.run) throw std::runtime_error("two runs in flight");
    r.run = run->run;
    if (meets(*r.run) && !r.lane.alone) {
      auto& all = arrived_[r.generation];
      all.resize(ranks_.size());
      r.collectives = ++all[static_cast<std::size_t>(r.number)];
    }
  } else if (std::holds_alternative<ranks::abort_communicator>(a)) {
    for (auto& other : ranks_)
      if (other.generation == r.generation) other.aborted = true;
  } else if (const auto* attend = std::get_if<ranks::attend>(&a)) {
    r.attention = attend->generation_closed;
  } else if (std::holds_alternative<ranks::close_lane>(a)) {
    r.lane_closing = true;
  } else if (const auto* report = std::get_if<ranks::report>(&a)) {
    std::visit([&](const auto& m) { reports_.emplace_back(m); }, *report);
  } else if (std::holds_alternative<ranks::end>(a)) {
    r.alive = false;
    reports_.emplace_back(supervision::rank_down{r.number, {}, r.incarnation});
  }
}

// With its process, if it has one, and the other ranks there.
void job::kill(rank& r) {
  --kills_left_;
  ++killed;
  if (!in_processes()) return end_of(r);
  const auto number = r.process;
  reports_.emplace_back(
      process_changed{job_id{1}, number, process_changed::change::gone, {}, false});
  for (std::size_t i = 0; i < all_ranks(); ++i)
    if (at(i).alive && at(i).process == number) end_of(at(i));
}

void job::end_of(rank& r) {
  r.alive = false;
  for (auto& other : ranks_)
    if (other.generation == r.generation) other.aborted = true;
  fence at;
  at.job = job_id{1};
  at.incarnation = r.incarnation;
  auto what = make_failure(failure_kind::signal, fmt::format("killed {}", killed));
  what.rank = r.number;
  what.type = fmt::format("kill {}", killed);  // not a crash loop
  reports_.emplace_back(rank_failed{at, without_exception(what), true});
}

void job::answer(rank& r) {
  if (stuck_left_ > 0 && pick(20) == 0) {
    --stuck_left_;
    r.stuck = true;
    return;
  }
  auto answer = handle(r);
  r.run.reset();
  for (auto& a : [&] {
         std::vector<ranks::action> todo;
         r.machine->answered(answer, todo);
         return todo;
       }())
    carry_out(r, a);
}

ran job::handle(rank& r) {
  ran answer;
  answer.at = r.run->at;
  // An abort may or may not overtake a collective that all ranks have reached.
  const bool met = all_arrived(r) && (!r.aborted || pick(2) == 0);
  bool applied = false;
  const auto fail = [&](failure what) {
    answer.outcome.verdict = run_verdict::failed;
    answer.failed_with.emplace(caught{std::move(what), nullptr});
    return answer;
  };
  for (std::size_t i = 0; i < r.run->hooks.size(); ++i) {
    const auto& h = r.run->hooks[i];
    if (r.attention && !applied) {
      answer.outcome.verdict = run_verdict::attention;
      return answer;
    }
    if (throws_left_ > 0 && !applied && !h.is<hooks::teardown>() && pick(40) == 0) {
      --throws_left_;
      auto what = make_failure(failure_kind::exception, fmt::format("throw {}", throws_left_));
      what.type = what.what;
      what.hook = name(h);
      return fail(what);
    }
    if (is_collective(h) && !r.lane.alone && !met) {
      auto what = make_failure(failure_kind::exception, "generation closed");
      what.follows = true;
      return fail(what);
    }
    if (!handle(r, h, answer.outcome)) return fail(make_failure(failure_kind::exception, "torn"));
    if (h.is<hooks::optimizer_step>()) applied = true;
    if (const auto* step = h.get_if<hooks::optimizer_step>()) i += step->closure;
    answer.handled = static_cast<std::uint32_t>(i + 1);
    // A hook after the update may meet ranks that are gone.
    if (applied && h.is<hooks::optimizer_step>() && pick(4) == 0 && r.aborted) {
      auto what = make_failure(failure_kind::exception, "generation closed");
      what.follows = true;
      return fail(what);
    }
  }
  if (r.run->keep_point) r.lane.kept = r.lane.number, r.lane.has_kept = true;
  return answer;
}

bool job::handle(rank& r, const hook& h, hook_outcome& out) {
  handled.insert(name(h));
  if (h.is<hooks::process_dataloader>()) out.loaders.push_back({stage::train, 0, 3, 6, 2});
  if (h.is<hooks::connect>()) r.lane.number = 0, r.lane.set_up = true;
  if (const auto* step = h.get_if<hooks::optimizer_step>()) {
    r.lane.number = next_number(r.lane.number, step->at.step);
    ++updates[{r.number, step->at.step}];
    r.lane.kept = r.lane.number;  // an applied step is a point
    r.lane.has_kept = true;
    out.samples = 2;
  }
  if (h.is<hooks::rewind>()) {
    if (!r.lane.has_kept) return false;
    r.lane.number = r.lane.kept;
    out.state_digest = fmt::format("{:x}", r.lane.number);
  }
  if (const auto* restore = h.get_if<hooks::restore_state>()) {
    if (!r.lane.set_up) throw std::runtime_error("a state for a rank that is not set up");
    const auto& donor = ranks_[static_cast<std::size_t>(restore->donors.front())];
    r.lane.number = r.lane.kept = donor.lane.kept;
    r.lane.has_kept = true;
    out.state_digest = fmt::format("{:x}", r.lane.number);
  }
  return true;
}

}  // namespace elastic
