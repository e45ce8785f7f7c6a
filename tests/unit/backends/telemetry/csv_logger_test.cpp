// Goal: metrics.csv has a row per observation and a column per metric. New columns keep old rows,
// and a resumed run removes the rows after its checkpoint.
#include "backends/telemetry/csv_logger.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "tests/support/catch.hpp"

using namespace troupe;
using troupe::testing::temporary_folder;

namespace {

observation at(std::int64_t step, metrics logged, std::int64_t epoch = 0) {
  return seen::metrics{{.epoch = epoch, .step = step}, std::move(logged)};
}

}  // namespace

TEST_CASE("one row per observation and one column per metric", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  csv_logger log{path};
  CHECK(read_text_file(path) == "step,epoch\n");
  log.on(at(0, {{"train/loss", 2.5}}));
  log.on(at(50, {{"train/loss", 1.25}}));
  CHECK(read_text_file(path) == "step,epoch,train/loss\n0,0,2.5\n50,0,1.25\n");
}

TEST_CASE("a new metric adds a column to every row and keeps existing values", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  csv_logger log{path};
  log.on(at(0, {{"train/loss", 2}}));
  log.on(at(9, {{"val/accuracy", 0.5}, {"val/loss", 1}}));
  log.on(at(10, {{"train/loss", 0.1}}, 1));
  CHECK(read_text_file(path) ==
        "step,epoch,train/loss,val/accuracy,val/loss\n0,0,2,,\n9,0,,0.5,1\n10,1,0.1,,\n");
  CHECK_FALSE(std::filesystem::exists(path + ".new"));
}

TEST_CASE("odd names and numbers are quoted and survive a second logger", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  {
    csv_logger log{path};
    log.on(at(0, {{"a,b", std::nan("")}, {"c\"d", INFINITY}}));
    log.on(at(1, {{"a,b", -std::nan("")}, {"c\"d", -INFINITY}}));
  }
  csv_logger again{path};
  again.on(seen::metrics{{}, {{"c\"d", -1}}});
  CHECK(read_text_file(path) ==
        "step,epoch,\"a,b\",\"c\"\"d\"\n0,0,nan,inf\n1,0,nan,-inf\n,,,-1\n");
}

TEST_CASE("other observations and empty metrics write nothing", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  csv_logger log{path};
  log.on(seen::progress{});
  log.on(seen::lifecycle{.event = lifecycle_kind::job_ended});
  log.on(at(1, {}));
  CHECK(read_text_file(path) == "step,epoch\n");
}

TEST_CASE("cut_metrics removes rows of later steps and the file continues", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  {
    csv_logger log{path};
    for (const std::int64_t step : {0, 10, 20, 30}) log.on(at(step, {{"x", step / 2.0}}));
  }
  cut_metrics(path, 20);
  CHECK(read_text_file(path) == "step,epoch,x\n0,0,0\n10,0,5\n20,0,10\n");
  csv_logger log{path};
  log.on(at(21, {{"x", 0.5}, {"y", 1}}, 1));
  CHECK(read_text_file(path) == "step,epoch,x,y\n0,0,0,\n10,0,5,\n20,0,10,\n21,1,0.5,1\n");
}

TEST_CASE("a resumed run reports its last step again: the row is not repeated", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  const auto end = at(20, {{"x", 0.5}, {"z", std::nan("")}});
  {
    csv_logger log{path};
    log.on(at(10, {{"x", 0.5}}));
    log.on(end);
    log.on(at(20, {{"y", 3}}));
  }
  for (int i = 0; i < 2; ++i) csv_logger{path}.on(end);
  CHECK(read_text_file(path) == "step,epoch,x,z,y\n10,0,0.5,,\n20,0,0.5,nan,\n20,0,,,3\n");
  csv_logger log{path};
  log.on(at(20, {{"w", 1}}));
  log.on(end);
  log.on(at(20, {{"x", 0.25}}));
  log.on(at(30, {{"x", 0.5}}));
  CHECK(read_text_file(path) ==
        "step,epoch,x,z,y,w\n10,0,0.5,,,\n20,0,0.5,nan,,\n20,0,,,3,\n20,0,,,,1\n20,0,0.25,,,\n"
        "30,0,0.5,,,\n");
}

TEST_CASE("cut_metrics also removes test results that follow the step", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  const std::string rows = "step,epoch,x,test/x\n4,0,,9\n8,0,1,9\n8,0,2,\n";
  replace_text_file(path, rows + "8,0,,7\n9,0,3,\n");
  cut_metrics(path, 8);
  CHECK(read_text_file(path) == rows);

  // Of a module that logs as Lightning's pages do.
  const std::string own = "step,epoch,tests,test_acc,test\n8,0,1,,\n";
  replace_text_file(path, own + "8,0,,7,\n8,0,,,3\n");
  cut_metrics(path, 8);
  CHECK(read_text_file(path) == own);
}

TEST_CASE("a line truncated by a crash is dropped", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  replace_text_file(path, "step,epoch,x\n0,0,1\n1,0,0.");
  cut_metrics(path, 5);
  CHECK(read_text_file(path) == "step,epoch,x\n0,0,1\n");
  cut_metrics((folder.path() / "absent.csv").string(), 5);
  CHECK_FALSE(std::filesystem::exists((folder.path() / "absent.csv").string()));
}

TEST_CASE("more names than columns: the others are written, and the end names the first", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  csv_logger log{path};
  metrics many;
  for (int i = 0; i < 2045; ++i) many[fmt::format("m{:04}", i)] = i;
  log.on(at(0, many));
  log.on(at(1, {{"z1", 1}, {"z2", 2}, {"m0000", 3}}));
  log.on(at(2, {{"z2", 2}}));
  log.on(at(3, {{"m2044", 4}, {"z3", 3}}));
  const auto read = parse_metrics(read_text_file(path));
  CHECK(read.damaged == 0);
  REQUIRE(read.series.size() == 2046);
  CHECK(read.series[0].step == std::vector<std::int64_t>{0, 1});
  CHECK(read.series[2044].step == std::vector<std::int64_t>{0, 3});
  CHECK(read.series[2045].name == "z1");
  CHECK_THROWS_WITH(log.finish(0), Catch::Contains("2048 columns") && Catch::Contains("so z2 and"));
  csv_logger again{path};
  again.on(at(4, {{"m0001", 1}}));
  CHECK_NOTHROW(again.finish(0));
}

TEST_CASE("a file that is no metrics file is refused and left unchanged", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "metrics.csv").string();
  replace_text_file(path, "my,own,table\n");
  CHECK_THROWS_AS(csv_logger{path}, user_error);
  CHECK(read_text_file(path) == "my,own,table\n");
}

TEST_CASE("a folder in place of the file is named", "[csv]") {
  const temporary_folder folder;
  CHECK_THROWS_WITH(csv_logger{folder.path().string()}, Catch::Contains("it is a folder"));
  CHECK_THROWS_WITH(cut_metrics(folder.path().string(), 5), Catch::Contains("it is a folder"));
}

TEST_CASE("a file that cannot be written is an error with its path and a remedy", "[csv]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "absent/metrics.csv").string();
  try {
    csv_logger log{path};
    FAIL("it was written");
  } catch (const user_error& error) {
    CHECK(error.code() == errc::bad_configuration);
    CHECK_THAT(error.what(), Catch::Contains(path) && Catch::Contains("choose a folder"));
  }
}

TEST_CASE("a metrics file is read as one series per metric", "[csv]") {
  const auto table = parse_metrics(
      "step,epoch,train/loss,\"a,b\"\n0,0,2.5,\n10,0,,nan\n20,,1.25,-3\nx,0,1,1\n1,0\n30,1,1");
  REQUIRE(table.series.size() == 2);
  CHECK(table.series[0].name == "train/loss");
  CHECK(table.series[0].step == std::vector<std::int64_t>{0, 20});
  CHECK(table.series[0].epoch == std::vector<std::int64_t>{0, undefined});
  CHECK(table.series[0].value == std::vector<double>{2.5, 1.25});
  CHECK(table.series[1].name == "a,b");
  CHECK(table.series[1].step == std::vector<std::int64_t>{10, 20});
  CHECK(std::isnan(table.series[1].value[0]));
  CHECK(table.damaged == 2);
  CHECK(table.cut);
}

TEST_CASE("an empty metrics file, and one with its columns only, have no values", "[csv]") {
  CHECK(parse_metrics("").series.empty());
  const auto columns = parse_metrics("step,epoch,train/loss\n");
  REQUIRE(columns.series.size() == 1);
  CHECK(columns.series[0].value.empty());
  CHECK_FALSE(columns.cut);
}
