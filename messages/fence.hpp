// The fence: the part of a message that lets its receiver recognise a message that arrived late.
#pragma once

#include "troupe/detail/ids.hpp"

namespace troupe {

/// Part of every message that can arrive late. A receiver drops a message of another job, of an
/// older term or generation, or of another incarnation than the one that it knows, and takes no
/// value from it. `step` and `sequence` order the messages of one sender; wall clocks never do.
struct fence {
  job_id job;
  term_id term{1};
  generation_id generation;
  incarnation_id incarnation;
  step_id step;
  sequence_id sequence;

  friend bool operator==(const fence&, const fence&) = default;
};

/// Why a fence was refused; `current` means it was not.
enum class fence_verdict : std::uint8_t {
  current,
  other_job,
  stale_term,
  stale_generation,
  future_generation,
  other_incarnation,
};

/// Compares a message's fence with the receiver's own: job first, then term, generation and
/// incarnation. Receivers have their own rules for step and sequence. Thread-safe (pure).
constexpr fence_verdict check(const fence& message, const fence& mine) {
  if (message.job != mine.job) return fence_verdict::other_job;
  if (message.term < mine.term) return fence_verdict::stale_term;
  if (message.generation < mine.generation) return fence_verdict::stale_generation;
  if (message.generation > mine.generation) return fence_verdict::future_generation;
  if (message.incarnation != mine.incarnation) return fence_verdict::other_incarnation;
  return fence_verdict::current;
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, fence& x) {
  return f(x.job, x.term, x.generation, x.incarnation, x.step, x.sequence);
}

}  // namespace troupe
