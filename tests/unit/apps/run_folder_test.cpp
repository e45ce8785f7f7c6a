// Goal: a run's folder has the right name, one process at a time can open it, and a resumed run
// prepares it.
#include "apps/troupe/run_folder.hpp"

#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace fs = std::filesystem;

TEST_CASE("the name of a new run folder has the model, the time and four digits", "[run_folder]") {
  using namespace std::chrono;
  const auto noon = sys_days{year{2026} / November / 21} + hours{12} + minutes{3};
  CHECK(fresh_run_folder("mlp", noon, 0xabcdef) == "runs/mlp-20261121T120300Z-cdef");
  CHECK(fresh_run_folder("cnn", noon, 1) == "runs/cnn-20261121T120300Z-0001");
}

TEST_CASE("the latest run is found by the time in its folder's name", "[run_folder]") {
  const temporary_folder runs;
  CHECK(latest_run(runs.path()) == std::nullopt);
  CHECK(latest_run(runs.path() / "absent") == std::nullopt);
  for (const auto* name : {"mlp-20260101T000000Z-ffff", "cnn-20270101T000000Z-0000", "zzz",
                           "mlp-20280101T000000Z-0000"})
    fs::create_directories(runs.path() / name);
  write_text(runs.path() / "mlp-20260101T000000Z-ffff" / config_file, "");
  write_text(runs.path() / "cnn-20270101T000000Z-0000" / config_file, "");
  write_text(runs.path() / "zzz" / config_file, "");
  CHECK(latest_run(runs.path()) == (runs.path() / "cnn-20270101T000000Z-0000").string());
}

TEST_CASE("a folder with a part of a run counts as a run folder", "[run_folder]") {
  const temporary_folder folder;
  CHECK_FALSE(holds_run(folder.path()));
  CHECK_FALSE(holds_run(folder.path() / "absent"));
  write_text(folder.path() / "notes.txt", "mine");
  CHECK_FALSE(holds_run(folder.path()));
  fs::create_directory(folder.path() / "checkpoints");
  CHECK(holds_run(folder.path()));
}

TEST_CASE("the run of a checkpoint is found through links and trailing slashes", "[run_folder]") {
  const temporary_folder place;
  const auto run = place.path() / "run";
  const auto checkpoint = run / "checkpoints" / "step-00000003";
  fs::create_directories(checkpoint);
  fs::create_directory_symlink("step-00000003", run / "checkpoints" / "latest");
  const auto same = [&](const fs::path& path) {
    const auto found = run_of_checkpoint(path);
    return found && fs::equivalent(*found, run);
  };
  CHECK(same(checkpoint));
  CHECK(same(checkpoint.string() + "/"));
  CHECK(same(run / "checkpoints" / "latest"));
  CHECK(run_of_checkpoint(place.path() / "elsewhere") == std::nullopt);

  // Its checkpoints lie elsewhere.
  const auto store = place.path() / "store";
  fs::rename(run / "checkpoints", store);
  fs::create_directory_symlink(store, run / "checkpoints");
  CHECK(same(checkpoint));
  CHECK(same(checkpoint.string() + "/"));
  CHECK(same(run / "checkpoints" / "latest"));
  CHECK(run_of_checkpoint(store / "step-00000003") == std::nullopt);
}

TEST_CASE("only one process at a time can open a run folder", "[run_folder]") {
  const temporary_folder place;
  const auto path = (place.path() / "a" / "b").string();
  {
    const run_folder mine{path};
    CHECK(fs::is_directory(path));
    CHECK(is_running(path));
    try {
      run_folder other{path};
      FAIL("two hold it");
    } catch (const user_error& error) {
      CHECK(error.code() == errc::bad_configuration);
      CHECK_THAT(error.what(), Catch::Contains(path) && Catch::Contains("another program"));
    }
  }
  CHECK_FALSE(is_running(path));
  CHECK_FALSE(is_running(place.path() / "absent"));
  run_folder again{path};
}

TEST_CASE("a program of another host that runs in the folder is named", "[run_folder]") {
  const temporary_folder place;
  {
    const run_folder mine{place.path().string()};
    CHECK(other_host(place.path()) == std::nullopt);  // it is this one
  }
  const auto file = place.path() / lock_file;
  std::ofstream{file} << "node17\n";
  CHECK(other_host(place.path()) == std::nullopt);  // it has ended
  const file_descriptor lock{::open(file.c_str(), O_RDWR)};
  REQUIRE(::flock(lock.get(), LOCK_EX) == 0);
  CHECK(other_host(place.path()) == "node17");
  CHECK_THROWS_WITH(run_folder{place.path().string()},
                    Catch::Contains("another program is running there, on host node17"));
}

TEST_CASE("a program that asks whether a run folder is in use does not keep another one out",
          "[run_folder]") {
  const temporary_folder place;
  for (int times = 0; times < 20; ++times) {
    const int asking = ::open((place.path() / lock_file).c_str(), O_RDONLY | O_CREAT, 0600);
    REQUIRE(::flock(asking, LOCK_SH) == 0);
    std::jthread answered{[&] { ::close(asking); }};
    CHECK_NOTHROW(run_folder{place.path().string()});
  }
}

TEST_CASE("an impossible run folder: the error names the folder and the fix", "[run_folder]") {
  const temporary_folder place;
  write_text(place.path() / "file", "");
  for (const auto& path : {(place.path() / "file").string(), (place.path() / "file/x").string(),
                           std::string{"/proc/absent/run"}}) {
    try {
      run_folder folder{path};
      FAIL("it was made");
    } catch (const user_error& error) {
      CHECK(error.code() == errc::bad_configuration);
      CHECK_THAT(error.what(), Catch::Contains(path) && Catch::Contains("--run-dir"));
    }
  }
}

TEST_CASE("a resumed run removes its result and the metrics after its step", "[run_folder]") {
  const temporary_folder place;
  const run_folder folder{place.path().string()};
  folder.write(result_file, "{}");
  write_text(folder.file(metrics_file), "step,epoch,x\n10,0,1\n20,0,2\n30,1,3\n");
  folder.resume_at(20);
  CHECK_FALSE(fs::exists(folder.file(result_file)));
  CHECK(read_text(folder.file(metrics_file)) == "step,epoch,x\n10,0,1\n20,0,2\n");
  folder.resume_at(20);
}

TEST_CASE("a run folder that is moved, replaced or removed is not in its place", "[run_folder]") {
  const temporary_folder place;
  const auto path = (place.path() / "run").string();
  const run_folder mine{path};
  CHECK(mine.is_in_place());
  std::filesystem::rename(path, place.path() / "moved");
  CHECK_FALSE(mine.is_in_place());
  std::filesystem::create_directory(path);
  CHECK_FALSE(mine.is_in_place());
  std::filesystem::remove(path);
  std::filesystem::rename(place.path() / "moved", path);
  CHECK(mine.is_in_place());
  std::filesystem::remove_all(path);
  CHECK_FALSE(mine.is_in_place());
}
