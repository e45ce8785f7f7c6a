#include "actors/link_machine.hpp"

#include <algorithm>

#include "messages/marks.hpp"
#include "messages/planted.hpp"
#include "messages/stable_hash.hpp"

namespace troupe {

std::uint64_t link_machine::submit() {
  if (over_) return 0;
  if (sometimes(submitted_ - acknowledged_ >= limits_.window, mark::link_full)) {
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
  acknowledged_ = std::max(acknowledged_, what.heard);
  answer.release_to = acknowledged_;
  always(acknowledged_ <= submitted_, mark::heard_is_sent);
  answer.send_again = !planted(bug::never_sent_again) && what.again &&
                      what.heard == acknowledged_ && acknowledged_ < submitted_;
  if (planted(bug::gap_skipped) && what.number > heard_) heard_ = what.number - 1;
  if (what.number == heard_ + 1) {
    ++heard_;
    answer.deliver = true;
  } else {
    answer.ask_again = sometimes(what.number > heard_, mark::link_gap);
    sometimes(what.number != 0 && what.number <= heard_, mark::link_repeat);
  }
  return answer;
}

link_machine::beat_result link_machine::beat(std::chrono::nanoseconds now) {
  beat_result result;
  if (over_) return result;
  if (now - last_heard_ >= limits_.limit && !planted(bug::silence_endures)) {
    over_ = result.lost = sometimes(true, mark::link_silent);
    return result;
  }
  // What was there at the last beat already and is not acknowledged has had its time.
  result.send_again = !planted(bug::never_sent_again) && acknowledged_ < submitted_at_beat_ &&
                      acknowledged_ == acknowledged_at_beat_;
  sometimes(result.send_again, mark::link_sends_again);
  result.speak = submitted_ == submitted_at_beat_;
  acknowledged_at_beat_ = acknowledged_;
  submitted_at_beat_ = submitted_;
  return result;
}

std::uint64_t link_machine::digest() const {
  stable_hasher h;
  h.add(limits_.beat.count()).add(limits_.limit.count()).add(limits_.window);
  h.add(submitted_).add(acknowledged_).add(acknowledged_at_beat_).add(submitted_at_beat_);
  return h.add(heard_).add(last_heard_.count()).add(over_).digest();
}

std::ostream& operator<<(std::ostream& out, const link_machine& m) {
  return out << "link(sent " << m.submitted_ << ", acknowledged " << m.acknowledged_ << ", heard "
             << m.heard_ << (m.over_ ? ", over)" : ")");
}

}  // namespace troupe
