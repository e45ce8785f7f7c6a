#include "apps/testing/determinism_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "troupe/detail/data_order.hpp"

namespace troupe::testing {

namespace {

// Fills the stack with a byte that a function finds in variables it forgets to initialise.
[[gnu::noinline]] void fill_stack(unsigned char with, unsigned pages) {
  volatile unsigned char page[4096];
  for (std::size_t i = 0; i < sizeof page; ++i) page[i] = with;
  if (pages > 0) fill_stack(with, pages - 1);
  page[0] = page[sizeof page - 1];
}

std::string layer_of(const trace_hashes& a, const trace_hashes& b) {
  if (a.choices != b.choices) return "choices";
  if (a.deliveries != b.deliveries) return "deliveries";
  if (a.state != b.state) return "state";
  return {};
}

std::string said(const run_report& of, const event_hashes& at) {
  const auto name_of = [&](std::int32_t p) {
    return p >= 0 && static_cast<std::size_t>(p) < of.nodes.size()
               ? of.nodes[static_cast<std::size_t>(p)]
               : std::string{"simulation"};
  };
  auto text =
      fmt::format("event {} at {:.6f} ms in {}: choices {:016x}, deliveries {:016x}, state {:016x}",
                  at.event, static_cast<double>(at.at) / 1e6, name_of(at.node), at.hashes.choices,
                  at.hashes.deliveries, at.hashes.state);
  for (const auto& n : of.notes)
    if (n.event == at.event)
      text += fmt::format("\n      {} -> {}: {}", name_of(n.from), name_of(n.to), n.what);
  return text;
}

std::string end_of(const run_report& r) {
  return fmt::format("{} after {} events and {} attempts, weights {}, {} violations",
                     r.finished ? "finished" : "not finished", r.events, r.attempts,
                     r.weights_digest.empty() ? "none" : r.weights_digest, r.violations.size());
}

std::vector<run_report> run_at_once(const repeatable_run& run, bool recorded, std::uint64_t seed,
                                    unsigned threads) {
  std::vector<run_report> reports(threads);
  std::vector<std::exception_ptr> errors(threads);
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i)
    all.emplace_back([&, i] {
      try {
        const disturbed_host host{mix(seed + i)};
        reports[i] = run(recorded);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  for (auto& t : all) t.join();
  for (const auto& e : errors)
    if (e) std::rethrow_exception(e);
  return reports;
}

}  // namespace

disturbed_host::disturbed_host(std::uint64_t seed) {
  constexpr std::size_t blocks = 2000;
  constexpr std::size_t largest = 1024;
  const auto fill = static_cast<unsigned char>(seed | 1);
  std::vector<std::unique_ptr<unsigned char[]>> taken;
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto size = 16 + mix(seed + i) % largest;
    taken.emplace_back(new unsigned char[size]);
    std::memset(taken.back().get(), fill, size);
  }
  for (std::size_t i = 0; i < blocks; ++i)
    std::swap(taken[i], taken[i + mix(seed ^ i) % (blocks - i)]);
  taken.resize(blocks / 2);
  held_ = std::move(taken);
  fill_stack(fill, 64);
}

disturbed_host::~disturbed_host() = default;

std::optional<run_difference> first_difference(const run_report& one, const run_report& other) {
  run_difference found;
  found.layer = layer_of(one.hashes, other.hashes);
  const auto end = end_of(one);
  const auto other_end = end_of(other);
  if (found.layer.empty() && end == other_end) return std::nullopt;
  const auto parted = std::ranges::mismatch(
      one.trail, other.trail, [](const event_hashes& a, const event_hashes& b) {
        return a.event == b.event && a.at == b.at && a.node == b.node && a.hashes == b.hashes;
      });
  const bool here = parted.in1 != one.trail.end();
  const bool there = parted.in2 != other.trail.end();
  if (here && there) found.layer = layer_of(parted.in1->hashes, parted.in2->hashes);
  if (found.layer.empty()) found.layer = "end";
  if (here || there) found.event = here ? parted.in1->event : parted.in2->event;
  found.text = fmt::format("the runs differ, first in their {}\n  one:   {}\n  other: {}",
                           found.layer, here ? said(one, *parted.in1) : end,
                           there ? said(other, *parted.in2) : other_end);
  return found;
}

std::optional<run_difference> check_determinism(const run_report& first, const repeatable_run& run,
                                                std::uint64_t seed) {
  const unsigned threads = seed % 4 == 3 ? 3 : 1;
  std::optional<run_difference> found;
  for (const auto& repetition : run_at_once(run, false, seed, threads))
    if (!found) found = first_difference(first, repetition);
  if (!found) return std::nullopt;
  // A difference may not occur again; then only the hashes are reported.
  constexpr std::uint64_t tries = 4;
  for (std::uint64_t i = 0; i < tries; ++i) {
    const auto again = run(true);
    for (const auto& repetition : run_at_once(run, true, seed + i, threads))
      if (auto where = first_difference(again, repetition)) return where;
  }
  return found;
}

}  // namespace troupe::testing
