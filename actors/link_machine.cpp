#include "actors/link_machine.hpp"

#include <algorithm>

#include "troupe/detail/coverage.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

namespace {

constexpr std::uint64_t holds_bits = 64;

}  // namespace

std::uint64_t link_machine::submit() {
  if (over_) return 0;
  if (sometimes(submitted_ - acknowledged_ >= limits_.window, coverage_point::link_full)) {
    over_ = true;
    return 0;
  }
  return ++submitted_;
}

link_machine::receipt link_machine::arrived(const link_frame& what, std::chrono::nanoseconds now) {
  receipt answer;
  answer.release_to = acknowledged_;
  if (over_) return answer;
  last_heard_ = std::max(last_heard_, now);
  if (what.heard > submitted_) return answer;  // of another link: nothing to learn from
  learn(what);
  answer.release_to = acknowledged_;
  always(acknowledged_ <= submitted_, coverage_point::heard_is_sent);
  if (what.number <= heard_ || what.number > heard_ + limits_.window) {
    sometimes(what.number != 0 && what.number <= heard_, coverage_point::link_repeat);
    return answer;
  }
  if (what.number == heard_ + 1) {
    answer.deliver = true;
    hear_held();
  } else {
    answer.hold = hold(what.number);
  }
  return answer;
}

void link_machine::learn(const link_frame& what) {
  if (what.heard < acknowledged_) return;  // it was overtaken
  if (what.heard > acknowledged_) peer_holds_ = 0;
  acknowledged_ = what.heard;
  peer_holds_ |= what.holds;
}

// The next one is there, and with it those that waited for it.
void link_machine::hear_held() {
  ++heard_;
  auto next = held_.begin();
  for (; next != held_.end() && *next <= heard_ + 1; ++next) heard_ = std::max(heard_, *next);
  held_.erase(held_.begin(), next);
}

bool link_machine::hold(std::uint64_t number) {
  const auto at = std::ranges::lower_bound(held_, number);
  const bool fresh = at == held_.end() || *at != number;
  if (sometimes(fresh, coverage_point::link_gap)) held_.insert(at, number);
  return fresh;
}

link_machine::beat_result link_machine::beat(std::chrono::nanoseconds now) {
  beat_result result;
  if (over_) return result;
  if (now - last_heard_ >= limits_.limit) {
    over_ = result.lost = sometimes(true, coverage_point::link_silent);
    return result;
  }
  if (submitted_at_beat_ > acknowledged_) result.again = missing();
  result.speak = submitted_ == submitted_at_beat_;
  submitted_at_beat_ = submitted_;
  return result;
}

// What was there at the last beat and has not been heard since has had its time. What is further
// ahead than bits reach waits until it is near.
std::vector<std::uint64_t> link_machine::missing() const {
  std::vector<std::uint64_t> all;
  const auto last = std::min(submitted_at_beat_, acknowledged_ + 1 + holds_bits);
  for (auto n = acknowledged_ + 1; n <= last && all.size() < limits_.burst; ++n)
    if (n == acknowledged_ + 1 || (peer_holds_ >> (n - acknowledged_ - 2) & 1) == 0)
      all.push_back(n);
  sometimes(!all.empty(), coverage_point::link_sends_again);
  return all;
}

std::uint64_t link_machine::holds() const {
  std::uint64_t bits = 0;
  for (const auto n : held_)
    if (n - heard_ - 2 < holds_bits) bits |= std::uint64_t{1} << (n - heard_ - 2);
  return bits;
}

std::uint64_t link_machine::digest() const {
  stable_hasher h;
  h.add(limits_.beat.count()).add(limits_.limit.count()).add(limits_.window).add(limits_.burst);
  h.add(submitted_).add(acknowledged_).add(peer_holds_).add(submitted_at_beat_);
  h.add(held_.size());
  for (const auto number : held_) h.add(number);
  return h.add(heard_).add(last_heard_.count()).add(over_).digest();
}

std::ostream& operator<<(std::ostream& out, const link_machine& m) {
  return out << "link(sent " << m.submitted_ << ", acknowledged " << m.acknowledged_ << ", heard "
             << m.heard_ << (m.over_ ? ", over)" : ")");
}

}  // namespace troupe
