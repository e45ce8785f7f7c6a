// Goal: a message of another job, another generation or another incarnation changes nothing at a
// rank or at the supervisor, in any phase. The refusal is counted as a coverage point.
#include "actors/rank_machine.hpp"
#include "actors/supervisor_machine.hpp"
#include "troupe/detail/coverage.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

constexpr job_id job{7};
constexpr incarnation_id life{50};

class counted final : public coverage_sink {
public:
  bool rare(coverage_point) override { return false; }
  void hit(coverage_point which) override { ++hits[static_cast<std::size_t>(which)]; }
  void broken(coverage_point) override {}
  std::array<int, coverage_point_count> hits{};
};

fence fence_of(job_id of, std::uint64_t generation, incarnation_id who) {
  fence at;
  at.job = of;
  at.generation = generation_id{generation};
  at.incarnation = who;
  at.step = step_id{2};
  return at;
}

// Fences that differ from generation 1 of `job` and incarnation `life`.
std::vector<fence> stale_fences(bool newer_generation) {
  std::vector<fence> all{fence_of(job_id{6}, 1, life), fence_of(job, 0, life),
                         fence_of(job, 1, incarnation_id{49}),
                         fence_of(job_id{6}, 2, incarnation_id{49})};
  if (newer_generation) all.push_back(fence_of(job, 2, life));
  return all;
}

failure some_failure() {
  failure what;
  what.type = "std::bad_alloc";
  what.what = "of yesterday";
  what.rank = 0;
  return what;
}

rank_machine fresh_rank() {
  rank_plan plan;
  plan.job = job;
  plan.incarnation = life;
  trainer_options options;
  options.ranks = 2;
  plan.fit = make_plan(options, stage::train, {});
  plan.limits = derive({});
  return rank_machine{plan};
}

// A rank after each of these messages, beginning with none.
std::vector<rank_machine> ranks_of_all_phases() {
  const auto at = fence_of(job, 1, life);
  std::vector<rank_machine> all{fresh_rank()};
  const auto then = [&](const ranks::event& e) {
    auto next = all.back();
    next.on(e);
    all.push_back(std::move(next));
  };
  then(form_generation{at, 2});
  then(ranks::opened{});
  then(activate_generation{at});
  then(close_generation{at, some_failure()});
  then(tear_down{at, false});
  return all;
}

std::vector<ranks::event> words_to_rank(const fence& at) {
  ranks::answered answer;
  answer.at = at;
  return {activate_generation{at},
          propose_stop{at, stop_reason::caller},
          stop_at{at, stop_reason::caller},
          close_generation{at, some_failure()},
          tear_down{at, true},
          answer};
}

std::vector<supervisor_machine> supervisors_of_all_phases() {
  const incarnation_id other{60};
  const auto a = fence_of(job, 1, life);
  const auto b = fence_of(job, 1, other);
  std::vector<supervisor_machine> all{supervisor_machine{job, 2, derive({})}};
  const auto then = [&](const supervision::event& e) {
    auto next = all.back();
    next.on(e);
    all.push_back(std::move(next));
  };
  then(supervision::begin{{life, other}});
  then(prepared{a});
  then(prepared{b});
  then(request_stop{stop_reason::caller});
  then(rank_failed{b, without_exception(some_failure())});
  then(closed_generation{.at = b, .last = true});
  then(closed_generation{.at = a, .last = true});
  then(torn_down{b, {}, {}, {}});
  return all;
}

std::vector<supervision::event> words_to_supervisor(const fence& at) {
  return {prepared{at},
          step_done{at},
          stop_vote{at},
          rank_finished{at, {}, stop_reason::none, {}, {}},
          rank_failed{at, without_exception(some_failure())},
          closed_generation{at},
          rank_busy{at, "on_exception for 1.0 s"},
          torn_down{at, {}, {some_failure()}, {}}};
}

template <class Machine, class Words>
void ignores_all(const std::vector<Machine>& phases, const std::vector<fence>& stale, Words words,
                 coverage_point refused) {
  counted marks;
  const coverage_scope watched{&marks};
  int said = 0;
  for (const auto& before : phases)
    for (const auto& at : stale)
      for (const auto& word : words(at)) {
        auto machine = before;
        INFO("word " << word.index() << " of job " << at.job << ", generation " << at.generation
                     << ", incarnation " << at.incarnation << " to " << before);
        const auto out = machine.on(word);
        CHECK(out.empty());
        CHECK(machine == before);
        CHECK(marks.hits[static_cast<std::size_t>(refused)] == ++said);
      }
  CHECK(said > 50);
}

}  // namespace

TEST_CASE("a rank ignores messages of another job or generation or incarnation in every phase",
          "[rank][fence]") {
  ignores_all(ranks_of_all_phases(),
              {fence_of(job_id{6}, 1, life), fence_of(job, 1, incarnation_id{49}),
               fence_of(job_id{6}, 2, incarnation_id{49})},
              words_to_rank, coverage_point::rank_fence_refused);
}

TEST_CASE("a waiting rank joins a generation of its own job only and only once", "[rank][fence]") {
  for (const auto& at : {fence_of(job_id{6}, 1, life), fence_of(job, 0, life)}) {
    auto machine = fresh_rank();
    CHECK(machine.on(form_generation{at, 2}).empty());
    CHECK(machine == fresh_rank());
  }
  auto machine = fresh_rank();
  CHECK_FALSE(machine.on(form_generation{fence_of(job, 1, life), 2}).empty());
  const auto formed = machine;
  CHECK(machine.on(form_generation{fence_of(job, 1, life), 2}).empty());
  CHECK(machine.on(form_generation{fence_of(job, 2, life), 3}).empty());
  CHECK(machine == formed);
}

TEST_CASE("the supervisor ignores messages of another job or generation or incarnation",
          "[supervisor][fence]") {
  ignores_all(supervisors_of_all_phases(), stale_fences(true), words_to_supervisor,
              coverage_point::fence_refused);
}
