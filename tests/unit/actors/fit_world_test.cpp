// Goal: ranks that are asked to stop agree on one step in every interleaving of proposals, votes,
// decisions and runs.
// Method: visit every reachable state of small worlds.
#include "tests/unit/actors/fit_drive.hpp"

#include "troupe/detail/stable_hash.hpp"

#include <algorithm>
#include <unordered_set>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

/// One rank of a world. It is a value, so that worlds can be copied and stored.
struct member {
  fit_machine machine;
  std::vector<hook> run = {};  // in flight
  std::int64_t answered = 0;   // completed runs
  std::uint64_t did = 0;       // digest of the handled hooks
  bool begun = false;
  bool asked = false;      // a propose_stop message is in transit
  bool stop_sent = false;  // a stop_at message is in transit
  std::optional<std::int64_t> vote = {};
  std::optional<fit_actions::finished> end = {};
};

struct world {
  std::vector<member> ranks;
  bool proposed = false;
  std::optional<std::int64_t> agreed = {};

  std::uint64_t digest() const {
    stable_hasher h;
    for (const auto& r : ranks) {
      h.add(r.machine.digest()).add(r.answered).add(r.did).add(r.begun);
      h.add(r.asked).add(r.stop_sent).add(r.vote).add(r.end.has_value());
    }
    return h.add(proposed).add(agreed).digest();
  }
};

class explorer {
public:
  /// `coupled`: every run contains a collective, so no rank ends its n-th run before all ranks have
  /// started theirs.
  explorer(fit_plan plan, interfere answers, bool coupled)
      : plan_(std::move(plan)), answers_(std::move(answers)), coupled_(coupled) {}

  void explore(std::size_t ranks) {
    world start;
    for (std::size_t i = 0; i < ranks; ++i) start.ranks.push_back({fit_machine{plan_}});
    std::vector<world> open{start};
    while (!open.empty()) {
      const auto now = std::move(open.back());
      open.pop_back();
      if (!seen_.insert(now.digest()).second) continue;
      const auto before = open.size();
      moves(now, open);
      if (open.size() == before) at_end(now);
    }
  }

  std::size_t states() const { return seen_.size(); }
  std::size_t endings = 0;
  std::vector<std::string> wrong;
  std::unordered_set<std::int64_t> stopped_at;

private:
  void moves(const world& now, std::vector<world>& open) {
    const auto with = [&](auto change) {
      open.push_back(now);
      change(open.back());
    };
    if (!now.proposed)
      with([&](world& w) {
        w.proposed = true;
        for (auto& r : w.ranks) r.asked = true;
      });
    for (std::size_t i = 0; i < now.ranks.size(); ++i) {
      const auto& rank = now.ranks[i];
      if (!rank.begun)
        with([&](world& w) {
          w.ranks[i].begun = true;
          give(w, i, fit_events::begin{});
        });
      if (rank.asked)
        with([&](world& w) {
          w.ranks[i].asked = false;
          give(w, i, propose_stop{{}, stop_reason::terminate});
        });
      if (rank.stop_sent)
        with([&](world& w) {
          w.ranks[i].stop_sent = false;
          give(w, i, stop_after(*w.agreed, stop_reason::terminate));
        });
      if (!rank.run.empty() && may_answer(now, i)) with([&](world& w) { answer(w, i); });
    }
  }

  bool may_answer(const world& now, std::size_t i) const {
    return !coupled_ || std::all_of(now.ranks.begin(), now.ranks.end(), [&](const member& other) {
      return other.answered + (other.run.empty() ? 0 : 1) > now.ranks[i].answered;
    });
  }

  void give(world& w, std::size_t i, const fit_event& event) {
    auto& rank = w.ranks[i];
    for (auto& action : rank.machine.on(event)) {
      if (auto* run = std::get_if<fit_actions::run>(&action)) rank.run = std::move(run->hooks);
      if (auto* vote = std::get_if<fit_actions::vote>(&action)) rank.vote = vote->step;
      if (auto* end = std::get_if<fit_actions::finished>(&action)) rank.end = std::move(*end);
    }
    const bool all = std::all_of(w.ranks.begin(), w.ranks.end(),
                                 [](const member& r) { return r.vote.has_value(); });
    if (!all || w.agreed) return;
    w.agreed = 0;
    for (auto& r : w.ranks) {
      w.agreed = std::max(*w.agreed, *r.vote);
      r.stop_sent = true;
    }
  }

  void answer(world& w, std::size_t i) {
    auto& rank = w.ranks[i];
    const auto run = std::move(rank.run);
    rank.run.clear();
    ++rank.answered;
    fit_events::ran answer;
    for (const auto& h : run) {
      ++answer.handled;
      hook_outcome out;
      answers_(h, out);
      answer.outcome.merge(std::move(out));
      stable_hasher did;
      did.add(rank.did).add(name(h)).add(where(h).step).add(where(h).batch);
      rank.did = did.digest();
    }
    give(w, i, answer);
  }

  void at_end(const world& w) {
    ++endings;
    for (const auto& r : w.ranks) {
      if (!r.end) return wrong.push_back("a rank never ends");
      if (!(*r.end == *w.ranks[0].end)) return wrong.push_back("ends differ");
      if (r.did != w.ranks[0].did) return wrong.push_back("hooks differ");
      if (r.end->why == stop_reason::terminate && r.machine.plan().purpose == stage::train &&
          r.end->loop.steps != *w.agreed)
        return wrong.push_back("not the agreed step");
    }
    stopped_at.insert(w.ranks[0].end->loop.steps);
  }

  fit_plan plan_;
  interfere answers_;
  bool coupled_;
  std::unordered_set<std::uint64_t> seen_;
};

void small_facts(const hook& h, hook_outcome& out) {
  if (!h.is<hooks::process_dataloader>()) {
    if (h.is<hooks::optimizer_step>()) out.samples = 5;
    if (h.is<hooks::on_validation_epoch_end>()) out.logged["val/loss"] = 1;
    return;
  }
  const auto s = where(h).stage;
  out.loaders.push_back({s, 0, s == stage::validate ? 1 : 3, 30});
}

fit_plan small_plan() {
  fit_plan plan;
  plan.max_epochs = 1;
  plan.sanity_batches = 0;
  return plan;
}

void check_world(const fit_plan& plan, const interfere& answers, std::size_t ranks, bool coupled,
                 const std::unordered_set<std::int64_t>& ends) {
  explorer all{plan, answers, coupled};
  all.explore(ranks);
  INFO(all.states() << " states, " << all.endings << " endings");
  CHECK(all.wrong == std::vector<std::string>{});
  CHECK(all.endings > 0);
  CHECK(all.stopped_at == ends);
}

}  // namespace

TEST_CASE("two ranks agree on one step in every interleaving", "[fit][world]") {
  auto plan = small_plan();
  for (const bool coupled : {true, false}) {
    check_world(plan, small_facts, 2, coupled, {0, 1, 2, 3});
    plan.one_hook_per_run = coupled;
    plan.accumulate = 2;
    plan.val_check_interval = std::int64_t{1};
    plan.checkpoint.every_n_steps = 1;
    check_world(plan, small_facts, 2, true, {0, 1, 2});
    plan = small_plan();
    plan.max_epochs = 2;
    plan.sanity_batches = 1;
    check_world(plan, small_facts, 2, coupled, {0, 1, 2, 3, 4, 5, 6});
    plan = small_plan();
  }
}

TEST_CASE("three ranks agree on one step in every interleaving", "[fit][world]") {
  check_world(small_plan(), small_facts, 3, true, {0, 1, 2, 3});
  auto plan = small_plan();
  plan.train_batches = std::int64_t{1};
  plan.val_batches = std::int64_t{0};
  plan.checkpoint.every_epoch = false;
  check_world(plan, small_facts, 3, false, {0, 1});
}

TEST_CASE("an agreed stop and a stop requested by a hook end in the same step", "[fit][world]") {
  const auto answers = [](const hook& h, hook_outcome& out) {
    small_facts(h, out);
    if (name(h) == "on_train_batch_end" && where(h).batch == 1) out.stop = true;
  };
  check_world(small_plan(), answers, 2, true, {0, 1, 2});
}

TEST_CASE("an agreed stop and early stopping end in the same step", "[fit][world]") {
  auto plan = small_plan();
  plan.stop_early = {{"val/loss", 0, 1, false}};
  plan.val_check_interval = std::int64_t{1};
  check_world(plan, small_facts, 2, true, {0, 1, 2});
}

TEST_CASE("ranks of an evaluation agree on the batch at which they stop", "[fit][world]") {
  for (const auto purpose : {stage::validate, stage::test, stage::predict})
    for (const bool coupled : {true, false}) {
      fit_plan plan;
      plan.purpose = purpose;
      plan.run_batches = 1;
      check_world(plan, small_facts, 2, coupled, {0});
    }
}

TEST_CASE("a stop during a resume takes effect at the restored step or later", "[fit][world]") {
  auto plan = small_plan();
  plan.resume = "here";
  const auto answers = [](const hook& h, hook_outcome& out) {
    small_facts(h, out);
    if (!h.is<hooks::load_checkpoint>()) return;
    out.restored.emplace();
    out.restored->steps = 41;
    out.restored->batch = 1;
  };
  explorer all{plan, answers, true};
  all.explore(2);
  CHECK(all.stopped_at == std::unordered_set<std::int64_t>{41, 42, 43});
  for (const auto& what : all.wrong) CHECK(what == "not the agreed step");  // all ranks voted 0
}
