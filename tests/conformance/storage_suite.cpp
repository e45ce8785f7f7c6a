// Goal: every adapter of the storage port keeps the contract of troupe/checkpoint.hpp. Each case
// runs on a fresh storage of each adapter, success first and failures after it.
#include "tests/conformance/storage_suite.hpp"

#include "backends/local/file_storage.hpp"
#include "backends/simulated/simulated_storage.hpp"
#include "backends/storage/storage_queue.hpp"
#include "tests/support/temporary_folder.hpp"

#include <algorithm>
#include <deque>
#include <future>
#include <span>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace ops = troupe::storage_ops;
using Catch::Matchers::Contains;

namespace troupe::testing {

const std::vector<storage_adapter>& storage_adapters() {
  static const std::vector<storage_adapter> all{
      {"file_storage",
       [] {
         auto folder = std::make_shared<temporary_folder>();
         return storage_world{folder, std::make_shared<file_storage>(folder->path().string())};
       }},
      {"simulated_storage",
       [] {
         auto events = std::make_shared<std::deque<later_call>>();
         auto files = std::make_shared<simulated_storage>(
             later_fn{[events](std::chrono::nanoseconds) { return &events->emplace_back(); }});
         return storage_world{nullptr, files, [events] {
                                for (; !events->empty(); events->pop_front()) events->front()();
                              }};
       }},
  };
  return all;
}

storage_result storage_world::call(storage_op op) const {
  auto answer = std::make_shared<std::promise<storage_result>>();
  auto result = answer->get_future();
  files->submit(std::move(op), [answer](storage_result r) { answer->set_value(std::move(r)); });
  settle();
  return result.get();
}

storage_result storage_world::must(storage_op op) const {
  auto result = call(std::move(op));
  INFO(result.text);
  REQUIRE_FALSE(result.error);
  return result;
}

std::string storage_world::text(const std::string& path) const {
  const auto bytes = must(ops::read{path, 1000}).bytes;
  REQUIRE(bytes);
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

storage_ops::write writing(std::string path, const std::vector<std::string>& chunks) {
  storage_ops::write op{std::move(path), {}};
  for (const auto& chunk : chunks) {
    const auto bytes = std::as_bytes(std::span{chunk});
    op.chunks.push_back(std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()));
  }
  return op;
}

}  // namespace troupe::testing

namespace {

storage_world any_world() {
  const auto index = GENERATE(range(std::size_t{0}, storage_adapters().size()));
  UNSCOPED_INFO("adapter " << storage_adapters()[index].name);
  return storage_adapters()[index].make();
}

// An error text names the path that it is about.
void check_refused(const storage_world& world, storage_op op, const std::string& path) {
  const auto result = world.call(std::move(op));
  INFO(path);
  CHECK(result.error);
  CHECK_THAT(result.text, Contains(path));
}

using names = std::vector<std::string>;

}  // namespace

TEST_CASE("write stores all chunks in order and replaces an existing file", "[storage]") {
  const auto world = any_world();
  world.must(writing("a", {"one ", "", "two"}));
  CHECK(world.text("a") == "one two");
  world.must(writing("a", {"x"}));
  CHECK(world.text("a") == "x");
  world.must(writing("empty", {}));
  CHECK(world.text("empty").empty());
}

TEST_CASE("make_folder creates missing parents and accepts an existing folder", "[storage]") {
  const auto world = any_world();
  for (int i = 0; i < 2; ++i) {
    world.must(ops::make_folder{"a/b/c"});
    world.must(ops::sync_folder{"a/b"});
  }
  world.must(writing("a/b/c/file", {"x"}));
  world.must(ops::make_folder{"a/b/c/"});
  CHECK(world.text("a/b/c/file") == "x");
  check_refused(world, ops::make_folder{"a/b/c/file"}, "a/b/c/file");
  check_refused(world, ops::make_folder{"a/b/c/file/d"}, "a/b/c/file");
}

TEST_CASE("list returns all entries sorted", "[storage]") {
  const auto world = any_world();
  CHECK(world.must(ops::list{"."}).names.empty());
  for (const auto* path : {"b", "a", "B", ".hidden"}) world.must(writing(path, {"x"}));
  world.must(ops::make_folder{"c/d"});
  world.must(ops::link{"a", "l"});
  world.must(writing("b", {"again"}));
  CHECK(world.must(ops::list{"."}).names == names{".hidden", "B", "a", "b", "c", "l"});
  CHECK(world.must(ops::list{"c"}).names == names{"d"});
  check_refused(world, ops::list{"missing"}, "missing");
  check_refused(world, ops::list{"a"}, "a");
}

TEST_CASE("renaming a file replaces the target file", "[storage]") {
  const auto world = any_world();
  world.must(writing("a", {"a"}));
  world.must(writing("b", {"b"}));
  world.must(ops::rename{"a", "b"});
  CHECK(world.text("b") == "a");
  CHECK(world.must(ops::list{"."}).names == names{"b"});
  world.must(ops::rename{"a", "b"});
  CHECK(world.text("b") == "a");
  check_refused(world, ops::rename{"a", "c"}, "a");
  check_refused(world, ops::rename{"b", "missing/b"}, "missing/b");
  CHECK(world.text("b") == "a");
}

TEST_CASE("renaming a folder replaces the target folder and its content", "[storage]") {
  const auto world = any_world();
  world.must(ops::make_folder{"old/deep"});
  world.must(writing("old/deep/file", {"old"}));
  world.must(ops::make_folder{"new"});
  world.must(writing("new/file", {"new"}));
  world.must(ops::rename{"new", "old"});
  CHECK(world.must(ops::list{"."}).names == names{"old"});
  CHECK(world.must(ops::list{"old"}).names == names{"file"});
  CHECK(world.text("old/file") == "new");
  world.must(ops::rename{"new", "old"});
  CHECK(world.text("old/file") == "new");
  world.must(ops::rename{"old", "free"});
  CHECK(world.text("free/file") == "new");
}

TEST_CASE("a folder cannot be renamed to its parent or into itself", "[storage]") {
  const auto world = any_world();
  world.must(ops::make_folder{"a/b"});
  world.must(writing("a/b/file", {"x"}));
  world.must(ops::rename{"a", "a"});
  check_refused(world, ops::rename{"a/b", "a"}, "a");
  check_refused(world, ops::rename{"a", "a/b"}, "a");
  check_refused(world, ops::rename{"a", "a/b/c"}, "a");
  CHECK(world.must(ops::list{"."}).names == names{"a"});
  CHECK(world.text("a/b/file") == "x");
}

TEST_CASE("a file cannot replace a folder or a folder a file", "[storage]") {
  const auto world = any_world();
  world.must(ops::make_folder{"folder"});
  world.must(writing("folder/file", {"inside"}));
  world.must(writing("file", {"x"}));
  check_refused(world, writing("folder", {"y"}), "folder");
  check_refused(world, ops::rename{"file", "folder"}, "folder");
  check_refused(world, ops::rename{"folder", "file"}, "file");
  check_refused(world, ops::link{"file", "folder"}, "folder");
  CHECK(world.text("folder/file") == "inside");
  CHECK(world.text("file") == "x");
  CHECK(world.must(ops::list{"."}).names == names{"file", "folder"});
}

TEST_CASE("remove deletes files and whole folders and accepts missing paths", "[storage]") {
  const auto world = any_world();
  world.must(ops::make_folder{"a/b"});
  world.must(writing("a/b/file", {"x"}));
  world.must(writing("kept", {"kept"}));
  world.must(ops::link{"../kept", "a/link"});
  for (int i = 0; i < 2; ++i) {
    world.must(ops::remove{"a"});
    CHECK(world.must(ops::list{"."}).names == names{"kept"});
  }
  world.must(ops::remove{"never/was/there"});
  CHECK(world.text("kept") == "kept");
  world.must(ops::remove{"kept"});
  CHECK(world.must(ops::list{"."}).names.empty());
  CHECK(world.call(ops::remove{"."}).error);
}

TEST_CASE("link creates a link or replaces an existing one", "[storage]") {
  const auto world = any_world();
  world.must(ops::make_folder{"steps"});
  for (const auto* name : {"one", "two"}) world.must(writing(std::string{"steps/"} + name, {name}));
  world.must(ops::link{"one", "steps/latest"});
  CHECK(world.text("steps/latest") == "one");
  world.must(ops::link{"two", "steps/latest"});
  CHECK(world.text("steps/latest") == "two");
  CHECK(world.text("steps/one") == "one");
  CHECK(world.must(ops::list{"steps"}).names == names{"latest", "one", "two"});
  world.must(ops::remove{"steps/latest"});
  CHECK(world.text("steps/two") == "two");
  world.must(ops::link{"nowhere", "steps/dangling"});
  check_refused(world, ops::read{"steps/dangling", 10}, "steps/");
  check_refused(world, ops::link{"/absolute", "steps/latest"}, "steps/latest");
  check_refused(world, ops::link{"", "steps/latest"}, "steps/latest");
  check_refused(world, ops::link{"one", "missing/latest"}, "missing/latest");
}

TEST_CASE("writing to a link replaces it and leaves its target unchanged", "[storage]") {
  const auto world = any_world();
  world.must(writing("file", {"file"}));
  world.must(ops::link{"file", "l"});
  world.must(writing("l", {"own"}));
  CHECK(world.text("l") == "own");
  CHECK(world.text("file") == "file");
}

TEST_CASE("reading a file above the size limit is refused", "[storage]") {
  const auto world = any_world();
  world.must(writing("a", {"12345"}));
  CHECK(world.must(ops::read{"a", 5}).bytes->size() == 5);
  check_refused(world, ops::read{"a", 4}, "a");
  check_refused(world, ops::read{"missing", 4}, "missing");
  world.must(ops::make_folder{"folder"});
  check_refused(world, ops::read{"folder", 4}, "folder");
}

TEST_CASE("an error names the missing path", "[storage]") {
  const auto world = any_world();
  check_refused(world, writing("missing/file", {"x"}), "missing/file");
  check_refused(world, ops::sync_folder{"missing"}, "missing");
  CHECK(world.must(ops::list{"."}).names.empty());
}

TEST_CASE("relative paths that leave the root are refused by every operation", "[storage]") {
  const auto world = any_world();
  for (const std::string path : {"../escaped", "a/../../escaped", "..", ""}) {
    check_refused(world, writing(path, {"x"}), path);
    check_refused(world, ops::make_folder{path}, path);
    check_refused(world, ops::remove{path}, path);
    check_refused(world, ops::rename{path, "a"}, path);
    check_refused(world, ops::rename{"a", path}, path);
    check_refused(world, ops::link{"a", path}, path);
    check_refused(world, ops::link{path, "a"}, "");
    check_refused(world, ops::read{path, 10}, path);
    check_refused(world, ops::list{path}, path);
    check_refused(world, ops::sync_folder{path}, path);
  }
}

TEST_CASE("operations run and are answered in the order of submission", "[storage]") {
  const auto world = any_world();
  constexpr int count = 40;
  std::vector<int> answered;
  std::promise<void> last;
  for (int i = 0; i < count; ++i)
    world.files->submit(writing("a", {std::to_string(i)}), [&, i](storage_result) {
      answered.push_back(i);
      if (i == count - 1) last.set_value();
    });
  world.settle();
  last.get_future().get();
  CHECK(std::is_sorted(answered.begin(), answered.end()));
  CHECK(answered.size() == count);
  CHECK(world.text("a") == std::to_string(count - 1));
}

TEST_CASE("an answer never arrives inside submit and may itself submit", "[storage]") {
  const auto world = any_world();
  static thread_local bool inside = false;
  std::promise<bool> answered;
  inside = true;
  world.files->submit(ops::make_folder{"a"}, [&](storage_result) {
    const bool first_inside = inside;
    inside = true;
    world.files->submit(writing("a/b", {"x"}), [&answered, first_inside](storage_result r) {
      answered.set_value(!first_inside && !inside && !r.error);
    });
    inside = false;
  });
  inside = false;
  world.settle();
  CHECK(answered.get_future().get());
}

TEST_CASE("an operation beyond the bound is not done, and answered with an error in its place",
          "[storage]") {
  const auto world = any_world();
  constexpr std::size_t beyond = 20, all = 1 + storage_queue::limit + beyond;
  std::promise<void> opened;
  const auto gate = opened.get_future().share();
  // The answer to the first one holds back the others, on the thread of an adapter that has one.
  world.files->submit(ops::make_folder{"a"}, [gate](storage_result) { gate.wait(); });
  std::vector<std::size_t> answered, refused;
  std::promise<void> last;
  for (std::size_t i = 1; i <= all; ++i)
    world.files->submit(writing("a/" + std::to_string(i), {"x"}), [&, i](storage_result r) {
      answered.push_back(i);
      if (r.error == std::errc::resource_unavailable_try_again) refused.push_back(i);
      if (i == all) last.set_value();
    });
  opened.set_value();
  world.settle();
  last.get_future().get();
  CHECK(answered.size() == all);
  CHECK(std::is_sorted(answered.begin(), answered.end()));
  // The first operation may be waiting, or be done already.
  CHECK((refused.size() == beyond + 1 || refused.size() == beyond + 2));
  CHECK(world.must(ops::list{"a"}).names.size() == all - refused.size());
  check_refused(world, ops::read{"a/" + std::to_string(all), 1}, "a/" + std::to_string(all));
}
