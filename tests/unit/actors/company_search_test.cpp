// Goal: every interleaving of a small company ends well. A world of machines (one supervisor, two
// ranks, their lanes and the messages between them) is a value; a search visits every state it can
// reach, once.
#include <deque>
#include <map>
#include <set>
#include <sstream>

#include "actors/rank_machine.hpp"
#include "actors/supervisor_machine.hpp"
#include "messages/stable_hash.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

constexpr std::int32_t ranks_in_world = 2;

struct options {
  bool may_throw = false;  ///< one lane may throw at one run
  bool may_stop = false;   ///< the caller may ask for a stop, once
  bool may_die = false;    ///< one rank's actor may vanish
};

struct rank_side {
  rank_machine machine;
  std::deque<supervision::order> inbox;
  std::optional<hook_run> lane;
  bool lane_closing = false;
  bool communicator_opening = false;
  bool gone = false;
};

struct company {
  supervisor_machine supervisor;
  std::vector<rank_side> ranks;
  std::vector<std::deque<supervision::event>> mail;  // to the supervisor, by sender
  bool threw = false;
  bool stopped = false;
  bool died = false;
  std::int32_t thrower = -1;
  std::optional<supervision::complete> end;
};

deadlines limits() { return derive({}); }

company fresh() {
  trainer_options how;
  how.ranks = ranks_in_world;
  how.max_epochs = 1;
  how.num_sanity_val_batches = 0;
  how.checkpoint.enabled = false;
  company c{supervisor_machine{job_id{9}, ranks_in_world, limits()}, {}, {}};
  for (std::int32_t r = 0; r < ranks_in_world; ++r) {
    rank_plan plan{job_id{9}, r, incarnation_id{static_cast<std::uint64_t>(100 + r)},
                   make_plan(how, stage::train), limits()};
    c.ranks.push_back({rank_machine{plan}, {}, {}});
  }
  c.mail.resize(ranks_in_world);
  return c;
}

void supervise(company& c, const supervision::event& what) {
  for (const auto& a : c.supervisor.on(what)) {
    if (const auto* t = std::get_if<supervision::tell>(&a)) {
      auto& to = c.ranks[static_cast<std::size_t>(t->rank)];
      if (!to.gone) to.inbox.push_back(t->what);
    } else if (std::holds_alternative<supervision::flush_checkpointer>(a)) {
      supervise(c, supervision::checkpointer_done{});
    } else if (std::holds_alternative<supervision::flush_observers>(a)) {
      supervise(c, supervision::observers_done{});
    } else if (const auto* end = std::get_if<supervision::complete>(&a)) {
      c.end = *end;
    }
  }
}

supervision::event as_event(const ranks::report& r) {
  return std::visit(
      [](const auto& x) -> supervision::event {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, ranks::finished>)
          return supervision::finished{x.at, x.loop, x.why};
        else if constexpr (std::is_same_v<T, ranks::failed>)
          return supervision::failed{x.at, x.what};
        else if constexpr (std::is_same_v<T, ranks::torn>)
          return supervision::torn{x.at, x.late};
        else
          return x;
      },
      r);
}

void act(company& c, std::size_t r, const ranks::event& what) {
  auto& side = c.ranks[r];
  for (auto& a : side.machine.on(what)) {
    if (std::holds_alternative<ranks::open>(a)) side.communicator_opening = true;
    if (auto* s = std::get_if<ranks::submit>(&a)) side.lane = std::move(s->run);
    if (std::holds_alternative<ranks::close_lane>(a)) side.lane_closing = true;
    if (const auto* told = std::get_if<ranks::report>(&a)) c.mail[r].push_back(as_event(*told));
    if (std::holds_alternative<ranks::end>(a)) {
      side.gone = true;
      c.mail[r].push_back(supervision::rank_down{static_cast<std::int32_t>(r), ""});
    }
  }
}

ranks::answered answer(const hook_run& run, bool throwing) {
  ranks::answered out;
  out.at = run.at;
  if (throwing) {
    out.outcome.word = run_word::failed;
    out.what.type = "std::domain_error";
    out.what.what = "disk full";
    return out;
  }
  out.handled = static_cast<std::uint32_t>(run.hooks.size());
  for (const auto& h : run.hooks) {
    if (const auto* x = std::get_if<hooks::process_dataloader>(&h))
      out.outcome.loaders.push_back({x->at.stage, 0, x->at.stage == stage::train ? 2 : 0, 4});
    if (std::holds_alternative<hooks::setup_optimizers>(h)) out.outcome.optimizers.emplace();
  }
  return out;
}

/// All that can happen next, each applied to a copy.
std::vector<company> next_states(const company& c, const options& may) {
  std::vector<company> all;
  const auto add = [&](auto change) {
    all.push_back(c);
    change(all.back());
  };
  if (c.supervisor.phase() == supervision::phase::idle) {
    add([](company& x) {
      supervise(x, supervision::begin{{incarnation_id{100}, incarnation_id{101}}});
    });
    return all;
  }
  for (std::size_t r = 0; r < c.ranks.size(); ++r) {
    const auto& side = c.ranks[r];
    if (!c.mail[r].empty())
      add([r](company& x) {
        auto first = x.mail[r].front();
        x.mail[r].pop_front();
        supervise(x, first);
      });
    if (side.gone) continue;
    if (side.communicator_opening)
      add([r](company& x) {
        x.ranks[r].communicator_opening = false;
        act(x, r, ranks::opened{});
      });
    if (!side.inbox.empty())
      add([r](company& x) {
        auto first = x.ranks[r].inbox.front();
        x.ranks[r].inbox.pop_front();
        std::visit([&](const auto& m) { act(x, r, m); }, first);
      });
    if (side.lane) {
      const auto finish = [&](bool throwing) {
        add([&](company& x) {
          const auto run = *std::exchange(x.ranks[r].lane, std::nullopt);
          if (throwing) x.threw = true, x.thrower = static_cast<std::int32_t>(r);
          act(x, r, answer(run, throwing));
        });
      };
      finish(false);
      if (may.may_throw && !c.threw) finish(true);
    }
    if (side.lane_closing && !side.lane)
      add([r](company& x) {
        x.ranks[r].lane_closing = false;
        act(x, r, ranks::lane_ended{});
      });
    if (may.may_die && !c.died)
      add([r](company& x) {
        x.died = true;
        x.ranks[r].gone = true;
        x.ranks[r].inbox.clear();
        x.mail[r].push_back(supervision::rank_down{static_cast<std::int32_t>(r), "killed"});
      });
  }
  if (may.may_stop && !c.stopped)
    add([](company& x) {
      x.stopped = true;
      supervise(x, request_stop{stop_reason::caller});
    });
  return all;
}

std::string identity(const company& c) {
  std::ostringstream out;
  out << c.supervisor.digest() << ' ' << c.threw << c.stopped << c.died << c.thrower;
  for (std::size_t r = 0; r < c.ranks.size(); ++r) {
    const auto& side = c.ranks[r];
    out << '|' << side.machine.digest() << side.communicator_opening << side.lane_closing
        << side.gone;
    out << (side.lane ? static_cast<std::int64_t>(side.lane->at.sequence.value()) : -1);
    for (const auto& m : side.inbox) out << ' ' << m.index();
    out << '/';
    for (const auto& m : c.mail[r]) out << ' ' << m.index();
  }
  return out.str();
}

struct findings {
  std::size_t states = 0;
  std::size_t ends = 0;
  std::size_t stopped = 0;
  std::size_t failed = 0;
};

template <class Check>
findings search(const options& may, Check check) {
  findings found;
  std::set<std::string> visited;
  std::vector<company> todo{fresh()};
  while (!todo.empty()) {
    const auto c = std::move(todo.back());
    todo.pop_back();
    if (!visited.insert(identity(c)).second) continue;
    ++found.states;
    if (c.end) {
      ++found.ends;
      found.stopped += c.end->status == job_outcome::ending::stopped;
      found.failed += c.end->status == job_outcome::ending::failed;
      check(c);
      continue;
    }
    auto next = next_states(c, may);
    INFO(c.supervisor << "\n" << c.ranks[0].machine << "\n" << c.ranks[1].machine);
    REQUIRE_FALSE(next.empty());  // nobody can move, and the job has not ended
    for (auto& n : next) todo.push_back(std::move(n));
    REQUIRE(found.states < 3'000'000);
  }
  return found;
}

}  // namespace

TEST_CASE("every interleaving of an undisturbed fit finishes", "[search]") {
  const auto found = search({}, [](const company& c) {
    CHECK(c.end->status == job_outcome::ending::finished);
    CHECK(c.end->loop.steps == 2);
    CHECK(c.supervisor.committed() == 2);
  });
  WARN("complete: " << found.states << " states, " << found.ends << " ends");
  CHECK(found.ends > 0);
}

TEST_CASE("every interleaving with a throw ends with that throw as first cause", "[search]") {
  const auto found = search({.may_throw = true}, [](const company& c) {
    if (!c.threw) return;
    REQUIRE(c.end->first);
    CHECK(c.end->first->what == "disk full");
    CHECK(c.end->first->rank == c.thrower);
    CHECK(c.end->survivors.empty());
  });
  WARN("complete: " << found.states << " states, " << found.ends << " ends");
  CHECK(found.failed > 0);
}

TEST_CASE("every interleaving with a stop ends at one boundary on all ranks", "[search]") {
  const auto found = search({.may_stop = true}, [](const company& c) {
    CHECK(c.end->status != job_outcome::ending::failed);
    CHECK(c.ranks[0].machine.fit().loop().steps == c.ranks[1].machine.fit().loop().steps);
  });
  WARN("complete: " << found.states << " states, " << found.ends << " ends");
  CHECK(found.stopped > 0);
}

TEST_CASE("every interleaving with a vanished actor ends as failed, or was over", "[search]") {
  const auto found = search({.may_die = true}, [](const company& c) {
    if (!c.end->first) return;
    CHECK(c.end->first->type == "down");
  });
  WARN("complete: " << found.states << " states, " << found.ends << " ends");
  CHECK(found.failed > 0);
}
