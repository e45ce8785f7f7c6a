// Goal: message charts. An arrow for each received message, another end for one that was not
// received, faults in the column of their node, and a selection of nodes when there are too many.
#include "apps/testing/chart.hpp"

#include "tests/support/catch.hpp"

using namespace troupe::testing;

namespace {

const std::vector<std::string> nodes{"simulation", "supervisor", "rank 0", "rank 1"};

std::vector<trace_note> story() {
  return {
      {1, 1'000'000, 1, 2, "send stop_at 4"},     {2, 1'000'000, 1, 3, "send stop_at 4"},
      {3, 1'250'000, 1, 2, "get stop_at 4"},      {4, 1'500'000, 2, 2, "step 4"},
      {5, 1'600'000, -1, 3, "fault: crash_rank"}, {6, 1'700'000, 2, 1, "send step_done 4"},
      {7, 1'800'000, 2, 1, "get step_done 4"},    {8, 1'900'000, -1, 1, "link lost; not received"}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> all(1);
  for (const auto c : text) c == '\n' ? all.push_back({}) : all.back().push_back(c);
  all.pop_back();
  return all;
}

}  // namespace

TEST_CASE("a text chart has a column per node and an arrow per message", "[chart]") {
  const auto lines = lines_of(text_chart(story(), nodes));
  REQUIRE(lines.size() == 7);
  CHECK_THAT(lines[0], Catch::Contains("supervisor (1)") && Catch::Contains("rank 1 (3)"));
  CHECK_THAT(lines[1], Catch::Contains("stop_at 4") && Catch::Contains("-x|"));  // never received
  CHECK_THAT(lines[2], Catch::Contains("1.250") && Catch::Contains("->|"));
  CHECK_THAT(lines[3], Catch::Contains("* step 4"));
  CHECK_THAT(lines[4], Catch::EndsWith("* fault: crash_rank"));
  CHECK_THAT(lines[5], Catch::Contains("|<-") && Catch::Contains("step_done 4"));
  CHECK_THAT(lines[6], Catch::Contains("* link lost"));
}

TEST_CASE("a chart ends at the given event and shows nodes with faults first", "[chart]") {
  chart_options shown;
  shown.until = 4;
  const auto early = text_chart(story(), nodes, shown);
  CHECK_THAT(early, !Catch::Contains("crash_rank"));
  CHECK_THAT(early, Catch::Contains("step 4"));
  shown = {};
  shown.lines = 1;
  CHECK(lines_of(text_chart(story(), nodes, shown)).size() == 2);

  auto crowd = story();
  for (int i = 0; i < 20; ++i)
    crowd.push_back({9u + static_cast<unsigned>(i), 2'000'000, 4 + i, 4 + i, "step 5"});
  shown = {};
  shown.columns = 3;
  const auto text = text_chart(crowd, nodes, shown);
  CHECK_THAT(text, Catch::Contains("fault: crash_rank") && Catch::Contains("are left out"));
  CHECK(text_chart({}, {}).find("event") != std::string::npos);
}

TEST_CASE("a Mermaid chart shows the same messages", "[chart]") {
  const auto text = mermaid_chart(story(), nodes);
  CHECK_THAT(text, Catch::StartsWith("sequenceDiagram\n  participant p1 as supervisor (1)\n"));
  CHECK_THAT(text,
             Catch::Contains("p1-xp3: stop_at 4\n") && Catch::Contains("p1->>p2: stop_at 4\n"));
  CHECK_THAT(text, Catch::Contains("Note over p3: fault: crash_rank\n"));
  CHECK_THAT(text, Catch::Contains("Note over p1: link lost, not received\n"));
}
