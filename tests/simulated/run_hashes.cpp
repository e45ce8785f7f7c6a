// The hashes of campaign runs, for twins.py, which calls this in processes that are unlike.
//
//   run_hashes FIRST COUNT          one line per run
//   run_hashes FIRST COUNT planted  the same, with a number of this process in each: must differ
//   run_hashes SEED trail           the events of one run, a line each
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "apps/testing/explore.hpp"

using namespace troupe::testing;

namespace {

field_job job_of() {
  field_job what;
  what.ranks = 4;
  return what;
}

run_plan plan_of() {
  run_plan plan;
  plan.faults.may = fault_set::all();
  return plan;
}

unsigned long long number(std::uint64_t x) { return x; }

void print(const run_report& r, std::uint64_t planted) {
  std::printf("%llu %016llx %016llx %016llx %s %zu\n", number(r.seed), number(r.hashes.choices),
              number(r.hashes.deliveries ^ planted), number(r.hashes.state),
              r.weights_digest.c_str(), r.violations.size());
}

void print_trail(std::uint64_t seed) {
  budget of;
  of.first_seed = seed;
  of.runs = 1;
  auto v = variant_of(job_of(), plan_of(), of, seed);
  v.plan.world.record = true;
  auto reference = reference_of(v.job);
  const auto r = run_field(v.job, v.plan, choices::of_seed(seed), reference);
  auto note = r.notes.begin();
  for (const auto& f : r.trail) {
    std::printf("%llu %lld %d %016llx %016llx %016llx", number(f.event),
                static_cast<long long>(f.at), f.place, number(f.hashes.choices),
                number(f.hashes.deliveries), number(f.hashes.state));
    for (; note != r.notes.end() && note->event <= f.event; ++note)
      std::printf(" | %d -> %d: %s", note->from, note->to, note->what.c_str());
    std::printf("\n");
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const auto first = std::strtoull(arguments[1], nullptr, 10);
  if (std::string_view{arguments[2]} == "trail") return print_trail(first), 0;
  // The number of bytes above this frame: arguments and environment.
  std::uint64_t planted = 0;
  if (count > 3)
    for (char** e = arguments + count + 1; *e; ++e) planted += std::string_view{*e}.size();
  budget of;
  of.first_seed = first;
  of.runs = std::strtoull(arguments[2], nullptr, 10);
  explore(job_of(), plan_of(), of, [&](const run_report& r) { print(r, planted); });
}
