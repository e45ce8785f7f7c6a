#include "apps/testing/protocol_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <caf/message.hpp>

#include "apps/testing/virtual_system.hpp"
#include "messages/interfaces.hpp"

namespace troupe::testing {

namespace {

constexpr const char* names[]{"idle", "forming", "active", "closing", "tearing", "ending", "over"};

}  // namespace

void protocol_checker::attempt_begins(std::int32_t ranks, deadlines limits) {
  limits_ = limits;
  members_.assign(static_cast<std::size_t>(ranks), {});
  now_ = phase::idle;
  forming_ = 0;
  passed_.clear();
}

void protocol_checker::turn_to(phase next, std::chrono::nanoseconds now) {
  if (now_ != phase::idle) passed_.push_back({now_, now - since_});
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
    say(now_ == phase::idle && what.generation > forming_, "is formed");
    forming_ = what.generation;
    turn_to(phase::forming, now);
  } else if (what.event == lifecycle_kind::generation_active) {
    say(now_ == phase::forming && what.generation == forming_, "becomes active");
    turn_to(phase::active, now);
  } else if (what.event == lifecycle_kind::generation_closing) {
    say((now_ == phase::forming || now_ == phase::active) && what.generation == forming_,
        "is closed");
    turn_to(phase::closing, now);
  } else if (what.event == lifecycle_kind::teardown) {
    turn_to(phase::tearing, now);
  } else if (what.event == lifecycle_kind::job_ended) {
    turn_to(phase::ending, now);
  }
}

void protocol_checker::reported(std::int32_t rank, const caf::message& what) {
  if (holds<step_done>(what)) return;  // the most frequent message
  auto& of = members_[static_cast<std::size_t>(rank)];
  if (holds<closed_generation>(what)) of.closed = true;
  if (holds<torn_down>(what)) of.torn = true;
}

void protocol_checker::stepped(std::int32_t rank, std::int64_t step) {
  judge(
      now_ != phase::idle && now_ != phase::forming, one_generation,
      [] { return "a step before the generation is active"; }, step, rank);
  const auto& of = members_[static_cast<std::size_t>(rank)];
  judge(
      !of.closed && !of.torn, one_generation,
      [] { return "a step in a generation that the rank has closed"; }, step, rank);
}

// How long the supervisor may stay in this phase; zero: without limit.
std::chrono::nanoseconds protocol_checker::limit_of(phase p) const {
  switch (p) {
    case phase::forming: return limits_.form;
    case phase::closing: return limits_.settle + limits_.close;
    case phase::tearing: return limits_.orderly_teardown + limits_.teardown + limits_.flush;
    case phase::ending: return limits_.teardown;
    default: return {};
  }
}

void protocol_checker::ended(const job_outcome& outcome, const attempt_facts& facts,
                             const std::function<bool(std::int32_t rank)>& gone,
                             std::chrono::nanoseconds now) {
  turn_to(phase::over, now);
  // Slow clocks and late timers make the supervisor's own deadlines late.
  const auto latest = facts.program ? facts.delayed : std::chrono::milliseconds{1};
  for (const auto& [what, took] : passed_)
    if (const auto limit = limit_of(what); limit.count() > 0)
      judge(
          took <= limit + latest, deadline,
          [&, what = what, took = took] {
            return fmt::format("{} took {} ms, more than {} ms",
                               names[static_cast<std::size_t>(what)], took.count() / 1'000'000,
                               limit.count() / 1'000'000);
          },
          undefined, -1);
  for (std::int32_t r = 0; r < static_cast<std::int32_t>(members_.size()); ++r) {
    const auto named = [&] {
      const auto called = fmt::format("rank {}:", r);
      return std::ranges::any_of(outcome.survivors,
                                 [&](const std::string& s) { return s.starts_with(called); });
    };
    judge(
        members_[static_cast<std::size_t>(r)].torn || gone(r) || named(), answered,
        [] { return "it neither ended nor answered, and is not named"; }, undefined, r);
  }
}

}  // namespace troupe::testing
