#include "apps/testing/job_oracles.hpp"

#include <algorithm>
#include <ostream>
#include <utility>

#include "apps/testing/protocol_checker.hpp"

namespace troupe::testing {

namespace {

const std::vector<std::string> oracles{
    "state equals the reference",
    "steps are one chain",
    "each sample once",
    "first cause is the injected one",
    "no failure without a fault",
    "a throw is not swallowed",
    "no survivor without a fault",
    "nothing fails late without a fault",
    "commits are held by all",
    "what is resumed is the reference's",
    "what is durable stays",
    "the end equals the fault-free one",
    "an attempt ends in time",
    "a healed job finishes",
    "nothing is left alive",
    "no actor has trouble",
    "what is written is committed",
    "what is written is there",
    "an orderly end is saved",
    "invariants of the product hold",
    "only ports reach outside",
    "a run is the same in another host",
    "a step is the same on all ranks",
    observer_oracle,
    own_marks_oracle,
    exception_oracle,
    protocol_checker::one_generation,
    protocol_checker::answered,
    protocol_checker::deadline,
    protocol_checker::budget,
    "a survivor's step is kept",
    "a generation has a cause",
    "a planned change redoes no step",
    rows_oracle,
    queue_oracle,
};

}  // namespace

const std::vector<std::string>& known_oracles() { return oracles; }

std::ostream& operator<<(std::ostream& out, const violation& v) {
  out << v.oracle << ": " << v.text;
  if (v.step >= 0) out << ", step " << v.step;
  if (v.rank >= 0) out << ", rank " << v.rank;
  if (!v.parameter.empty()) out << ", " << v.parameter << '[' << v.element << ']';
  return out << " (event " << v.event << ')';
}

bool run_report::violates(std::string_view oracle) const {
  return std::ranges::any_of(violations, [&](const violation& v) { return v.oracle == oracle; });
}

bool attempt_facts::any(std::initializer_list<fault> of) const {
  return std::ranges::any_of(
      applied, [&](fault f) { return std::find(of.begin(), of.end(), f) != of.end(); });
}

bool attempt_facts::concerned(std::int32_t rank) const {
  return std::ranges::find(ranks, rank) != ranks.end() ||
         std::ranges::any_of(thrown, [&](const raised& r) { return r.rank == rank; });
}

job_oracles::job_oracles(const job_spec& job, modular_reference& reference, payload_job* foreign,
                         run_report& report, const simulation& of)
    : job_(job), reference_(reference), foreign_(foreign), report_(report), simulation_(of) {}

void job_oracles::violate(violation v) {
  constexpr std::size_t most = 16;  // more violations add no information
  v.event = simulation_.events();
  if (report_.violations.size() < most) report_.violations.push_back(std::move(v));
}

void job_oracles::attempt_begins(job_id job, std::int64_t resumed_at) {
  now_ = job;
  attempts_.push_back(job);
  poisons_[job] = std::exchange(inherited_, {});
  committed_ever_ = std::max(committed_ever_, committed_);
  resumed_at_ = base_ = committed_ = resumed_at;
  fell_back_ = false;
  generation_ = 0;
  held_.assign(static_cast<std::size_t>(job_.ranks), {{}, 0, resumed_at});
  old_.clear();
  digests_.clear();
  poisons_here_.clear();
  poisoned_now_ = false;
  recount();
  written_ = -1;
  nan_at_ = -1;
}

std::int64_t job_oracles::least_held() const {
  if (base_ == unknown) return possible_;
  return held_.empty() ? 0 : std::ranges::min_element(held_, {}, &replica::held)->held;
}

// A survivor's step stays, and nothing beyond it. Only when no rank is left that held anything, the
// job goes back to a checkpoint or to its beginning.
void job_oracles::generation_begins(const generation_start& what) {
  const auto before = std::exchange(generation_, what.generation);
  const bool first = before == 0;
  // In a generation that did not become active, a rank may have given up its state for a newer one
  // that it did not receive.
  bool given_up = !first && (what.generation > before + 1 || base_ == unknown);
  std::int64_t kept = -1;  // by a survivor
  auto possible = what.fallback;
  for (std::size_t r = 0; r < held_.size(); ++r) {
    auto& of = held_[r];
    possible = std::max(possible, of.held);
    if (first || of.who == what.members[r])
      kept = std::max(kept, of.held);
    else
      old_[of.who] = of;
  }
  // A rank that began at a checkpoint holds nothing until its set-up hooks have ended. If they
  // fail, it begins at the newest checkpoint.
  const bool began_only = fell_back_ && kept == base_;
  given_up = given_up || (began_only && what.fallback != base_);
  const auto base = kept >= 0 ? kept : what.fallback;
  fell_back_ = first || kept < 0 || given_up || began_only;
  // A checkpoint of a step that all ranks have lost may become durable later.
  if (!check(kept >= 0 || base >= what.durable))
    violate({oracles[30],
             "generation " + std::to_string(what.generation) + " begins with step " +
                 std::to_string(base) + ", and the checkpoint of step " +
                 std::to_string(what.durable) + " is durable",
             base});
  if (!first && kept < 0 && base < committed_) ++report_.marks["committed steps were done again"];
  possible_ = std::max(possible, base_ == unknown ? possible_ : 0);
  poisons_here_.clear();
  set_base(what.lost || given_up ? unknown : base);
  for (std::size_t r = 0; r < held_.size(); ++r) held_[r].who = what.members[r];
}

void job_oracles::set_base(std::int64_t base) {
  base_ = base;
  nan_at_ = -1;
  for (auto& of : held_) of = {of.who, generation_, base};
  // What was poisoned after the base did not happen, unless this generation did it.
  if (const auto found = poisons_.find(now_); found != poisons_.end() && base != unknown)
    std::erase_if(found->second,
                  [&](const poison& p) { return p.step >= base && !poisons_here_.contains(p); });
  recount();
}

void job_oracles::compare(const modular_state& is, std::int64_t step, std::int32_t rank,
                          const std::string& oracle) {
  const auto& should = reference_.after(step);
  const auto differ = [&](const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b,
                          const char* name) {
    if (check(a == b)) return false;
    std::int64_t element = 0;
    while (static_cast<std::size_t>(element) < std::min(a.size(), b.size()) &&
           a[static_cast<std::size_t>(element)] == b[static_cast<std::size_t>(element)])
      ++element;
    violate({oracle, "differs from the serial reference", step, rank, name, element});
    return true;
  };
  if (differ(is.weights, should.weights, "weights")) return;
  if (differ(is.momentum, should.momentum, "momentum")) return;
  if (!check(is.statistic == should.statistic))
    violate({oracle, "differs from the serial reference", step, rank, "statistic", 0});
}

void job_oracles::compare(const snapshot& is, std::int64_t step, const std::string& oracle) {
  compare(is, step, poisons_before(now_, step), oracle);
}

void job_oracles::compare(const snapshot& is, std::int64_t step, const poisons& applied,
                          const std::string& oracle) {
  if (!foreign_) return compare(modular_state_of(is), step, 0, oracle);
  if (const auto wrong = foreign_->compare(is, step, applied); !check(!wrong))
    violate(
        {oracle, "differs from the serial reference", step, 0, wrong->parameter, wrong->element});
}

void job_oracles::poisoned(job_id job, std::uint64_t generation, const poison& what) {
  if (job == now_ && generation < generation_) return;  // a rank that was replaced
  poisons_[job].insert(what);
  if (job == now_) poisons_here_.insert(what);
  poisoned_now_ = poisoned_now_ || job == now_;
}

poisons job_oracles::poisons_before(job_id job, std::int64_t step) const {
  poisons before;
  if (const auto found = poisons_.find(job); found != poisons_.end())
    for (const auto& p : found->second)
      if (p.step < step) before.insert(p);
  return before;
}

// A checkpoint does not name its attempt: the newest attempt that was in this state is taken.
poisons job_oracles::inherited_by(const snapshot& from) {
  const auto step = from.loop.steps;
  for (auto job = attempts_.rbegin(); foreign_ && job != attempts_.rend(); ++job)
    if (auto applied = poisons_before(*job, step); !foreign_->compare(from, step, applied))
      return applied;
  return poisons_before(now_, step);
}

void job_oracles::stepped(const finished_step& what, incarnation_id who) {
  if (what.job == now_ && base_ == unknown && in_this_generation(what, who)) {
    if (!check(what.step <= possible_ + 1))
      violate({oracles[1],
               "no rank can hold more than step " + std::to_string(possible_) + " before it",
               what.step, what.rank});
    set_base(what.step - 1);
  }
  state_of_step(what);
  if (what.job != now_) return;
  chain(what, who);
  same_everywhere(what);
  if (in_this_generation(what, who) && what.step == committed_ + 1 && --behind_ == 0) recount();
}

void job_oracles::recount() {
  committed_ = std::max(committed_, least_held());
  behind_ = std::ranges::count_if(held_, [&](const replica& r) { return r.held <= committed_; });
}

bool job_oracles::in_this_generation(const finished_step& what, incarnation_id who) const {
  return what.generation == generation_ && held_[static_cast<std::size_t>(what.rank)].who == who;
}

// Needs no reference, so it covers NaN, the null payload and every other one.
void job_oracles::same_everywhere(const finished_step& what) {
  if (what.step <= 0 || what.step > job_.steps) return;  // not a step of this chain
  const auto at = static_cast<std::size_t>(what.step);
  if (digests_.size() <= at) digests_.resize(at + 1);
  auto& known = digests_[at];
  const bool again = known && known->generation != what.generation;
  if (!check(!known || known->digest == what.digest || (again && poisoned_now_)))
    violate({oracles[22],
             again ? "differs from that of generation " + std::to_string(known->generation)
                   : "differs from a peer's",
             what.step, what.rank});
  if (!known || known->generation <= what.generation) known = {what.digest, what.generation};
}

void job_oracles::state_of_step(const finished_step& what) {
  if (foreign_) {
    const auto should = foreign_->digest_after(what.step, poisons_before(what.job, what.step));
    if (should && !check(*should == what.digest))
      violate({oracles[0], "differs from the serial reference", what.step, what.rank});
    return;
  }
  if (!check(what.digest == reference_.digest_after(what.step)))
    compare(*what.state, what.step, what.rank, oracles[0]);
  const auto [epoch, consumed] = reference_.consumed_by(what.step);
  if (!check(epoch == what.epoch && consumed == what.consumed))
    violate({oracles[2],
             "consumed " + std::to_string(what.consumed.count) + " samples of epoch " +
                 std::to_string(what.epoch) + " from " + std::to_string(what.consumed.first),
             what.step, what.rank});
}

// A rank that was replaced may still end the step that it was in.
void job_oracles::chain(const finished_step& what, incarnation_id who) {
  auto& now = held_[static_cast<std::size_t>(what.rank)];
  const bool current = now.who == who;
  if (current && what.generation == generation_ && !check(what.step != nan_at_))
    violate({oracles[0], "a peer's weights are NaN", what.step, what.rank, "weights", 0});
  auto& of = current ? now : old_[who];
  // It was replaced before its first step in a generation whose base no rank had shown.
  if (!current && of.held == unknown) of.held = what.step - 1;
  if (!check(what.step == of.held + 1))
    violate({oracles[1], "follows step " + std::to_string(of.held), what.step, what.rank});
  if (!check(what.generation == of.generation))
    violate({oracles[1],
             "of generation " + std::to_string(what.generation) + ", but the rank is in " +
                 std::to_string(of.generation),
             what.step, what.rank});
  of.held = what.step;
}

void job_oracles::stepped_to_nan(const finished_step& what, incarnation_id who) {
  if (what.job != now_ || !in_this_generation(what, who)) return;
  poisoned_now_ = true;
  same_everywhere(what);
  if (!check(nan_at_ < 0 || nan_at_ == what.step))
    violate({oracles[0], "NaN, but a peer's were NaN after step " + std::to_string(nan_at_),
             what.step, what.rank, "weights", 0});
  nan_at_ = what.step;
  for (const auto& of : held_)
    if (!check(of.held < what.step))
      violate({oracles[0], "NaN, but a peer's are not", what.step, what.rank, "weights", 0});
}

// Counts the samples of the first `step` steps. Jobs of other payloads may be too wide for the
// reference.
std::int64_t job_oracles::samples_by(std::int64_t step) const {
  std::int64_t samples = 0;
  if (!foreign_) {
    for (std::int64_t s = 1; s <= step; ++s) samples += reference_.consumed_by(s).second.count;
    return samples;
  }
  const data_layout layout{job_.samples, job_.ranks, job_.batch_size};
  for (std::int64_t s = 0, first = 0; s < step; ++s) {
    const auto next = std::min(first + job_.accumulate, layout.batches());
    samples += layout.samples(first, next - 1);
    first = next == layout.batches() ? 0 : next;
  }
  return samples;
}

void job_oracles::written(std::int64_t step, const std::string& path, const snapshot* there,
                          bool damaged) {
  written_ = step;
  if (!check(step <= committed_))
    violate({oracles[16], path + ", but all ranks held only " + std::to_string(committed_), step});
  if (!check(there || damaged)) violate({oracles[17], path + " cannot be read", step});
  if (!there) return;
  if (!check(there->loop.steps == step))
    violate({oracles[17], path + " is of step " + std::to_string(there->loop.steps), step});
  compare(*there, step, oracles[17]);
}

void job_oracles::resumed(const snapshot& from) {
  // A storage fault may bring back a checkpoint of an attempt before the last one.
  if (!check(from.loop.steps <= std::max({resumed_at_, committed_ever_, committed_})))
    violate({oracles[16], "a checkpoint of a step that was never committed", from.loop.steps});
  inherited_ = inherited_by(from);
  compare(from, from.loop.steps, inherited_, oracles[9]);
  const auto samples = samples_by(from.loop.steps);
  if (!check(from.loop.samples == samples))
    violate({oracles[2],
             "a checkpoint counts " + std::to_string(from.loop.samples) + " samples, not " +
                 std::to_string(samples),
             from.loop.steps});
  if (!check(from.loop.cursor == cursor_of(from.loop)))
    violate({oracles[2],
             "a checkpoint's cursor is " + std::to_string(from.loop.cursor) + ", not " +
                 std::to_string(cursor_of(from.loop)),
             from.loop.steps});
}

// The samples that the checkpoint's epoch has consumed, computed from the number of steps.
std::int64_t job_oracles::cursor_of(const loop_state& loop) const {
  return loop.batch == 0 ? 0 : samples_by(loop.steps) - loop.epoch * job_.samples;
}

void job_oracles::finished(const job_outcome& outcome) {
  if (!check(outcome.loop.steps == job_.steps))
    violate({oracles[11], "finished at another step", outcome.loop.steps});
  const auto samples = samples_by(job_.steps);
  if (!check(outcome.loop.samples == samples))
    violate({oracles[2],
             "finished with " + std::to_string(outcome.loop.samples) + " samples, not " +
                 std::to_string(samples),
             outcome.loop.steps});
  if (check(outcome.weights != nullptr))
    compare(*outcome.weights, job_.steps, oracles[11]);
  else
    violate({oracles[11], "the outcome has no weights"});
  if (!foreign_) return result_is_the_weights(outcome);
  if (outcome.weights) digest_ = outcome.weights->weights_digest;
}

void job_oracles::drained(std::size_t actors, std::size_t handles) {
  if (!check(actors == 0 && handles == 0))
    violate({oracles[14],
             std::to_string(actors) + " actors and " + std::to_string(handles) + " communicators"});
  for (const auto& t : simulation_.troubles())
    if (!check(false)) violate({oracles[15], t});
}

}  // namespace troupe::testing
