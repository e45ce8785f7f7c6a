// Goal: `troupe bench` prints the right fields and refuses wrong options. Speed is not tested.
#include "apps/bench/bare_loops.hpp"
#include "apps/bench/collectives.hpp"
#include "apps/bench/processes.hpp"
#include "apps/bench/timing.hpp"
#include "backends/inproc/inproc.hpp"
#include "tests/unit/apps/integer_program.hpp"
#include "troupe/ports.hpp"

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

std::vector<float> counted(std::size_t count, float from) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}

}  // namespace

TEST_CASE("a summary has the median, the relative interquartile range and the minimum", "[bench]") {
  const auto odd = program::summary({5, 1, 3, 2, 4});
  CHECK(odd.median == 3);
  CHECK(odd.best == 1);
  CHECK(odd.spread == Approx(2.0 / 3));
  const auto even = program::summary({4, 1});
  CHECK(even.median == 2.5);
  CHECK(program::summary({}).median == 0);
  CHECK(program::summary({0, 0}).spread == 0);
}

TEST_CASE("bare_reduce, bare_all_reduce and bare_copy are correct across block boundaries",
          "[bench]") {
  const auto count = GENERATE(std::size_t{0}, 1, 1023, 1024, 1025, 5000);
  const auto ranks = GENERATE(std::size_t{2}, 3, 5);
  CAPTURE(count, ranks);
  std::vector<std::vector<float>> memory;
  std::vector<float*> arrays;
  for (std::size_t i = 0; i < ranks; ++i) memory.push_back(counted(count, static_cast<float>(i)));
  for (auto& one : memory) arrays.push_back(one.data());
  std::vector<float> sum(count);
  for (std::size_t i = 0; i < count; ++i)
    for (const auto& one : memory) sum[i] += one[i];
  std::vector<float> out(count);
  program::bare_reduce(arrays, out.data(), count);
  CHECK(out == sum);
  CHECK(memory[1] == counted(count, 1));
  program::bare_all_reduce(arrays, count);
  for (const auto& one : memory) CHECK(one == sum);
  program::bare_copy(counted(count, 7).data(), arrays, count);
  for (const auto& one : memory) CHECK(one == counted(count, 7));
}

TEST_CASE("bench collectives prints one object per size", "[bench]") {
  const auto operation = GENERATE("all_reduce", "broadcast", "all_gather", "reduce_scatter");
  const auto ranks = GENERATE(2, 3);
  CAPTURE(operation, ranks);
  const auto said =
      troupe_says({"bench", "collectives", "--operation", operation, "--bytes", "1200,12K",
                   "--rounds", "1", "--ranks", std::to_string(ranks), "--json"});
  CAPTURE(said.err);
  REQUIRE(said.code == 0);
  const auto rows = lines_of(said.out);
  REQUIRE(rows.size() == 2);
  for (const auto& row : rows) {
    CHECK(row["schema"] == "troupe.bench_collectives/1");
    CHECK(row["operation"] == operation);
    CHECK(row["communicator"] == "inproc");
    CHECK(row["ranks"] == ranks);
    CHECK(row["seconds"].get<double>() > 0);
    CHECK(row["spread"].get<double>() >= 0);
    CHECK(row["bare_loop_seconds"].get<double>() > 0);
  }
  CHECK(rows[0]["bytes"] == 1200);
  CHECK(rows[1]["bytes"] == 12288);
}

TEST_CASE("bench collectives runs ranks as processes over shm, tcp and hier", "[bench]") {
  const auto by = GENERATE("shm", "tcp", "hier");
  const auto memory = GENERATE("registered", "ordinary");
  CAPTURE(by, memory);
  const auto said = troupe_says({"bench", "collectives", "--communicator", by, "--memory", memory,
                                 "--bytes", "1K,200K", "--rounds", "1", "--ranks", "3", "--json"});
  CAPTURE(said.err);
  REQUIRE(said.code == 0);
  const auto rows = lines_of(said.out);
  REQUIRE(rows.size() == 2);
  for (const auto& row : rows) {
    CHECK(row["communicator"] == by);
    CHECK(row["placement"] == "processes");
    CHECK(row["memory"] == memory);
    CHECK(row["ranks"] == 3);
    CHECK(row["seconds"].get<double>() > 0);
  }
}

TEST_CASE("bench collectives over tcp accepts a number of connections per pair of ranks",
          "[bench]") {
  const auto kinds = local_ports().rendezvous_kinds;
  const auto tcp = std::find_if(kinds.begin(), kinds.end(),
                                [](const auto& kind) { return kind->name() == "tcp"; });
  REQUIRE(tcp != kinds.end());
  CHECK((*tcp)->arrange({.tcp_streams = 3})->address() == "3");
  const auto said = troupe_says({"bench", "collectives", "--communicator", "tcp", "--tcp-streams",
                                 "5", "--bytes", "2M", "--rounds", "1", "--json"});
  CAPTURE(said.err);
  REQUIRE(said.code == 0);
}

TEST_CASE("bench collectives: two ranks with ordinary memory have a staging floor", "[bench]") {
  const auto rows_of = [](const char* memory, const char* ranks) {
    const auto said =
        troupe_says({"bench", "collectives", "--communicator", "shm", "--memory", memory, "--bytes",
                     "1000,1200K", "--rounds", "1", "--ranks", ranks, "--json"});
    CAPTURE(said.err);
    REQUIRE(said.code == 0);
    return lines_of(said.out);
  };
  for (const auto& row : rows_of("ordinary", "2"))
    CHECK(row["staging_floor_seconds"].get<double>() > 0);
  for (const auto& row : rows_of("ordinary", "3")) CHECK(row["staging_floor_seconds"].is_null());
  for (const auto& row : rows_of("registered", "2")) CHECK(row["staging_floor_seconds"].is_null());
}

TEST_CASE("a rank's process exits: the benchmark fails and names the rank", "[bench]") {
  const auto kinds = local_ports().rendezvous_kinds;
  CHECK_THROWS_WITH(program::on_processes(*kinds.at(0), {}, 2,
                                          [](communicator& group) {
                                            if (group.group().rank == 1) ::_exit(7);
                                            group.barrier("never met")->wait();
                                          }),
                    Catch::Contains("rank 1 of the benchmark failed"));
}

TEST_CASE("bench collectives: a barrier and a single rank have no bare loop", "[bench]") {
  const auto barrier =
      troupe_says({"bench", "collectives", "--operation", "barrier", "--rounds", "1", "--json"});
  REQUIRE(barrier.code == 0);
  const auto rows = lines_of(barrier.out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["bytes"] == 0);
  CHECK(rows[0]["bare_loop_seconds"].is_null());
  const auto alone = troupe_says(
      {"bench", "collectives", "--ranks", "1", "--bytes", "1K", "--rounds", "1", "--json"});
  REQUIRE(alone.code == 0);
  CHECK(lines_of(alone.out)[0]["bare_loop_seconds"].is_null());
}

TEST_CASE("bench collectives: an impossible option is refused with its fix", "[bench]") {
  const auto refused = [](const char* flag, const char* value, int code, const char* text) {
    const auto said = troupe_says({"bench", "collectives", flag, value});
    CAPTURE(flag, value, said.err);
    CHECK(said.code == code);
    CHECK_THAT(said.err, Catch::Contains(text));
  };
  refused("--bytes", "12Q", 2, "64K");
  refused("--bytes", "0", 2, "64K");
  refused("--bytes", "K", 2, "64K");
  refused("--bytes", "99999999G", 2, "1024G");
  refused("--operation", "all_reduc", 2, "did you mean \"all_reduce\"");
  refused("--communicator", "inprok", 6, "did you mean \"inproc\"");
  refused("--communicator", "nccl", 6, "GPU");
  refused("--ranks", "0", 2, "1 to 256");
  refused("--memory", "mine", 2, "registered or ordinary");
  refused("--rounds", "0", 2, "1 to 1000");
  refused("--tcp-streams", "17", 2, "1 to 16");
}

TEST_CASE("a communicator returns a wrong sum: the benchmark fails and names the element",
          "[bench]") {
  inproc_backend backend;
  const auto honest = backend.open({.rank = 0, .world = 2});
  const auto other = backend.open({.rank = 1, .world = 2});
  std::vector<float> lies(16, 7);
  const auto lie = other->all_reduce({lies.data(), lies.size(), dtype::f32}, reduction::sum);
  CHECK_THROWS_WITH(
      program::bench_collectives(*honest, {"all_reduce", {64}, 1}, [](const auto&) {}),
      Catch::Contains("element 0 is 8, not 3"));
  CHECK(lie->poll().status == work_status::ok);
}

TEST_CASE("bench fit compares one rank with several", "[bench]") {
  const auto said = troupe_says(
      {"bench", "fit", "--batch-size", "2", "--max-steps", "8", "--rounds", "2", "--json"});
  CAPTURE(said.err);
  REQUIRE(said.code == 0);
  const auto rows = lines_of(said.out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["schema"] == "troupe.bench_fit/1");
  CHECK(rows[0]["model"] == "mlp");
  CHECK(rows[0]["ranks"] == 2);
  CHECK(rows[0]["communicator"] == "inproc");
  CHECK(rows[0]["samples_per_second"].get<double>() > 0);
  CHECK(rows[0]["speed_up"].get<double>() > 0);
  CHECK(rows[0]["waiting_share"].get<double>() >= 0);
  CHECK(rows[0]["waiting_share"].get<double>() <= 1);
  CHECK(rows[0]["apart_samples_per_second"].get<double>() > 0);
  CHECK(rows[0]["apart_speed_up"].get<double>() > 0);
  CHECK(rows[0]["apart_waiting_share"].get<double>() >= 0);
}

TEST_CASE("bench fit runs ranks as processes", "[bench]") {
  const auto said = troupe_says({"bench", "fit", "--batch-size", "2", "--max-steps", "8",
                                 "--rounds", "1", "--placement", "processes", "--json"});
  CAPTURE(said.err);
  REQUIRE(said.code == 0);
  const auto row = lines_of(said.out).at(0);
  CHECK(row["communicator"] == "shm");
  CHECK(row["samples_per_second"].get<double>() > 0);
}

TEST_CASE("bench fit with too few steps to measure is refused and names --max-steps", "[bench]") {
  const auto said = troupe_says({"bench", "fit", "--batch-size", "2", "--max-steps", "1"});
  CHECK(said.code == 3);
  CHECK_THAT(said.err, Catch::Contains("--max-steps"));
}
