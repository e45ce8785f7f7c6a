// Goal: `troupe simulate --replay` runs a case from a file again, stops before the event of
// `--until`, draws a chart and reports a case that is out of date. A file without a case is bad
// usage.
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr const char* crash =
    "troupe-case/2\nmeets crash_rank\njob ranks=3 steps=12 checkpoint_every=3\n"
    "plan schedule=0 swarm=0 faults_per_attempt=1\nfaults crash_rank\nseed 7\n"
    "choices fault.0.0=1 detail.256.2=400000000 detail.256.3=2\nend\n";

std::string write_to(const temporary_folder& folder, const std::string& name,
                     const std::string& text) {
  const auto path = (folder.path() / name).string();
  std::ofstream{path} << text;
  return path;
}

std::string text_in(const std::string& path) {
  std::ifstream file{path};
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("a replay of a case file stops at --until and draws a chart", "[program]") {
  const temporary_folder folder;
  const auto path = write_to(folder, "crash.case", crash);
  const auto chart = (folder.path() / "last.mmd").string();
  const auto said =
      troupe_says({"simulate", "--replay", path, "--until", "120", "--chart", chart, "--json"});
  INFO(said.err);
  CHECK(said.code == 0);
  const auto summary = nlohmann::json::parse(said.out);
  CHECK(summary["runs"] == 1);
  CHECK(summary["attempts"] == 2);
  CHECK(summary["faults"]["crash_rank"] == 1);
  CHECK_THAT(said.err, Catch::Contains("1) crash_rank of rank 2"));
  CHECK_THAT(said.err, Catch::Contains("before event 120, at ") && Catch::Contains("gdb --args"));
  CHECK_THAT(said.err, !Catch::Contains("note: "));
  CHECK_THAT(text_in(chart), Catch::StartsWith("sequenceDiagram\n"));
  CHECK(troupe_says({"simulate", "--replay", path, "--json"}).out ==
        troupe_says({"simulate", "--replay", path, "--json"}).out);
}

TEST_CASE("a replay under a debugger traps before its event and can be continued", "[program]") {
  const temporary_folder folder;
  const auto path = write_to(folder, "crash.case", crash);
  const auto child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    _exit(troupe_says({"simulate", "--replay", path, "--until", "120"}).code);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    WARN("SKIPPED: tracing is not allowed here");
    return;
  }
  REQUIRE(WIFSTOPPED(status));
  CHECK(WSTOPSIG(status) == SIGTRAP);
  REQUIRE(ptrace(PTRACE_CONT, child, nullptr, nullptr) == 0);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a replay that differs from its case reports the differences", "[program]") {
  const temporary_folder folder;
  std::string odd{crash};
  odd.insert(odd.find("meets"),
             "build 0123456789abcdef0123456789abcdef01234567\n"
             "expect steps are one chain\n");
  odd.replace(odd.find("crash_rank"), 10, "power_loss");
  const auto path = write_to(folder, "odd.case", odd);
  const auto said = troupe_says({"simulate", "--replay", path, "--until", "999999999"});
  INFO(said.err);
  CHECK(said.code == 0);
  CHECK_THAT(said.err, Catch::Contains("recorded by build 0123456789ab,"));
  CHECK_THAT(said.err, Catch::Contains("\"steps are one chain\", which the case expects to be"));
  CHECK_THAT(said.err, Catch::Contains("should meet \"power_loss\""));
  CHECK_THAT(said.err, Catch::Contains("the run has only"));
}

TEST_CASE("a malformed case is refused with the reason", "[program]") {
  const temporary_folder folder;
  const std::string whole{crash};
  const auto answer = [&](const std::string& text) {
    return troupe_says({"simulate", "--replay", write_to(folder, "mangled.case", text)});
  };
  // Cut off; case_test cuts the text at every place.
  for (std::size_t size = 0; size < whole.size() - 1; size += 29) {
    const auto said = answer(whole.substr(0, size));
    INFO(size << ": " << said.err);
    REQUIRE(said.code == 2);
    REQUIRE(said.err.find("mangled.case: not a case: ") != std::string::npos);
  }
  const std::vector<std::array<std::string, 3>> swaps{
      {"troupe-case/2", "troupe-case/9", "the first line must be troupe-case/2"},
      {"ranks=3", "ranks=many", "\"many\" is not a number"},
      {"ranks=3", "ranks=0", "\"0\" is not within 1 .. 100000"},
      {"ranks=3", "ranks 3", "\"ranks\" is not NAME=NUMBER"},
      {"steps=12", "stops=12", "unknown field \"stops\""},
      {"seed 7", "seed 99999999999999999999999", "is too large"},
      {"fault.0.0=1", "fluke.0.0=1", "unknown site \"fluke\""},
      {"fault.0.0=1", "fault.0=1", "is not SITE.WHO.OCCURRENCE=VALUE"},
      {"\nseed", "\nseed 8\nseed", "a second line \"seed\""},
      {"\nend\n", "\nend\nseed 8\n", "there is text after the line \"end\""},
      {"\nfaults crash_rank", "\nfaults crush_rank", "crush_rank"},
      {"\njob", "\npayload steam\njob", "unknown payload \"steam\""},
      {"\nmeets", std::string("\n\0\xff\x7f", 4) + "meets", "unknown line "},
  };
  for (const auto& [from, to, why] : swaps) {
    auto text = whole;
    text.replace(text.find(from), from.size(), to);
    const auto said = answer(text);
    INFO(from << " -> " << to << ": " << said.err);
    CHECK(said.code == 2);
    CHECK(said.err.find(why) != std::string::npos);
  }
  CHECK_THAT(troupe_says({"simulate", "--replay", folder.path().string()}).err,
             Catch::Contains("it cannot be read"));
  CHECK_THAT(troupe_says({"simulate", "--replay", (folder.path() / "none").string()}).err,
             Catch::Contains("no such file"));
}

TEST_CASE("a replay of a missing or damaged case file is bad usage", "[program]") {
  const temporary_folder folder;
  CHECK(troupe_says({"simulate", "--replay", (folder.path() / "none").string()}).code == 2);
  const auto half = std::string{crash}.substr(0, 60);
  const auto said = troupe_says({"simulate", "--replay", write_to(folder, "half.case", half)});
  CHECK(said.code == 2);
  CHECK_THAT(said.err, Catch::Contains("not a case: "));
  CHECK_THAT(said.err, Catch::Contains("--replay ") && Catch::Contains("half.case: not a case: "));
  const auto path = write_to(folder, "crash.case", crash);
  CHECK(troupe_says({"simulate", "--replay", path, "--chart", "/proc/absent/x.mmd"}).code == 2);
}

TEST_CASE("a replay of a case that needs its test's extensions is refused", "[program]") {
  const temporary_folder folder;
  std::string text{crash};
  text.insert(text.find("faults crash"), "brings extensions=1\n");
  const auto path = write_to(folder, "extended.case", text);
  const auto said = troupe_says({"simulate", "--replay", path});
  INFO(said.err);
  CHECK(said.code == 2);
  CHECK(said.out.empty());
  CHECK_THAT(said.err,
             Catch::Contains("extended.case: the case cannot be replayed without its extensions"));
}
