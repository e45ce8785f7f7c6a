// Goal: the simulated disk behaves like a real one, and a crash loses neither more nor less than it
// may. Method: the same operations on both, drawn from a seed; crashes by hand, with every choice
// of what is kept.
#include "backends/simulated/disk.hpp"

#include "backends/local/file_operations.hpp"
#include "tests/support/temporary_folder.hpp"

#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <span>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace ops = troupe::storage_ops;
using kind = storage_fault::kind;
using Catch::Matchers::Contains;

namespace {

ops::write writing(std::string path, const std::string& text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {std::move(path),
          {std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end())}};
}

void must(simulated_disk& disk, const storage_op& op) {
  const auto result = disk.perform(op);
  INFO(result.text);
  REQUIRE_FALSE(result.error);
}

std::string text_of(const simulated_disk::entry& e) {
  return {reinterpret_cast<const char*>(e.bytes->data()), e.bytes->size()};
}

// All entries as text, such as "a=1 b/ b/l->a".
std::string shown(const simulated_disk& disk) {
  std::string all;
  for (const auto& e : disk.entries()) {
    if (e.path.empty()) continue;
    all += (all.empty() ? "" : " ") + e.path.substr(1);
    if (e.what == simulated_disk::entry::kind::folder) all += "/";
    if (e.what == simulated_disk::entry::kind::file) all += "=" + text_of(e);
    if (e.what == simulated_disk::entry::kind::link) all += "->" + e.target;
  }
  return all;
}

std::string shown(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> sorted;
  for (const auto& e : fs::recursive_directory_iterator{root}) {
    const auto below = e.path().lexically_relative(root);
    auto& one = sorted[below] = below.string();
    if (e.is_symlink())
      one += "->" + fs::read_symlink(e.path()).string();
    else
      one += e.is_directory() ? "/" : "=" + read_text(e.path());
  }
  std::string all;
  for (const auto& [path, one] : sorted) all += (all.empty() ? "" : " ") + one;
  return all;
}

// The entries after every possible loss of power.
std::set<std::string> seen_after_losses(const simulated_disk& disk) {
  REQUIRE(disk.pending() < 12);
  std::set<std::string> all;
  for (std::uint64_t kept = 0; kept < std::uint64_t{1} << disk.pending(); ++kept)
    all.insert(shown(disk.after_power_loss(kept)));
  return all;
}

simulated_disk disk_with(const std::string& text) {
  simulated_disk disk;
  must(disk, writing("a", text));
  must(disk, ops::sync_folder{"."});
  return disk;
}

storage_op any_op(std::mt19937_64& draw) {
  const auto path = [&] {
    static const std::vector<std::string> all{"a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "../x"};
    return all[draw() % all.size()];
  };
  const auto op = draw() % 10;
  if (op < 2) return writing(path(), std::to_string(draw() % 100));
  if (op < 4) return ops::rename{path(), path()};
  if (op < 6) return ops::make_folder{path()};
  if (op == 6) return ops::remove{path()};
  if (op == 7) return ops::link{draw() % 2 == 0 ? "a" : "../b", path()};
  if (op == 8) return ops::read{path(), 1 + draw() % 3};
  return ops::list{path()};
}

}  // namespace

TEST_CASE("the simulated disk answers and stores like a real one", "[disk]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 draw{seed};
    simulated_disk disk;
    const temporary_folder real;
    for (int i = 0; i < 25; ++i) {
      const auto op = any_op(draw);
      INFO("seed " << seed << ", operation " << i << ", kind " << op.index() << ": "
                   << shown(disk));
      const auto simulated = disk.perform(op);
      const auto actual = perform(real.path(), op);
      INFO(simulated.text << " | " << actual.text);
      REQUIRE(static_cast<bool>(simulated.error) == static_cast<bool>(actual.error));
      REQUIRE(simulated.names == actual.names);
      REQUIRE((simulated.bytes != nullptr) == (actual.bytes != nullptr));
      if (actual.bytes) REQUIRE(*simulated.bytes == *actual.bytes);
      REQUIRE(shown(disk) == shown(real.path()));
    }
    // Nothing synced is lost, and a synced disk has nothing to lose.
    for (const auto& e : disk.entries())
      if (e.what == simulated_disk::entry::kind::folder)
        must(disk, ops::sync_folder{e.path.empty() ? "." : e.path});
    REQUIRE(disk.pending() == 0);
    REQUIRE(disk.after_power_loss(0).digest() == disk.digest());
  }
}

TEST_CASE("simulated_disk is a regular value with a digest", "[disk]") {
  auto one = disk_with("1");
  const auto former = one;
  auto other = former;
  CHECK(one == other);
  must(one, writing("a", "2"));
  CHECK_FALSE(one == other);
  CHECK(one.digest() != other.digest());
  CHECK(shown(former) == "a=1");
  must(other, writing("a", "2"));
  CHECK(one == other);
  CHECK(one.digest() == other.digest());
  must(one, ops::sync_folder{"."});
  CHECK(one.digest() == other.digest());  // equal before a crash
  CHECK_FALSE(one == other);
}

TEST_CASE("entries can be lost until their folder is synced", "[disk]") {
  auto disk = disk_with("1");
  must(disk, writing("a", "2"));
  CHECK(seen_after_losses(disk) == std::set<std::string>{"a=1", ".a.part=2 a=1", "a=2"});
  must(disk, writing("b", "3"));
  CHECK(seen_after_losses(disk).contains("a=1 b=3"));  // the later change first
  must(disk, ops::sync_folder{"."});
  CHECK(seen_after_losses(disk) == std::set<std::string>{"a=2 b=3"});
}

TEST_CASE("existing folders of an earlier program become durable when made again", "[disk]") {
  for (std::size_t calls = 0; calls < 5; ++calls) {
    INFO("killed behind " << calls << " calls");
    simulated_disk disk;
    disk.perform_part(ops::make_folder{"d/e"}, calls);
    must(disk, ops::make_folder{"d/e"});
    CHECK(seen_after_losses(disk) == std::set<std::string>{"d/ d/e/"});
  }
  simulated_disk disk;
  CHECK(disk.perform(ops::make_folder{"d/e"}, {kind::failed_sync}).error);
  must(disk, ops::make_folder{"d/e"});
  CHECK(seen_after_losses(disk) == std::set<std::string>{"d/ d/e/"});
}

TEST_CASE("a rename is lost or done completely", "[disk]") {
  simulated_disk disk;
  must(disk, ops::make_folder{"d"});
  must(disk, writing("a", "1"));
  must(disk, ops::sync_folder{"."});
  must(disk, ops::rename{"a", "d/b"});
  CHECK(seen_after_losses(disk) == std::set<std::string>{"a=1 d/", "d/ d/b=1"});
  must(disk, ops::rename{"d/b", "c"});
  CHECK(seen_after_losses(disk) == std::set<std::string>{"a=1 d/", "c=1 d/", "d/ d/b=1"});
  auto synced = disk;
  must(synced, ops::sync_folder{"d"});
  CHECK(seen_after_losses(synced) == std::set<std::string>{"c=1 d/"});
}

TEST_CASE("entries of a removed folder are lost in any order", "[disk]") {
  simulated_disk disk;
  must(disk, ops::make_folder{"d"});
  must(disk, writing("d/a", "1"));
  must(disk, writing("d/b", "2"));
  must(disk, ops::sync_folder{"d"});
  must(disk, ops::remove{"d"});
  CHECK(seen_after_losses(disk) ==
        std::set<std::string>{"d/ d/a=1 d/b=2", "d/ d/a=1", "d/ d/b=2", "d/", ""});
}

TEST_CASE("program killed within a write: the former content stays", "[disk]") {
  const auto before = disk_with("1");
  const auto op = writing("a", "22");
  const std::vector<std::string> expected{"a=1", ".a.part= a=1", ".a.part=22 a=1", ".a.part=22 a=1",
                                          "a=22"};
  for (std::size_t calls = 0; calls < expected.size(); ++calls) {
    auto disk = before;
    CHECK(disk.perform_part(op, calls) == (calls + 1 == expected.size()));
    CHECK(shown(disk) == expected[calls]);
    for (const auto& one : seen_after_losses(disk))
      CHECK_THAT(one, Contains("a=1") || Contains("a=22"));
    must(disk, op);  // leftovers do not disturb the next operation
    CHECK(shown(disk) == "a=22");
  }
}

TEST_CASE("each page that was not synced can be lost", "[disk]") {
  const std::string first(4096, 'x');
  simulated_disk disk;
  REQUIRE_FALSE(disk.perform(writing("a", first + "yy"), {kind::lost_sync}).error);
  must(disk, ops::sync_folder{"."});
  REQUIRE(disk.pending() == 2);
  CHECK(shown(disk) == "a=" + first + "yy");
  CHECK(seen_after_losses(disk) == std::set<std::string>{"a=", "a=" + first + "yy",
                                                         "a=" + first + std::string(2, '\0'),
                                                         "a=" + std::string(4096, '\0') + "yy"});
}

TEST_CASE("each fault has its documented effect only", "[disk]") {
  const auto before = disk_with("1");
  const auto after = [&](const storage_op& op, kind what, bool refused) {
    auto disk = before;
    const auto result = disk.perform(op, {what, 9});
    INFO(to_string(what) << " " << result.text);
    CHECK(static_cast<bool>(result.error) == refused);
    if (refused) CHECK_THAT(result.text, Contains("a"));
    return disk;
  };
  CHECK(shown(after(writing("a", "2"), kind::error, true)) == "a=1");
  CHECK(shown(after(writing("a", "2"), kind::full, true)) == "a=1");
  CHECK(shown(after(ops::remove{"a"}, kind::full, false)).empty());
  CHECK(shown(after(writing("a", "2"), kind::failed_sync, true)) == "a=1");
  CHECK(shown(after(writing("a", "2222"), kind::torn, false)) == "a=2" + std::string(3, '\0'));
  CHECK(shown(after(writing("a", "22"), kind::bit_flip, false)) == "a=20");
  const auto renamed = [&](kind what, bool refused) {
    auto disk = before;
    must(disk, ops::rename{"a", "b"});
    CHECK(static_cast<bool>(disk.perform(ops::sync_folder{"."}, {what}).error) == refused);
    return seen_after_losses(disk);
  };
  CHECK(renamed(kind::none, false) == std::set<std::string>{"b=1"});
  CHECK(renamed(kind::failed_sync, true) == std::set<std::string>{"a=1", "b=1"});
  CHECK(renamed(kind::lost_sync, false) == std::set<std::string>{"a=1", "b=1"});

  auto disk = before;
  const auto flipped = disk.perform(ops::read{"a", 10}, {kind::bit_flip, 1});
  REQUIRE(flipped.bytes);
  CHECK(flipped.bytes->at(0) == std::byte{'3'});
  CHECK(disk == before);
}
