#include <algorithm>
#include <utility>

#include "apps/testing/case.hpp"

namespace troupe::testing {

namespace {

class shrinker {
public:
  shrinker(run_case what, field_reference& reference, std::uint64_t runs)
      : case_(std::move(what)), reference_(reference), left_(runs) {}

  run_case go() {
    case_.what.plan.world.record = true;
    const auto first = replay(case_, reference_);
    if (case_.expect.empty() && !first.violations.empty())
      case_.expect = first.violations.front().oracle;
    if (!violates(first)) return case_;
    auto best = case_;
    best.taken = first.taken;
    case_.what.plan.world.record = false;
    best.what.plan.world.record = false;
    if (!still(*best.taken)) return best;  // cannot be: then the report says so
    taken_ = *best.taken;
    for (int s = 0; s < static_cast<int>(site::count_); ++s)
      without([&](const choice& c) { return c.where == static_cast<site>(s); });
    for (auto chunk = std::max<std::size_t>(1, taken_.size() / 2);; chunk /= 2) {
      remove_chunks(chunk);
      if (chunk <= 1) break;
    }
    lower();
    best.taken = taken_;
    return best;
  }

private:
  bool violates(const run_report& r) const {
    return std::ranges::any_of(r.violations,
                               [&](const violation& v) { return v.oracle == case_.expect; });
  }
  bool still(const std::vector<choice>& list) {
    if (left_ == 0) return false;
    --left_;
    auto candidate = case_;
    candidate.taken = list;
    return violates(replay(candidate, reference_));
  }
  template <class P>
  void without(P drop) {
    auto list = taken_;
    if (std::erase_if(list, drop) > 0 && still(list)) taken_ = std::move(list);
  }
  void remove_chunks(std::size_t chunk) {
    for (std::size_t at = 0; at < taken_.size() && left_ > 0;) {
      auto list = taken_;
      const auto from = list.begin() + static_cast<std::ptrdiff_t>(at);
      list.erase(from, from + static_cast<std::ptrdiff_t>(std::min(chunk, list.size() - at)));
      if (still(list))
        taken_ = std::move(list);
      else
        at += chunk;
    }
  }
  void lower() {
    for (std::size_t i = 0; i < taken_.size(); ++i)
      for (const auto value : {std::uint64_t{1}, taken_[i].value / 2}) {
        auto list = taken_;
        if (value == 0 || value >= list[i].value) continue;
        list[i].value = value;
        if (still(list)) taken_ = std::move(list);
      }
  }

  run_case case_;
  field_reference& reference_;
  std::uint64_t left_;
  std::vector<choice> taken_;
};

}  // namespace

run_case shrink(const run_case& what, field_reference& reference, std::uint64_t runs) {
  return shrinker{what, reference, runs}.go();
}

}  // namespace troupe::testing
