// Prints the hashes of campaign runs. determinism_check.py calls it in processes that differ.
//
//   run_hashes PAYLOAD FIRST COUNT          one line per run
//   run_hashes PAYLOAD FIRST COUNT varied  the same, with a number of this process in each: must
//                                           differ
//   run_hashes PAYLOAD SEED trail           the events of one run, one per line
//
// PAYLOAD: integers, none, or tensors in the program that links them (run_hashes_tensors).
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "apps/testing/explore.hpp"
#include "apps/testing/null_payload.hpp"
#include "troupe/failure.hpp"
#ifdef TROUPE_HASH_TENSORS
#include "troupe/testing/tensors.hpp"
#endif

using namespace troupe::testing;

namespace {

variant of_payload(std::string_view name) {
  variant v;
  v.job.ranks = 4;
  if (name == "none") {
    v.job = null_payload_job(12, 20);
    v.job.checkpoint_every = 4;
    v.job.detect = std::chrono::milliseconds{500};
    v.job.hook_limit = std::chrono::seconds{20};
    v.plan = null_payload_plan(v.job);
#ifdef TROUPE_HASH_TENSORS
  } else if (name == "tensors") {
    v.job.steps = 8;
    v.job.samples = 34;
    v.plan.payload = tensors_payload();
#endif
  } else if (name != "integers") {
    throw troupe::user_error(troupe::errc::bad_usage, "run_hashes: no such payload here");
  }
  v.plan.faults.may = fault_set::all();
  return v;
}

unsigned long long number(std::uint64_t x) { return x; }

void print(const run_report& r, std::uint64_t varied) {
  std::printf("%llu %016llx %016llx %016llx %s %zu\n", number(r.seed), number(r.hashes.choices),
              number(r.hashes.deliveries ^ varied), number(r.hashes.state),
              r.weights_digest.c_str(), r.violations.size());
}

void print_trail(const variant& what, std::uint64_t seed) {
  budget of;
  of.first_seed = seed;
  of.runs = 1;
  auto v = variant_of(what.job, what.plan, of, seed);
  v.plan.simulation.record = true;
  auto reference = reference_of(v.job);
  const auto r = run_job(v.job, v.plan, choices::of_seed(seed), reference);
  auto note = r.notes.begin();
  for (const auto& f : r.trail) {
    std::printf("%llu %lld %d %016llx %016llx %016llx", number(f.event),
                static_cast<long long>(f.at), f.node, number(f.hashes.choices),
                number(f.hashes.deliveries), number(f.hashes.state));
    for (; note != r.notes.end() && note->event <= f.event; ++note)
      std::printf(" | %d -> %d: %s", note->from, note->to, note->what.c_str());
    std::printf("\n");
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const auto what = of_payload(arguments[1]);
  const auto first = std::strtoull(arguments[2], nullptr, 10);
  if (std::string_view{arguments[3]} == "trail") return print_trail(what, first), 0;
  // The size of arguments and environment: it differs between processes.
  std::uint64_t varied = 0;
  if (count > 4)
    for (char** e = arguments + count + 1; *e; ++e) varied += std::string_view{*e}.size();
  budget of;
  of.first_seed = first;
  of.runs = std::strtoull(arguments[3], nullptr, 10);
  explore(what.job, what.plan, of, [&](const run_report& r) { print(r, varied); });
}
