// Goal: every kept case still meets its faults and coverage points, and violates no oracle.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/testing/case.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

std::vector<std::filesystem::path> case_files() {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator{TROUPE_CASES})
    if (entry.path().extension() == ".case") all.push_back(entry.path());
  std::ranges::sort(all);
  return all;
}

std::string text_in(const std::filesystem::path& path) {
  std::ifstream file{path};
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("every kept case replays without a violation and meets its faults", "[cases]") {
  const auto files = case_files();
  CHECK(files.size() >= 20);
  for (const auto& path : files) {
    INFO(path.filename().string());
    auto what = parse_case(text_in(path));
    CHECK_FALSE(what.meets.empty());  // a case without them would prove nothing
    what.what.plan.simulation.record = true;
    auto reference = reference_of(what.what.job);
    const auto report = replay(what, reference);
    INFO(render(report));
    CHECK(report.finished);
    CHECK(report.violations.empty());
    for (const auto& remark : remarks(what, report)) {
      UNSCOPED_INFO(remark);
      CHECK(remark.empty());
    }
  }
}
