// Goal: a snapshot can be read back whole from its folder. `latest` resolves to a good checkpoint,
// or to an error that says what is wrong with each one. No file outside a checkpoint's folder is
// opened.
#include "backends/checkpoint/regular_file.hpp"
#include "backends/checkpoint/run_checkpoints.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/sample_snapshot.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

// A run folder with checkpoints of the given steps.
struct run_folder {
  temporary_folder folder;

  explicit run_folder(const std::vector<std::int64_t>& steps) {
    for (const auto step : steps)
      write_files(path(step), encode_checkpoint(sample_snapshot(step), {{"troupe", "0.1.0"}}));
  }
  fs::path checkpoints() const { return folder.path() / "checkpoints"; }
  fs::path path(std::int64_t step) const { return checkpoints() / checkpoint_folder_name(step); }
  void link(const std::string& target) const {
    fs::remove(checkpoints() / "latest");
    fs::create_symlink(target, checkpoints() / "latest");
  }
  void damage(std::int64_t step) const {
    auto text = read_text(path(step) / "model.safetensors");
    text.back() = static_cast<char>(text.back() ^ 1);
    write_text(path(step) / "model.safetensors", text);
  }
};

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const user_error& e) {
    CHECK(e.code() == errc::checkpoint);
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a snapshot is read back unchanged from its folder", "[checkpoint]") {
  const run_folder run{{10}};
  CHECK(same_snapshot(read_checkpoint(run.path(10)), sample_snapshot(10)));
  const auto what = verify_checkpoint(run.path(10));
  CHECK(what == inspect_checkpoint(run.path(10)));
  CHECK(what.loop == sample_snapshot(10).loop);
  CHECK(what.files.size() == 2);
  CHECK(what.tensors.size() == 6);
  CHECK(what.versions.at("troupe") == "0.1.0");

  run.link("step-00000010");
  CHECK(same_snapshot(read_checkpoint(run.checkpoints() / "latest"), sample_snapshot(10)));
  CHECK(same_snapshot(read_checkpoint(run.path(10).string() + "/"), sample_snapshot(10)));
}

TEST_CASE("the checkpoint port writes and reads the same format", "[checkpoint]") {
  const auto io = safetensors_checkpoints({{"troupe", "0.1.0"}});
  temporary_folder folder;
  const auto files = io->encode(sample_snapshot(7));
  CHECK(files.back().name == io->commit_file());
  const auto path = folder.path() / "checkpoints" / "step-00000007";
  write_files(path, files);
  CHECK(same_snapshot(io->read(path), sample_snapshot(7)));
  CHECK(io->latest(folder.path()).path == path);
  const auto facts = io->facts(*files.back().chunks.at(0), "x");
  CHECK(facts.loop == sample_snapshot(7).loop);
  CHECK(facts.weights_digest == sample_snapshot(7).weights_digest);
}

TEST_CASE("a damaged checkpoint is refused and the error names the newest good one",
          "[checkpoint]") {
  const run_folder run{{5, 10, 15}};
  run.damage(15);
  const auto text = refusal([&] { verify_checkpoint(run.path(15)); });
  CHECK_THAT(text, Catch::StartsWith((run.path(15) / "model.safetensors").string() + ": hash"));
  CHECK_THAT(text, Contains("hash differs from manifest ("));
  CHECK_THAT(text, Catch::EndsWith("newest good one: " + run.path(10).string()));
  run.damage(10);
  CHECK_THAT(refusal([&] { read_checkpoint(run.path(15).string() + "/"); }),
             Catch::EndsWith("newest good one: " + run.path(5).string()));
  run.damage(5);
  CHECK_THAT(refusal([&] { read_checkpoint(run.path(15)); }), Contains("no good one beside it"));
}

TEST_CASE("latest resolves to the target of the link", "[checkpoint]") {
  const run_folder run{{5, 10}};
  run.link("step-00000005");
  CHECK(latest_checkpoint(run.folder.path()) == found_checkpoint{run.path(5), {}});
}

TEST_CASE("without a link latest is the newest good checkpoint", "[checkpoint]") {
  const run_folder run{{5, 10, 15}};
  CHECK(latest_checkpoint(run.folder.path()).path == run.path(15));
  run.damage(15);
  const auto found = latest_checkpoint(run.folder.path());
  CHECK(found.path == run.path(10));
  REQUIRE(found.refused.size() == 1);
  CHECK(found.refused[0].path == run.path(15));
  CHECK_THAT(found.refused[0].why, Contains("hash differs"));
}

TEST_CASE("a link to a damaged or missing or foreign checkpoint is skipped with a reason",
          "[checkpoint]") {
  const run_folder run{{5, 10}};
  run.link("step-00000010");
  run.damage(10);
  auto found = latest_checkpoint(run.folder.path());
  CHECK(found.path == run.path(5));
  CHECK(found.refused.size() == 1);

  run.link("step-00000099");
  found = latest_checkpoint(run.folder.path());
  CHECK(found.path == run.path(5));
  REQUIRE(found.refused.size() == 2);
  CHECK(found.refused[0].path == run.path(99));

  const run_folder elsewhere{{50}};
  for (const auto& target : {elsewhere.path(50).string(), std::string{"../step-00000050"},
                             std::string{"."}, std::string{"latest"}}) {
    run.link(target);
    found = latest_checkpoint(run.folder.path());
    CHECK(found.path == run.path(5));
    CHECK_THAT(found.refused.at(0).why, Contains("does not name a checkpoint beside it"));
  }
}

TEST_CASE("without any good checkpoint the error says what is wrong with each", "[checkpoint]") {
  const run_folder none{{}};
  const auto latest = [](const run_folder& run) {
    return refusal([&] { latest_checkpoint(run.folder.path()); });
  };
  CHECK_THAT(latest(none), Contains("without --resume"));
  CHECK(list_checkpoints(none.folder.path()).empty());
  CHECK_THAT(refusal([&] { list_checkpoints(none.checkpoints()); }),
             Contains("no such run folder"));
  CHECK_THAT(refusal([&] { read_checkpoint(none.path(3)); }), Contains("no such checkpoint"));
  const auto neither = none.folder.path().string();
  CHECK(refusal([&] { read_checkpoint(neither); }) ==
        neither +
            ": holds no checkpoint (manifest.json), and no checkpoints of a run "
            "(checkpoints/): name the folder of a run, or of one of its checkpoints");

  const run_folder bad{{5, 10}};
  bad.damage(5);
  fs::remove(bad.path(10) / "manifest.json");
  const auto text = latest(bad);
  CHECK_THAT(text, Contains((bad.path(5) / "model.safetensors").string() + ": hash differs"));
  CHECK_THAT(text, Contains((bad.path(10) / "manifest.json").string() + ": No such file"));
}

TEST_CASE("the list shows good and damaged checkpoints and ignores other entries", "[checkpoint]") {
  const run_folder run{{5, 10, 123456789}};
  run.link("step-00000010");
  fs::remove(run.path(5) / "optimizer.safetensors");
  fs::create_directories(run.checkpoints() / ".step-00000020.tmp");
  fs::create_directories(run.checkpoints() / "step-20");
  write_text(run.checkpoints() / "step-00000030", "a file");
  fs::create_symlink(run.path(10), run.checkpoints() / "step-00000040");
  const auto list = list_checkpoints(run.folder.path());
  REQUIRE(list.size() == 3);
  CHECK(list[0].step == 5);
  CHECK_THAT(list[0].damage, Contains("optimizer.safetensors"));
  CHECK_FALSE(list[0].latest);
  CHECK(list[1].step == 10);
  CHECK(list[1].damage.empty());
  CHECK(list[1].latest);
  CHECK(list[1].what.loop.steps == 10);
  CHECK(list[2].step == 123456789);
  CHECK_FALSE(list[2].latest);
  fs::remove(run.checkpoints() / latest_link);  // as on a file system without symbolic links
  fs::remove(run.path(123456789) / "optimizer.safetensors");
  const auto without = list_checkpoints(run.folder.path());
  REQUIRE(without.size() == 3);
  CHECK(without[1].latest);
  CHECK_FALSE(without[2].latest);
}

TEST_CASE("symbolic links inside a checkpoint's folder are refused", "[checkpoint]") {
  const run_folder run{{5}};
  const run_folder other{{5}};
  fs::remove(run.path(5) / "model.safetensors");
  fs::create_symlink(other.path(5) / "model.safetensors", run.path(5) / "model.safetensors");
  CHECK_THAT(refusal([&] { read_checkpoint(run.path(5)); }), Contains("symbolic link"));
  CHECK_THAT(refusal([&] { inspect_checkpoint(run.path(5)); }), Contains("symbolic link"));
  fs::remove(run.path(5) / "manifest.json");
  fs::create_symlink(other.path(5) / "manifest.json", run.path(5) / "manifest.json");
  CHECK_THAT(refusal([&] { inspect_checkpoint(run.path(5)); }), Contains("symbolic link"));
}

TEST_CASE("files that contradict their manifest are refused", "[checkpoint]") {
  const run_folder run{{5}};
  auto files = encode_checkpoint(sample_snapshot(5), {});
  const auto refusal_of = [&](auto change) {
    auto what = parse_manifest(*files.back().chunks[0], "x");
    change(what);
    write_text(run.path(5) / "manifest.json", render_manifest(what));
    return refusal([&] { read_checkpoint(run.path(5)); });
  };
  CHECK(refusal_of([](manifest&) {}) == "accepted");
  CHECK_THAT(refusal_of([](manifest& m) { m.files.pop_back(); }),
             Contains("does not name optimizer"));
  CHECK_THAT(refusal_of([](manifest& m) { m.files.erase(m.files.begin()); }),
             Contains("does not name model"));
  CHECK_THAT(refusal_of([](manifest& m) {
               m.tensors[0].shape = {1, 3};
             }),
             Contains("other tensors"));
  CHECK_THAT(refusal_of([](manifest& m) { m.tensors.pop_back(); }), Contains("other tensors"));
  CHECK_THAT(refusal_of([](manifest& m) { m.files[0].bytes += 1; }), Contains("truncated"));
  CHECK_THAT(refusal_of([](manifest& m) { m.weights_digest[0] ^= 1; }), Contains("weights_digest"));
  CHECK(refusal_of([](manifest& m) { m.weights_digest.clear(); }) == "accepted");
}

TEST_CASE("an additional file of the user is verified by its hash", "[checkpoint]") {
  const run_folder run{{5}};
  write_text(run.path(5) / "tokens.bin", "abc");
  auto what = inspect_checkpoint(run.path(5));
  what.files.push_back({"tokens.bin", 3, regular_file{run.path(5) / "tokens.bin"}.hash()});
  write_text(run.path(5) / "manifest.json", render_manifest(what));
  CHECK(same_snapshot(read_checkpoint(run.path(5)), sample_snapshot(5)));
  write_text(run.path(5) / "tokens.bin", "abd");
  CHECK_THAT(refusal([&] { read_checkpoint(run.path(5)); }), Contains("tokens.bin: hash differs"));
}

TEST_CASE("the name of a checkpoint folder encodes its step", "[checkpoint]") {
  CHECK(checkpoint_folder_name(937) == "step-00000937");
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{99999999}, std::int64_t{100000000},
                                  std::numeric_limits<std::int64_t>::max()})
    CHECK(step_of_checkpoint_folder(checkpoint_folder_name(step)) == step);
  for (const auto* bad : {"", "step-", "step-1", "step-0000000x", "step-000000001", "latest",
                          ".step-00000001.tmp", "step-99999999999999999999", "step--0000001"})
    CHECK(step_of_checkpoint_folder(bad) == -1);
}

TEST_CASE("removing a checkpoint removes its whole folder and nothing else", "[checkpoint]") {
  run_folder run{{3, 7}};
  const auto port = safetensors_checkpoints({});
  // The remains of a crashed removal do not disturb it.
  fs::create_directory(run.checkpoints() / ".step-00000003.tmp");
  port->remove(run.path(3).string() + "/");
  CHECK_FALSE(fs::exists(run.path(3)));
  CHECK_FALSE(fs::exists(run.checkpoints() / ".step-00000003.tmp"));
  CHECK(port->latest(run.folder.path().string()).path == run.path(7).string());
  CHECK_NOTHROW(port->remove(run.path(3).string()));
  for (const auto& other : {run.checkpoints(), run.folder.path(), run.path(7) / "manifest.json"})
    CHECK_THROWS_AS(port->remove(other.string()), user_error);
  CHECK(fs::exists(run.path(7) / "manifest.json"));
}
