#include "apps/testing/mark_book.hpp"

namespace troupe::testing {

namespace {

constexpr std::uint32_t one_in_four = 250'000;
constexpr std::uint32_t first_swarm_label = 256;  // behind the marks' own

}  // namespace

void mark_book::draw_rare() {
  for (const auto& m : product_marks) {
    if (m.kind != mark_kind::rare && m.kind != mark_kind::rare_fault) continue;
    const auto i = static_cast<std::uint32_t>(m.which);
    exists_[i] = draws_.chance(site::rare, first_swarm_label + i, one_in_four);
  }
}

bool mark_book::rare(mark which) {
  const auto i = static_cast<std::uint32_t>(which);
  if (!may_ || !exists_[i] || !draws_.chance(site::rare, i, one_in_four)) return false;
  ++counts_[i];
  ++rare_taken_;
  if (product_marks[i].kind == mark_kind::rare_fault) ++rare_faults_taken_;
  return true;
}

}  // namespace troupe::testing
