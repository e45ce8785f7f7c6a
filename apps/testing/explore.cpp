#include "apps/testing/explore.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <tuple>

#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"

namespace troupe::testing {

namespace {

using key = std::tuple<std::int32_t, std::int64_t, std::int64_t, bool>;

key key_of(const job_spec& job) { return {job.ranks, job.accumulate, job.samples, job.buffers}; }

// The references of an exploration's jobs; each is computed once.
class references {
public:
  modular_reference& of(const job_spec& job) {
    const auto k = key_of(job);
    for (auto& [known, reference] : all_)
      if (known == k) return *reference;
    all_.emplace_back(k, std::make_unique<modular_reference>(reference_of(job)));
    return *all_.back().second;
  }

private:
  std::vector<std::pair<key, std::unique_ptr<modular_reference>>> all_;
};

run_report run_of(const variant& v, std::uint64_t seed, modular_reference& reference) {
  try {
    return run_job(v.job, v.plan, choices::of_seed(seed), reference);
  } catch (const user_error& e) {
    throw user_error(e.code(), fmt::format("{} (the run of seed {})", e.what(), seed));
  }
}

void compare(run_report& report, const variant& v, exploration& all) {
  const auto again = [&](bool recorded) {
    auto plan = v.plan;
    plan.simulation.record = recorded;
    auto reference = reference_of(v.job);
    return run_job(v.job, plan, choices::of_seed(report.seed), reference);
  };
  ++all.determinism_checks;
  if (const auto found = check_determinism(report, again, report.seed))
    report.violations.push_back({determinism_oracle, found->text});
}

// What depends on more than the seed need not happen in the repetition that is recorded.
void keep_found(const std::vector<violation>& found, run_report& recorded) {
  const auto& first = found.front().oracle;
  const bool repeats = recorded.violates(first);
  for (const auto& v : found)
    if (!recorded.violates(v.oracle)) recorded.violations.push_back(v);
  if (repeats || recorded.violates(determinism_oracle)) return;
  recorded.violations.push_back(
      {determinism_oracle, fmt::format("a repetition did not violate \"{}\"", first)});
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

variant variant_of(const job_spec& what, const run_plan& plan, const budget& of,
                   std::uint64_t seed) {
  variant v{what, plan};
  if (of.portfolio) {
    constexpr std::array<std::pair<scheduling, std::uint32_t>, 8> mix_of{{
        {scheduling::random, 0},
        {scheduling::pct, 2},
        {scheduling::random, 0},
        {scheduling::pct, 3},
        {scheduling::fifo, 0},
        {scheduling::random, 0},
        {scheduling::pct, 1},
        {scheduling::pct, 5},
    }};
    const auto [schedule, depth] = mix_of[seed % mix_of.size()];
    v.plan.simulation.schedule = schedule;
    v.plan.simulation.depth = depth;
  }
  if (!of.vary_job) return v;
  auto draw = [seed, n = std::uint64_t{0}](std::uint64_t bound) mutable {
    return mix(mix(seed) + 0x5eed + ++n) % bound;
  };
  v.plan.cluster.ranks_per_host = static_cast<std::uint32_t>(std::array{1, 1, 2, 4, 0}[draw(5)]);
  v.plan.cluster.lanes_in_spans = draw(4) != 0;
  const auto accumulate = 1 + static_cast<std::int64_t>(draw(3));
  if (!plan.payload || plan.payload->varies_accumulation()) v.job.accumulate = accumulate;
  v.job.buffers = draw(4) == 0;
  v.job.one_hook_per_run = draw(16) == 0;
  constexpr std::array<std::int64_t, 3> every{5, 1, 7};
  v.job.checkpoint_every = every[draw(3)];
  const bool fewer = draw(4) == 0;
  if (fewer && (!plan.payload || plan.payload->varies_samples()))
    v.job.samples = what.samples * 2 / 3 + 1;
  // Few ranks: an observer of hooks costs one message per rank and hook.
  constexpr std::int32_t ranks_watched = 64;
  if (draw(8) == 0 && what.ranks <= ranks_watched)
    v.plan.observer = static_cast<test_observer>(1 + draw(4));
  v.job.collectives = !plan.payload && mix(mix(seed) ^ 0xc011ec7) % 8 == 0;
  if (what.max_restarts == 0 || v.plan.cluster.ranks_per_host == 0) return v;
  const auto ranks = static_cast<std::uint64_t>(what.ranks);
  const auto processes = draw(2) == 0 ? ranks : 1 + draw(ranks);
  v.job.processes = static_cast<std::int32_t>(processes);
  v.job.on_loss = static_cast<elastic_options::loss>(draw(2));
  v.job.min_ranks = static_cast<std::int32_t>(draw(2) == 0 ? 1 : 1 + draw(processes));
  v.job.spares = std::array{0, 0, 1, 2}[draw(4)];
  v.plan.cluster.placed = mix(mix(seed) ^ 0x91ace) % 4 == 0;
  return v;
}

void exploration::add(const run_report& report) {
  ++runs;
  events += report.events;
  deliveries += report.deliveries;
  attempts += report.attempts;
  if (report.generations > 0) {
    if (generations.size() < report.generations) generations.resize(report.generations);
    ++generations[report.generations - 1];
  }
  checks += report.checks;
  for (std::size_t f = 0; f < fault_kinds; ++f) faults[f] += report.faults[f];
  add_marks(marks, report);
  trace_digest = mix(trace_digest ^ report.hashes.choices) ^ mix(report.hashes.deliveries) ^
                 report.hashes.state;
}

bool exploration::held(std::string_view oracle) const {
  if (std::ranges::find(known_oracles(), oracle) == known_oracles().end())
    throw user_error(errc::bad_usage,
                     fmt::format("unknown oracle \"{}\"; known are: {}; clean() also counts those "
                                 "of extensions",
                                 oracle, fmt::join(known_oracles(), "; ")));
  return std::ranges::none_of(violating, [&](const run_report& r) { return r.violates(oracle); });
}

std::string exploration::marks_text() const {
  std::string hit;
  std::string never;
  for (const auto& [name, count] : marks) {
    if (count > 0)
      hit += fmt::format("{:>8} x {}\n", count, name);
    else
      never += fmt::format("{}{}", never.empty() ? "never: " : "; ", name);
  }
  return hit + never;
}

bool exploration::met(std::string_view mark_or_fault) const {
  std::vector<std::string_view> known;
  for (const auto& [name, count] : marks) {
    if (name == mark_or_fault) return count > 0;
    known.emplace_back(name);
  }
  for (std::size_t f = 0; f < fault_kinds; ++f) {
    known.push_back(to_string(static_cast<fault>(f)));
    if (known.back() == mark_or_fault) return faults[f] > 0;
  }
  throw user_error(errc::bad_usage,
                   fmt::format("unknown coverage point or fault \"{}\"; known are: {}",
                               mark_or_fault, fmt::join(known, "; ")));
}

exploration explore(const job_spec& what, const run_plan& plan, const budget& of,
                    const std::function<void(const run_report&)>& after_each) {
  check_limits({what, plan});
  exploration all;
  references known;
  for (const auto& m : known_marks()) all.marks[m] = 0;
  for (const auto& m : plan.marks) all.marks[std::string{m.text}] = 0;
  const auto began = seconds_now();
  for (std::uint64_t i = 0; i < of.runs; ++i) {
    if (of.seconds > 0 && seconds_now() - began >= of.seconds) break;
    const auto seed = of.first_seed + i;
    auto v = variant_of(what, plan, of, seed);
    auto& reference = known.of(v.job);
    auto report = run_of(v, seed, reference);
    all.add(report);
    if (of.determinism_checks) compare(report, v, all);
    if (after_each) after_each(report);
    if (report.violations.empty()) continue;
    const auto found = std::move(report.violations);
    v.plan.simulation.record = true;
    all.violating.push_back(run_of(v, seed, reference));
    keep_found(found, all.violating.back());
    v.plan.simulation.record = false;
    all.variants.push_back(std::move(v));
    if (all.violating.size() >= of.violations) break;
  }
  all.seconds = seconds_now() - began;
  return all;
}

}  // namespace troupe::testing
