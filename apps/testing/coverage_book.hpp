// Coverage points of one simulation: counts hits, and decides by labelled draws which rare paths
// are taken.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/testing/choices.hpp"
#include "troupe/coverage.hpp"

namespace troupe::testing {

using coverage_counts = std::array<std::uint64_t, coverage_point_count>;

class coverage_book final : public user_coverage_sink {
public:
  /// Bound of a test's own rare points: labels have room for so many.
  static constexpr std::size_t own_max = 1024;

  explicit coverage_book(choices& draws) : draws_(draws) {}

  /// Registers the points of the test. A case identifies rare ones by their index here. Throws
  /// user_error (bad_usage) when there are too many, or a point is listed twice.
  void know(std::span<const user_coverage> own);
  /// Draws which rare paths this run may take: one in four (swarm).
  void draw_rare();
  /// Whether rare paths may be taken now. They may not before `draw_rare`.
  void let_rare(bool may) { may_ = may; }

  const coverage_counts& counts() const { return counts_; }
  /// One of the test's points and its hits. Points that were hit without being registered are
  /// listed, too.
  struct own_count {
    user_coverage what;
    std::uint64_t times = 0;
    bool exists = false;  ///< rare points: this run may take it
  };
  const std::vector<own_count>& own() const { return own_; }
  std::uint64_t count_of(const user_coverage& which) const;
  /// Rare paths taken, and among them those that may cause a failure.
  std::uint64_t rare_taken() const { return rare_taken_; }
  std::uint64_t rare_faults_taken() const { return rare_faults_taken_; }
  /// The first violated invariant of the product, and of the test.
  const std::optional<coverage_point>& first_broken() const { return broken_; }
  const std::optional<std::string>& first_own_broken() const { return own_broken_; }

  bool rare(coverage_point which) override;
  void hit(coverage_point which) override { ++counts_[static_cast<std::size_t>(which)]; }
  void broken(coverage_point which) override {
    if (!broken_) broken_ = which;
  }
  bool rare(const user_coverage& which) override;
  void hit(const user_coverage& which) override;
  void broken(const user_coverage& which) override {
    if (!own_broken_) own_broken_ = which.text;
  }

private:
  own_count* find(const user_coverage& which);

  choices& draws_;
  coverage_counts counts_{};
  std::array<bool, coverage_point_count> exists_{};
  std::vector<own_count> own_;
  std::size_t known_ = 0;  // registered points; they come first
  bool may_ = false;
  std::uint64_t rare_taken_ = 0;
  std::uint64_t rare_faults_taken_ = 0;
  std::optional<coverage_point> broken_;
  std::optional<std::string> own_broken_;
};

}  // namespace troupe::testing
