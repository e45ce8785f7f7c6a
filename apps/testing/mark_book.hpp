// The marks of one simulated world: counts what was hit and decides, by labelled draws, which rare
// paths are taken.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "apps/testing/choices.hpp"
#include "messages/marks.hpp"

namespace troupe::testing {

using mark_counts = std::array<std::uint64_t, mark_count>;

class mark_book final : public marks_watcher {
public:
  explicit mark_book(choices& draws) : draws_(draws) {}

  /// Draws which rare paths this run may take, each with one in four (swarm).
  void draw_rare();
  /// Whether they may be taken now. None before `draw_rare`.
  void let_rare(bool may) { may_ = may; }

  const mark_counts& counts() const { return counts_; }
  /// Rare paths that were taken, and of them those that may fail what they strike.
  std::uint64_t rare_taken() const { return rare_taken_; }
  std::uint64_t rare_faults_taken() const { return rare_faults_taken_; }
  /// The first invariant that did not hold.
  const std::optional<mark>& first_broken() const { return broken_; }

  bool rare(mark which) override;
  void hit(mark which) override { ++counts_[static_cast<std::size_t>(which)]; }
  void broken(mark which) override {
    if (!broken_) broken_ = which;
  }

private:
  choices& draws_;
  mark_counts counts_{};
  std::array<bool, mark_count> exists_{};
  bool may_ = false;
  std::uint64_t rare_taken_ = 0;
  std::uint64_t rare_faults_taken_ = 0;
  std::optional<mark> broken_;
};

}  // namespace troupe::testing
