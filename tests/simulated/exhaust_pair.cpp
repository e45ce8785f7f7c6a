// Exhaustive searches of three ranks, two steps and one restart, each with two faults: those of one
// kind (`throws`), or one each of two kinds (`throws+leaves`).
//
//   exhaust_pair KINDS...
//
// Prints a line for each search. Ends with 1 at the first violation, with its path, or at a search
// that met a bound; with 2 for a word that it does not know.
#include "troupe/testing/exhaustive.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

using namespace troupe::testing;

namespace {

small_fault kind_of(std::string_view word) {
  const auto all = small_faults();
  const auto at = std::ranges::find(all, word, [](small_fault f) { return to_string(f); });
  if (at != all.end()) return *at;
  std::string known;
  for (const auto f : all) known += " " + std::string(to_string(f));
  throw std::invalid_argument("no fault is named \"" + std::string(word) + "\"; there are" + known);
}

exhaustive_options search_of(std::string_view word) {
  exhaustive_options o{.ranks = 3, .steps = 2, .restarts = 1, .budget = 2};
  o.states_max = 1'000'000'000;
  o.bytes_max = std::uint64_t{14} << 30;
  o.seconds_max = 3600;
  const auto plus = word.find('+');
  o.faults = {kind_of(word.substr(0, plus))};
  if (plus != word.npos) o.faults.push_back(kind_of(word.substr(plus + 1)));
  o.once = plus != word.npos;
  return o;
}

bool is_complete(std::string_view word) {
  const auto report = exhaust(search_of(word));
  std::printf("%.*s: %s\n", static_cast<int>(word.size()), word.data(), report.summary().c_str());
  if (report.violation)
    std::printf("%s\n%s\n", report.violation->what.c_str(), report.violation->chart.c_str());
  std::fflush(stdout);
  return report.complete;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) {
    std::fputs("usage: exhaust_pair KIND|KIND+KIND...\n", stderr);
    return 2;
  }
  try {
    for (int i = 1; i < count; ++i)
      if (!is_complete(words[i])) return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "exhaust_pair: %s\n", e.what());
    return 2;
  }
}
