#include "apps/testing/protocol_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace troupe::testing {

namespace {

constexpr const char* names[]{"idle", "forming", "active", "closing", "tearing", "ending", "over"};

}  // namespace

void protocol_checker::attempt_begins(std::int32_t ranks, deadlines limits,
                                      std::int32_t max_restarts, bool links) {
  limits_ = limits;
  ranks_ = ranks;
  max_restarts_ = max_restarts;
  links_ = links;
  formed_ = planned_ = requested_ = 0;
  changes_ = replaced_ = false;
  members_.clear();
  now_ = phase::idle;
  forming_ = active_ = 0;
  progress_ = false;
  passed_.clear();
}

void protocol_checker::turn_to(phase next, std::chrono::nanoseconds now) {
  if (now_ != phase::idle) passed_.push_back({now_, now - since_, busy_});
  busy_ = !links_;
  now_ = next;
  since_ = now;
}

void protocol_checker::announced(const seen::lifecycle& what, std::chrono::nanoseconds now) {
  const auto say = [&](bool holds, const char* text) {
    judge(
        holds, one_generation,
        [&] {
          return fmt::format("generation {} {}, while {} is {}", what.generation, text, forming_,
                             names[static_cast<std::size_t>(now_)]);
        },
        what.step, what.rank);
  };
  if (what.event == lifecycle_kind::generation_forming) {
    say((now_ == phase::idle || now_ == phase::closing) && what.generation > forming_, "is formed");
    forming_ = what.generation;
    if (!std::exchange(replaced_, false)) ++(changes_ ? planned_ : formed_);
    changes_ = false;
    // If all ranks move, one of them stays first and moves with a second change.
    judge(
        formed_ <= 1 + max_restarts_ && planned_ <= 2 * requested_, budget,
        [&] {
          return fmt::format(
              "generation {} is formed, {} after failures and {} after {} requests for a change, "
              "and {} restarts are allowed",
              what.generation, formed_ - 1, planned_, requested_, max_restarts_);
        },
        what.step, what.rank);
    turn_to(phase::forming, now);
  } else if (what.event == lifecycle_kind::generation_active) {
    say(now_ == phase::forming && what.generation == forming_, "becomes active");
    active_ = what.generation;
    turn_to(phase::active, now);
  } else if (what.event == lifecycle_kind::generation_closing) {
    say((now_ == phase::forming || now_ == phase::active) && what.generation == forming_,
        "is closed");
    changes_ = what.details.contains("why");
    turn_to(phase::closing, now);
  } else if (what.event == lifecycle_kind::rank_failed) {
    changes_ = false;
    // The checkpoint to begin with may be removed, and then a generation is free.
    const auto why = what.details.find("what");
    replaced_ = replaced_ || (what.generation > 1 && why != what.details.end() &&
                              why->second.find(hooks::load_checkpoint::name) != std::string::npos);
  } else if (what.event == lifecycle_kind::teardown) {
    turn_to(phase::tearing, now);
  } else if (what.event == lifecycle_kind::job_ended) {
    turn_to(phase::ending, now);
  }
}

void protocol_checker::reported(const link_message& what) {
  if (std::holds_alternative<step_done>(what)) return;  // the most frequent message
  if (const auto* busy = std::get_if<rank_busy>(&what)) {
    busy_ = busy_ || !busy->overdue;
    progress_ = progress_ || now_ == phase::forming;
  }
  const auto leaves = [&](const fence& at, std::uint64_t generation) {
    auto& left = members_[at.incarnation].left;
    left = std::max(left, generation);
  };
  if (const auto* closed = std::get_if<closed_generation>(&what)) {
    leaves(closed->at, closed->at.generation.value());
  } else if (const auto* ready = std::get_if<prepared>(&what)) {
    if (ready->at.generation.value() > 1) leaves(ready->at, ready->at.generation.value() - 1);
  } else if (const auto* torn = std::get_if<torn_down>(&what)) {
    members_[torn->at.incarnation].torn = true;
  }
}

void protocol_checker::stepped(std::int32_t rank, incarnation_id incarnation,
                               std::uint64_t generation, std::int64_t step) {
  judge(
      0 < generation && generation <= active_, one_generation,
      [&] { return fmt::format("a step before generation {} is active", generation); }, step, rank);
  const auto found = members_.find(incarnation);
  const bool known = found != members_.end();
  judge(
      !known || (generation > found->second.left && !found->second.torn), one_generation,
      [] { return "a step in a generation that the rank has closed"; }, step, rank);
}

// How long the supervisor may stay in this phase; zero: without limit.
std::chrono::nanoseconds protocol_checker::limit_of(const passed& p) const {
  const auto of_hook = p.busy ? limits_.hook_limit : std::chrono::nanoseconds{0};
  switch (p.what) {
    case phase::forming: return progress_ ? limits_.form + limits_.form_most : limits_.form;
    // A later failure may end the job: then all ranks are asked once more. A job that would lose
    // steps waits for hooks that run.
    case phase::closing:
      return max_restarts_ > 0 ? limits_.settle + 2 * limits_.close + of_hook
                               : limits_.settle + limits_.close;
    case phase::tearing: return limits_.orderly_teardown + limits_.teardown + limits_.flush;
    case phase::ending: return limits_.teardown;
    default: return {};
  }
}

void protocol_checker::ended(const job_outcome& outcome, const attempt_facts& facts,
                             const std::function<last_life(std::int32_t rank)>& last,
                             std::chrono::nanoseconds now) {
  turn_to(phase::over, now);
  // Slow clocks and late timers make the supervisor's own deadlines late.
  const auto latest = facts.program ? facts.delayed : std::chrono::milliseconds{1};
  for (const auto& one : passed_)
    if (const auto limit = limit_of(one); limit.count() > 0)
      judge(
          one.took <= limit + latest, deadline,
          [&] {
            return fmt::format("{} took {} ms, more than {} ms",
                               names[static_cast<std::size_t>(one.what)],
                               one.took.count() / 1'000'000, limit.count() / 1'000'000);
          },
          undefined, -1);
  for (std::int32_t r = 0; r < ranks_; ++r) {
    const auto named = [&] {
      const auto called = fmt::format("rank {}:", r);
      return std::ranges::any_of(outcome.survivors,
                                 [&](const std::string& s) { return s.starts_with(called); });
    };
    const auto life = last(r);
    const auto found = members_.find(life.incarnation);
    judge((found != members_.end() && found->second.torn) || life.gone || named(), answered,
          [] { return "it neither ended nor answered, and is not named"; }, undefined, r);
  }
}

}  // namespace troupe::testing
