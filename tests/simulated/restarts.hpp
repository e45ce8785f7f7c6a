// A job of three ranks that restarts in the simulator, for tests of one interleaving, and what must
// hold at its end.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "apps/testing/scripted_simulation.hpp"

#include "tests/support/catch.hpp"

namespace troupe::testing {

/// Whether a hook at this place has been handled, of this rank.
struct hook_seen {
  std::int32_t rank = 0;
  std::string_view hook;
  std::int64_t step = undefined;
  std::uint64_t generation = 0;
  friend auto operator<=>(const hook_seen&, const hook_seen&) = default;
};

class restarting_job {
public:
  static constexpr std::int32_t ranks = 3;
  static constexpr std::int64_t steps = 12;

  struct settings {
    std::uint64_t seed = 0;
    std::int32_t max_restarts = 3;
    scheduling schedule = scheduling::random;
    bool buffers = false;
    std::int64_t checkpoint_every = 100;
    std::int32_t ranks = restarting_job::ranks;
    std::int64_t accumulate = 1;
    bool record = false;
    bool one_hook_per_run = false;
    observer_factory observer = {};
    elastic_options elastic = {};  ///< all but `max_restarts`
    nanoseconds start = cluster_model{}.start;
  };

  explicit restarting_job(settings how) : how_(how), script(options()) {
    what_.ranks = how.ranks;
    what_.steps = steps;
    what_.samples = 40;
    what_.checkpoint_every = how.checkpoint_every;
    what_.buffers = how.buffers;
    what_.accumulate = how.accumulate;
    what_.max_restarts = how.max_restarts;
    what_.one_hook_per_run = how.one_hook_per_run;
    script.sim_job().before_start = [how](supervisor_setup& setup) {
      if (how.observer) setup.what.observers.push_back(how.observer);
      setup.what.options.elastic = how.elastic;
      setup.what.options.elastic.max_restarts = how.max_restarts;
    };
    script.sim_job().listen([this](const seen::lifecycle& l) { life.push_back(l); });
    script.train(what_);
  }

  /// Runs until the job has announced this event of this generation.
  bool until(lifecycle_kind event, std::uint64_t generation) {
    return script.run_until([&] { return announced(event, generation); });
  }
  /// Runs until the first failure is being recovered from: the generation is closed (0), the next
  /// one is formed (1), a rank of it is prepared (2).
  bool recovers(std::uint64_t moment) {
    if (moment == 0) return until(lifecycle_kind::generation_closing, 1);
    return until(moment == 1 ? lifecycle_kind::generation_forming : lifecycle_kind::rank_started,
                 2);
  }
  bool announced(lifecycle_kind event, std::uint64_t generation) const {
    return std::ranges::any_of(life, [&](const seen::lifecycle& l) {
      return l.event == event && l.generation == generation;
    });
  }
  /// Runs until the rank enters this hook; `step`: finished steps, or any.
  bool until(std::int32_t rank, std::string_view hook, std::int64_t step = undefined) {
    const auto before = entered.size();
    return script.run_until([&] {
      for (auto i = before; i < entered.size(); ++i)
        if (entered[i].rank == rank && entered[i].hook == hook &&
            (step == undefined || entered[i].step == step))
          return true;
      return false;
    });
  }
  /// How many ranks have finished this step in the newest generation that did it.
  std::size_t finished(std::int64_t step) const {
    std::map<std::uint64_t, std::set<std::int32_t>> by;
    for (const auto& s : done)
      if (s.step == step) by[s.generation].insert(s.rank);
    return by.empty() ? 0 : by.rbegin()->second.size();
  }
  std::size_t times(std::int64_t step, std::int32_t rank) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        done, [&](const finished_step& s) { return s.step == step && s.rank == rank; }));
  }
  /// The job ends as if nothing had happened, in so many generations.
  const job_outcome& ends_well(std::size_t generations) {
    const auto& end = script.run();
    CHECK(end.restarts == static_cast<std::int32_t>(generations) - 1);
    CHECK(end.generations.size() == generations);
    return ends_as_reference();
  }
  /// The job has the weights, steps and samples of the reference.
  const job_outcome& ends_as_reference() {
    const auto& end = script.run();
    if (!end.ok()) FAIL("seed " << how_.seed << ": " << render(end.failed_with->record));
    CHECK(end.status == job_outcome::ending::finished);
    CHECK(end.loop.steps == steps);
    CHECK(script.weights() == script.reference_weights());
    auto reference = reference_of(what_);
    std::int64_t samples = 0;
    for (std::int64_t s = 1; s <= steps; ++s) samples += reference.consumed_by(s).second.count;
    CHECK(end.loop.samples == samples);
    for (const auto& s : done) CHECK(s.digest == reference.digest_after(s.step));
    for (std::int64_t s = 1; s <= steps; ++s) CHECK(finished(s) > 0);
    nothing_is_left();
    return end;
  }
  /// The job fails with this record, after so many restarts.
  const failure& fails(std::int32_t restarts) {
    const auto& end = script.run();
    CHECK(end.status == job_outcome::ending::failed);
    CHECK(end.restarts == restarts);
    REQUIRE(end.failed_with);
    nothing_is_left();
    return end.failed_with->record;
  }
  void nothing_is_left() {
    script.settle();
    CHECK(script.in().actors() == 0);
    CHECK(script.sim_job().fabric().handles() == 0);
    for (const auto& t : script.in().troubles()) FAIL_CHECK(t);
  }
  std::int32_t size() const { return what_.ranks; }
  bool alive(std::int32_t rank) {
    const auto* of = script.sim_job().life_of(rank);
    return of && script.in().alive(of->node);
  }

  std::vector<seen::lifecycle> life;
  std::vector<hook_seen> entered;
  std::vector<finished_step> done;  // `state` is void
  /// May throw in a hook of a rank.
  std::function<void(const learner_context& who, const hook& what)> at_hook;

private:
  script_options options() {
    script_options o;
    o.seed = how_.seed;
    o.record = how_.record;
    o.logs = static_cast<bool>(how_.observer);
    o.schedule = how_.schedule;
    o.cluster.compute = std::chrono::milliseconds{5};
    o.cluster.start = how_.start;
    o.cluster.lanes_in_spans = false;
    o.at_hook = [this](const learner_context& who, const hook& h) {
      const auto* of = script.sim_job().life_at(script.in().here(), who.rank);
      entered.push_back({who.rank, name(h), where(h).step, of ? of->generation : 0});
      if (at_hook) at_hook(who, h);
    };
    o.stepped = [this](const finished_step& s) {
      done.push_back(s);
      done.back().state = nullptr;
    };
    return o;
  }

  settings how_;
  job_spec what_;

public:
  scripted_simulation script;  // last: it calls back
};

}  // namespace troupe::testing
