#include "apps/testing/coverage_book.hpp"

#include <algorithm>

#include "troupe/failure.hpp"

namespace troupe::testing {

namespace {

constexpr std::uint32_t one_in_four = 250'000;
constexpr std::uint32_t first_swarm_label = 256;  // after the labels of the points themselves
constexpr std::uint32_t first_own_label = 512;    // after those; each point has two
static_assert(coverage_point_count <= first_swarm_label);

bool is_rare(coverage_kind kind) {
  return kind == coverage_kind::rare || kind == coverage_kind::rare_fault;
}

}  // namespace

void coverage_book::know(std::span<const user_coverage> own) {
  for (const auto& m : own) {
    if (find(m))
      throw user_error(errc::bad_usage,
                       "a test lists two coverage points \"" + std::string{m.text} + '"');
    if (own_.size() == own_max)
      throw user_error(errc::bad_usage, "a test lists more than 1024 coverage points");
    own_.push_back({.what = m});
  }
  known_ = own_.size();
}

void coverage_book::draw_rare() {
  for (const auto& m : coverage_points) {
    if (!is_rare(m.kind)) continue;
    const auto i = static_cast<std::uint32_t>(m.which);
    exists_[i] = draws_.chance(site::rare, first_swarm_label + i, one_in_four);
  }
  for (std::uint32_t i = 0; i < known_; ++i)
    if (is_rare(own_[i].what.kind))
      own_[i].exists = draws_.chance(site::rare, first_own_label + 2 * i, one_in_four);
}

bool coverage_book::rare(coverage_point which) {
  const auto i = static_cast<std::uint32_t>(which);
  if (!may_ || !exists_[i] || !draws_.chance(site::rare, i, one_in_four)) return false;
  ++counts_[i];
  ++rare_taken_;
  if (coverage_points[i].kind == coverage_kind::rare_fault) ++rare_faults_taken_;
  return true;
}

bool coverage_book::rare(const user_coverage& which) {
  auto* const found = find(which);
  if (!may_ || !found || !found->exists) return false;
  const auto label = first_own_label + 2 * static_cast<std::uint32_t>(found - own_.data()) + 1;
  if (!draws_.chance(site::rare, label, one_in_four)) return false;
  ++found->times;
  ++rare_taken_;
  if (found->what.kind == coverage_kind::rare_fault) ++rare_faults_taken_;
  return true;
}

void coverage_book::hit(const user_coverage& which) {
  if (auto* const found = find(which))
    ++found->times;
  else
    own_.push_back({.what = which, .times = 1});
}

std::uint64_t coverage_book::count_of(const user_coverage& which) const {
  const auto found =
      std::ranges::find(own_, which.text, [](const own_count& c) { return c.what.text; });
  return found == own_.end() ? 0 : found->times;
}

coverage_book::own_count* coverage_book::find(const user_coverage& which) {
  const auto found =
      std::ranges::find(own_, which.text, [](const own_count& c) { return c.what.text; });
  return found == own_.end() ? nullptr : &*found;
}

}  // namespace troupe::testing
