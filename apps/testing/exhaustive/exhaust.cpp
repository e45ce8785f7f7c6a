#include "troupe/testing/exhaustive.hpp"

#include "apps/testing/exhaustive/small_job_moves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace troupe::testing {

std::string_view to_string(small_fault f) {
  switch (f) {
    case small_fault::none: return "none";
    case small_fault::throws: return "throws";
    case small_fault::vanishes: return "vanishes";
    case small_fault::leaves: return "leaves";
    case small_fault::stops: return "stops";
    case small_fault::aborts: return "aborts";
    case small_fault::loses: return "loses";
    case small_fault::repeats: return "repeats";
    case small_fault::early_deadline: return "early_deadline";
  }
  return "unknown";
}

std::vector<small_fault> small_faults() {
  std::vector<small_fault> all;
  for (auto i = static_cast<int>(small_fault::throws);
       i <= static_cast<int>(small_fault::early_deadline); ++i)
    all.push_back(static_cast<small_fault>(i));
  return all;
}

namespace {

void check(const exhaustive_options& o) {
  const auto refuse = [](std::string what) {
    throw user_error(errc::bad_usage, "exhaustive mode: " + std::move(what));
  };
  if (o.ranks < 1 || o.ranks > 4)
    refuse(fmt::format("{} ranks; it takes 1 to 4, more need seeds (troupe simulate)", o.ranks));
  if (o.steps < 0 || o.steps > 8) refuse(fmt::format("{} steps; it takes 0 to 8", o.steps));
  if (o.restarts < 0 || o.restarts > 1)
    refuse(fmt::format("{} restarts; it takes 0 or 1", o.restarts));
  if (o.budget > 2) refuse(fmt::format("{} faults in a run; it takes 0 to 2", o.budget));
}

class small_job_search {
public:
  /// The first `fixed` ranks are not taken as equal to others.
  small_job_search(const exhaustive_options& options, std::int32_t fixed)
      : options_(options), space_(options, rank_permutations{options.ranks, fixed}) {}

  exhaustive_report run() {
    const auto began = std::chrono::steady_clock::now();
    const auto seconds = [began] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    auto start = space_.start();
    space_.make_canonical(start);
    add(start, 0, {});
    while (!level_.empty() && !stopped()) {
      now_ = std::move(level_);
      level_.clear();
      for (std::size_t i = 0; i < now_.size() && !stopped(); i += width()) {
        if ((i / width()) % 4096 == 0) check_bounds(seconds());
        visit(unpacked(now_, i), now_[i + width() - 1]);
      }
      if (!level_.empty() && !stopped()) ++report_.depth;
    }
    report_.states = visited_.size();
    report_.symmetries = space_.symmetry().size();
    report_.complete = !stopped();
    report_.seconds = seconds();
    note_bytes();
    return std::move(report_);
  }

private:
  // A state of a level is its words and its number.
  std::size_t width() const { return space_.words() + 1; }
  bool stopped() const { return report_.violation || !report_.bound.empty(); }

  small_job_state unpacked(const std::vector<std::uint32_t>& level, std::size_t at) const {
    small_job_state s{};
    std::copy_n(level.begin() + static_cast<std::ptrdiff_t>(at), space_.words(), s.begin());
    return s;
  }

  bool add(const small_job_state& s, std::uint32_t from, const small_job_move& by) {
    if (!visited_.insert(digest_of({s.data(), space_.words()})).second) return false;
    const auto number = static_cast<std::uint32_t>(ways_.size());
    ways_.push_back({from, by});
    level_.insert(level_.end(), s.begin(), s.begin() + static_cast<std::ptrdiff_t>(space_.words()));
    level_.push_back(number);
    return true;
  }

  void visit(const small_job_state& s, std::uint32_t number) {
    if (space_.ended(s)) return visit_end(s, number);
    space_.moves(s, moves_);
    if (moves_.empty()) return violate("no part can move, and the job has not ended", number, {});
    for (const auto& move : moves_) {
      auto next = s;
      ++report_.transitions;
      if (auto wrong = space_.make(next, move); !wrong.empty())
        return violate(std::move(wrong), number, move);
      space_.make_canonical(next);
      add(next, number, move);
    }
  }

  // Counts each of its images, as a search without symmetry does.
  void visit_end(const small_job_state& s, std::uint32_t number) {
    std::vector<small_job_state> images;
    for (std::size_t p = 0; p < space_.symmetry().size(); ++p) {
      const auto end = space_.image(s, p);
      if (std::ranges::find(images, end) != images.end()) continue;
      images.push_back(end);
      ++report_.ends;
      report_.ends_digest += space_.digest(end);
      ++report_.endings[space_.ending(end)];
      if (auto wrong = space_.check_end(end); !wrong.empty())
        return violate(std::move(wrong), number, {}, p);
    }
  }

  // `image` is the permutation of the state at the end of the path that is wrong.
  void violate(std::string what, std::uint32_t number, std::optional<small_job_move> last,
               std::size_t image = 0) {
    std::vector<small_job_move> way;
    if (last) way.push_back(*last);
    for (auto at = number; at != 0; at = ways_[at].from) way.push_back(ways_[at].by);
    std::ranges::reverse(way);
    const auto& symmetry = space_.symmetry();
    // Each move is that of a canonical state. `back` permutes this to the state of the path.
    auto s = space_.start();
    auto canonical = s;
    auto back = symmetry.inverse(space_.make_canonical(canonical));
    for (auto& move : way) {
      space_.make(canonical, move);
      move = space_.image(move, back);
      back = symmetry.product(symmetry.inverse(space_.make_canonical(canonical)), back);
    }
    const auto forth = symmetry.product(symmetry.inverse(back), image);
    std::string chart;
    for (std::size_t i = 0; i < way.size(); ++i) {
      const auto move = space_.image(way[i], forth);
      chart += fmt::format("{:4}  {}\n", i + 1, space_.describe_move(s, move));
      space_.make(s, move);
    }
    report_.violation = {std::move(what), chart + "then\n" + space_.describe_state(s)};
  }

  void note_bytes() {
    const auto now = bytes_of(visited_) + ways_.capacity() * sizeof(way_back) +
                     (level_.capacity() + now_.capacity()) * sizeof(std::uint32_t) +
                     space_.tables().bytes();
    report_.bytes = std::max(report_.bytes, now);
  }

  void check_bounds(double seconds) {
    note_bytes();
    if (visited_.size() >= options_.states_max)
      report_.bound = fmt::format("{} states", options_.states_max);
    else if (report_.bytes >= options_.bytes_max)
      report_.bound = fmt::format("{} MiB", options_.bytes_max >> 20);
    else if (seconds >= options_.seconds_max)
      report_.bound = fmt::format("{} seconds", options_.seconds_max);
  }

  struct way_back {
    std::uint32_t from = 0;
    small_job_move by;
  };

  exhaustive_options options_;
  small_job_space space_;
  digest_set visited_;
  std::vector<way_back> ways_;
  std::vector<std::uint32_t> level_, now_;
  std::vector<small_job_move> moves_;
  exhaustive_report report_;
};

}  // namespace

exhaustive_report exhaust(const exhaustive_options& options) {
  check(options);
  for (std::int32_t fixed = options.reduce ? 0 : options.ranks;; ++fixed) {
    try {
      return small_job_search{options, fixed}.run();
    } catch (const not_symmetric&) {
      continue;  // with one more rank that is not equal to the others
    }
  }
}

std::string exhaustive_report::summary() const {
  const auto state = violation  ? "violation: " + violation->what
                     : complete ? std::string{"complete"}
                                : "not complete, stopped at " + bound;
  return fmt::format("{}: {} states, {} transitions, depth {}, {} ends, {:.1f} s, {} MiB", state,
                     states, transitions, depth, ends, seconds, bytes >> 20);
}

}  // namespace troupe::testing
