#include <algorithm>
#include <utility>

#include "apps/testing/case.hpp"

namespace troupe::testing {

namespace {

class shrinker {
public:
  shrinker(run_case what, modular_reference& reference, std::uint64_t runs)
      : best_(std::move(what)), reference_(reference), left_(runs) {}

  run_case go() {
    const auto given = best_;
    const auto first = again(best_);
    if (best_.expect.empty() && !first.violations.empty())
      best_.expect = first.violations.front().oracle;
    if (!violates(first)) return given;
    best_.taken = first.taken;
    settle_swarm();
    leave_observer_out();
    for (int s = 0; s < static_cast<int>(site::count_); ++s)
      without([&](const choice& c) { return c.where == static_cast<site>(s); });
    remove_faults();
    one_strike();
    for (auto chunk = std::max<std::size_t>(1, taken().size() / 2);; chunk /= 2) {
      remove_chunks(chunk);
      if (chunk <= 1 || left_ == 0) break;
    }
    lower();
    leave_observer_out();
    tidy();
    return best_;
  }

private:
  std::vector<choice>& taken() { return *best_.taken; }

  run_report again(const run_case& candidate) {
    auto recorded = candidate;
    recorded.what.plan.simulation.record = true;
    recorded.what.plan.simulation.until = 0;
    return replay(recorded, reference_);
  }
  bool violates(const run_report& r) const { return r.violates(best_.expect); }
  // A long run counts as several.
  void spend(const run_report& ran) {
    constexpr std::uint64_t events_each = 250'000;
    left_ -= std::min(left_, 1 + ran.events / events_each);
  }
  // Accepts the candidate if it still violates the oracle, without the choices that it never drew.
  bool still(run_case candidate) {
    if (left_ == 0) return false;
    const auto report = replay(candidate, reference_);
    spend(report);
    if (!violates(report)) return false;
    best_ = std::move(candidate);
    return true;
  }
  bool still(std::vector<choice> list) {
    auto candidate = best_;
    candidate.taken = std::move(list);
    return still(std::move(candidate));
  }

  // Replaces the draws of a swarm by explicit values in the case.
  void settle_swarm() {
    auto& faults = best_.what.plan.faults;
    if (!faults.swarm) return;
    auto candidate = best_;
    auto drawn = choices::of_list(best_.seed, taken());
    const auto exist = draw_swarm(drawn, faults);
    candidate.what.plan.faults = draw_how_often(drawn, faults);
    candidate.what.plan.faults.may = exist;
    candidate.what.plan.faults.swarm = false;
    still(std::move(candidate));
  }

  // Few violations need the observer. Tried again at the end, when fewer alternatives are left.
  void leave_observer_out() {
    if (best_.what.plan.observer == test_observer::none) return;
    auto candidate = best_;
    candidate.what.plan.observer = test_observer::none;
    still(std::move(candidate));
  }

  void remove_faults() {
    for (std::size_t i = 0; i < fault_kinds; ++i) {
      const auto gone = static_cast<fault>(i);
      const auto& faults = best_.what.plan.faults;
      if (faults.swarm || !faults.may.has(gone)) continue;
      auto candidate = best_;
      candidate.taken = without_fault(taken(), faults.may, gone);
      candidate.what.plan.faults.may.remove(gone);
      still(std::move(candidate));
    }
    tidy();
  }

  // An early fault is often there only because it makes room for a later one.
  void one_strike() {
    const auto all = taken();
    if (std::ranges::count(all, site::fault, &choice::where) < 2) return;
    for (const auto& c : all)
      if (c.where == site::fault && (left_ == 0 || still(alone(all, c)))) break;
    remove_faults();
  }

  // Removes choices that the run no longer draws.
  void tidy() {
    if (left_ == 0) return;
    const auto report = again(best_);
    spend(report);
    auto candidate = best_;
    candidate.taken = report.taken;
    if (violates(report) && report.taken.size() < taken().size()) still(std::move(candidate));
  }

  template <class P>
  void without(P drop) {
    auto list = taken();
    if (std::erase_if(list, drop) > 0) still(std::move(list));
  }

  void remove_chunks(std::size_t chunk) {
    for (std::size_t at = 0; at < taken().size() && left_ > 0;) {
      auto list = taken();
      const auto from = list.begin() + static_cast<std::ptrdiff_t>(at);
      list.erase(from, from + static_cast<std::ptrdiff_t>(std::min(chunk, list.size() - at)));
      if (!still(std::move(list))) at += chunk;
    }
  }

  void lower() {
    const auto to = [this](std::size_t i, std::uint64_t value) {
      auto list = taken();
      if (value == 0 || value >= list[i].value) return false;
      list[i].value = value;
      return still(std::move(list));
    };
    for (std::size_t i = 0; i < taken().size() && left_ > 0; ++i)
      if (!to(i, 1))
        while (to(i, taken()[i].value / 2)) continue;
  }

  run_case best_;
  modular_reference& reference_;
  std::uint64_t left_;
};

}  // namespace

run_case shrink(const run_case& what, modular_reference& reference, std::uint64_t runs) {
  return shrinker{what, reference, runs}.go();
}

}  // namespace troupe::testing
