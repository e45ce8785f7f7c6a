// Goal: `troupe report` writes one page that holds all of a run as data, whatever its files hold.
#include "apps/troupe/report_page.hpp"
#include "apps/troupe/run_files.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

using words = std::vector<std::string>;

struct finished_run {
  temporary_folder place;
  std::string folder;

  explicit finished_run(const std::string& name = "run", const words& more = {})
      : folder((place.path() / name).string()) {
    words call{"fit", "--batch-size", "3", "--max-epochs", "2", "--run-dir", folder};
    call.insert(call.end(), more.begin(), more.end());
    troupe_says(call);
  }
  std::string file(const char* name) const { return (fs::path{folder} / name).string(); }
  std::string page() const { return (place.path() / "page.html").string(); }
};

// What the page holds, as its script reads it.
json data_of(const std::string& page) {
  const std::string before = R"(<script type="application/json" id="data">)";
  const auto begin = page.find(before) + before.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

json report_of(const std::string& folder) {
  return json::parse(troupe_says({"report", folder, "--json"}).out)["runs"][0];
}

}  // namespace

TEST_CASE("report writes a page with the curves, events, settings and result of a run",
          "[report]") {
  const finished_run run;
  const auto said = troupe_says({"report", run.folder, "--output", run.page()});
  CAPTURE(said.err);
  CHECK(said.code == 0);
  CHECK(said.out == run.page() + "\n");
  const auto page = read_text(run.page());
  CHECK_THAT(page, Catch::StartsWith("<!doctype html>") && Catch::EndsWith("</html>\n"));
  const auto data = data_of(page);
  CHECK(data["schema"] == "troupe.report/1");
  const auto& one = data["runs"].at(0);
  CHECK(one["name"] == "run");
  CHECK(one["state"] == "finished");
  CHECK(one["notes"].empty());
  CHECK(one["settings"]["batch_size"] == "3");
  CHECK(one["result"] == json::parse(read_text(run.file("result.json"))));
  CHECK(one["events"]["list"].size() == lines_of(read_text(run.file("events.jsonl"))).size());
  REQUIRE_FALSE(one["metrics"]["series"].empty());
  for (const auto& curve : one["metrics"]["series"]) {
    CHECK(curve["step"].size() == curve["value"].size());
    CHECK_FALSE(curve["value"].empty());
  }
}

TEST_CASE("report's page names no other host and may load nothing", "[report]") {
  const finished_run run;
  troupe_says({"report", run.folder, "--output", run.page()});
  const auto page = read_text(run.page());
  CHECK(count_of(page, "://") == 1);
  CHECK_THAT(
      page, Catch::Contains("http://www.w3.org/2000/svg") && Catch::Contains("default-src 'none'"));
  CHECK(count_of(page, std::string{program::report_data_mark}) == 0);
  CHECK(count_of(std::string{program::report_page}, std::string{program::report_data_mark}) == 1);
}

TEST_CASE("a run's name and an exception's text never become markup", "[report]") {
  const std::string name = "<img src=x onerror=alert(1)>&\"'";
  const std::string what = "</script><script>alert(2)</script><!--";
  const finished_run run{name, {"--fault", "throw@rank=1,hook=backward,step=3,what=" + what}};
  CHECK(troupe_says({"report", run.folder, "--output", run.page()}).code == 0);
  const auto page = read_text(run.page());
  CHECK(count_of(page, "<img") == 0);
  CHECK(count_of(page, "alert(2)</script>") == 0);
  CHECK(count_of(page, "</script>") == 2);  // the data's and the page's own
  CHECK(count_of(page, "<!--") == 0);
  const auto one = data_of(page)["runs"].at(0);
  CHECK(one["name"] == name);
  CHECK(one["state"] == "failed");
  CHECK(one["result"]["failure"]["what"] == what);
}

TEST_CASE("report draws the readable parts of a half-written run, and names the others",
          "[report]") {
  const finished_run run;
  const auto events = read_text(run.file("events.jsonl"));
  const auto metrics = read_text(run.file("metrics.csv"));
  write_text(run.file("events.jsonl"), "no event\n" + events + R"({"time":"2026-)");
  write_text(run.file("metrics.csv"), metrics + "one,two\n7,1");
  write_text(run.file("result.json"), R"({"schema":"troupe.re)");
  fs::remove(run.file("config.toml"));
  const auto one = report_of(run.folder);
  CHECK(one["state"] == "unknown");
  CHECK(one["result"].is_null());
  CHECK(one["events"]["list"].size() == lines_of(events).size());
  const auto notes = one["notes"].dump();
  CHECK_THAT(notes, Catch::Contains("result.json is damaged"));
  CHECK_THAT(notes, Catch::Contains("events.jsonl: lines that are no event were left out: 1"));
  CHECK_THAT(notes, Catch::Contains("events.jsonl: its last line is incomplete"));
  CHECK_THAT(notes, Catch::Contains("metrics.csv: rows that are damaged were left out: 1"));
  CHECK_THAT(notes, Catch::Contains("metrics.csv: its last line is incomplete"));
  CHECK_THAT(notes, Catch::Contains("config.toml is not there"));
}

TEST_CASE("report of a folder with one file of a run names the missing ones", "[report]") {
  const temporary_folder place;
  write_text(place.path() / "metrics.csv", "");
  const auto notes = report_of(place.path().string())["notes"].dump();
  CHECK_THAT(notes, Catch::Contains("events.jsonl is not there"));
}

TEST_CASE("report refuses an output that is there, a folder without a run, and no output",
          "[report]") {
  const finished_run run;
  write_text(run.page(), "mine");
  auto said = troupe_says({"report", run.folder, "--output", run.page()});
  CHECK(said.code == 3);
  CHECK_THAT(said.err, Catch::Contains("--force"));
  CHECK(read_text(run.page()) == "mine");
  CHECK(troupe_says({"report", run.folder, "--output", run.page(), "--force"}).code == 0);
  CHECK(data_of(read_text(run.page()))["runs"].size() == 1);
  said = troupe_says(
      {"report", run.folder, run.folder + "/absent", "--output", run.page(), "--force"});
  CHECK(said.code == 3);
  CHECK_THAT(said.err, Catch::Contains("absent holds no run"));
  said = troupe_says({"report", run.folder});
  CHECK(said.code == 2);
  CHECK_THAT(said.err, Catch::Contains("--output FILE.html"));
}

TEST_CASE("report names runs by their folders where the names are equal", "[report]") {
  const finished_run first, second;
  const auto all =
      json::parse(troupe_says({"report", first.folder + "/", second.folder, "--json"}).out)["runs"];
  CHECK(all.at(0)["name"] == first.folder + "/");
  CHECK(all.at(1)["name"] == second.folder);
}

TEST_CASE("a long curve keeps its ends, its peaks and a bounded number of points", "[report]") {
  const temporary_folder place;
  std::string text = "step,epoch,train/loss\n";
  for (int i = 0; i < 20000; ++i)
    text += std::to_string(i) + ",0," +
            (i == 777                           ? "50"
             : i == 15000                       ? "-50"
             : i == 9 || i == 778 || i == 15002 ? "nan"
                                                : "1") +
            "\n";
  write_text(place.path() / "metrics.csv", text);
  const auto one = report_of(place.path().string());
  const auto curve = one["metrics"]["series"].at(0);
  CHECK(curve["points"] == 20000);
  CHECK(curve["value"].size() <= 1000);
  CHECK(curve["step"].front() == 0);
  CHECK(curve["step"].back() == 19999);
  const auto kept = curve["step"].get<std::vector<int>>();
  CHECK(std::is_sorted(kept.begin(), kept.end()));
  for (const int peak : {777, 15000}) CHECK(std::count(kept.begin(), kept.end(), peak) == 1);
  CHECK_THAT(one["notes"].dump(), Catch::Contains("1 of the curves"));
}

TEST_CASE("of many events, failures stay and checkpoints are left out evenly", "[report]") {
  const temporary_folder place;
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += R"({"time":"2026-11-25T01:00:00.000Z","event":")" +
            std::string{i % 1000 == 500 ? "rank_failed" : "checkpoint_written"} +
            R"(","rank":null,"generation":1,"step":)" + std::to_string(i) + R"(,"details":{}})" +
            "\n";
  write_text(place.path() / "events.jsonl", text);
  const auto read = program::read_events(place.path().string(), 100, [](const std::string&) {});
  CHECK(read.list.size() <= 100);
  CHECK(read.list.size() > 90);
  CHECK(read.list.size() + read.left_out == 5000);
  const auto failures = std::count_if(read.list.begin(), read.list.end(),
                                      [](const auto& e) { return e["event"] == "rank_failed"; });
  CHECK(failures == 5);
}
