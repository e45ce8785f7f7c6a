// Goal: what file_storage promises beyond the storage port: its thread and its shutdown, failed
// writes that leave the old file, and errors that name a fix.
// Method: a storage on a temporary folder, whose answers a gate holds back. A limit on file size
// stands for a full disk.
#include "backends/local/file_storage.hpp"

#include "backends/local/file_operations.hpp"
#include "tests/conformance/storage_suite.hpp"
#include "tests/support/temporary_folder.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Matchers::Contains;
namespace ops = troupe::storage_ops;
namespace fs = std::filesystem;

namespace {

ops::write small(const std::string& path) {
  return {path, {std::make_shared<const std::vector<std::byte>>(3, std::byte{'x'})}};
}

// While it lives, files cannot grow beyond `bytes`.
class file_size_limit {
public:
  explicit file_size_limit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
  }
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;

private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{folder})
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("destroying a storage first finishes all submitted operations", "[storage]") {
  temporary_folder folder;
  std::atomic<int> answered{0};
  {
    file_storage files{folder.path().string()};
    for (int i = 0; i < 50; ++i)
      files.submit(small("file" + std::to_string(i)), [&](storage_result r) {
        if (!r.error) ++answered;
      });
  }
  CHECK(answered == 50);
  CHECK(entries(folder.path()).size() == 50);
}

TEST_CASE("a storage may be destroyed inside one of its own answers", "[storage]") {
  temporary_folder folder;
  auto files = std::make_shared<file_storage>(folder.path().string());
  std::promise<void> ended;
  std::promise<void> held;
  auto gate = held.get_future().share();
  files->submit(small("first"), [files, gate](storage_result) { gate.wait(); });
  files->submit(small("second"), [&](storage_result) { ended.set_value(); });
  files.reset();     // now only the first answer holds it
  held.set_value();  // the answer releases it, on the storage's own thread
  ended.get_future().get();
  CHECK(entries(folder.path()) == std::vector<std::string>{"first", "second"});
}

TEST_CASE("the storage thread handles no signals", "[storage]") {
  temporary_folder folder;
  file_storage files{folder.path().string()};
  std::promise<bool> blocked;
  files.submit(ops::list{"."}, [&](storage_result) {
    sigset_t now;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &now);
    blocked.set_value(::sigismember(&now, SIGTERM) == 1 && ::sigismember(&now, SIGINT) == 1);
  });
  CHECK(blocked.get_future().get());
}

TEST_CASE("the bytes of a write are released before it is answered", "[storage]") {
  temporary_folder folder;
  file_storage files{folder.path().string()};
  auto op = small("file");
  const std::weak_ptr<const std::vector<std::byte>> watched = op.chunks[0];
  std::promise<bool> gone;
  files.submit(std::move(op), [&](storage_result) { gone.set_value(watched.expired()); });
  CHECK(gone.get_future().get());
}

TEST_CASE("a write that fails half way leaves the old content", "[storage]") {
  temporary_folder folder;
  write_text(folder.path() / "file", "former");
  const ops::write large{"file",
                         {std::make_shared<const std::vector<std::byte>>(std::size_t{1} << 16)}};
  {
    const file_size_limit full{4096};
    const auto result = perform(folder.path(), large);
    CHECK(result.error == std::errc::file_too_large);
    CHECK_THAT(result.text, Contains((folder.path() / "file").string()) && Contains("raise it"));
  }
  CHECK(read_text(folder.path() / "file") == "former");
  CHECK(entries(folder.path()) == std::vector<std::string>{"file"});
  CHECK_FALSE(perform(folder.path(), large).error);
  CHECK(fs::file_size(folder.path() / "file") == 1 << 16);
}

TEST_CASE("a temporary name that is a symbolic link is not written through", "[storage]") {
  temporary_folder folder;
  write_text(folder.path() / "elsewhere", "kept");
  fs::create_symlink("elsewhere", folder.path() / ".file.part");
  const auto result = perform(folder.path(), small("file"));
  CHECK(result.error);
  CHECK_THAT(result.text, Contains("file: "));
  CHECK(read_text(folder.path() / "elsewhere") == "kept");
}

TEST_CASE("temporary files that a crash left do not disturb later operations", "[storage]") {
  temporary_folder folder;
  write_text(folder.path() / ".file.part", "half of");
  CHECK_FALSE(perform(folder.path(), small("file")).error);
  fs::create_symlink("gone", folder.path() / ".latest.part");
  CHECK_FALSE(perform(folder.path(), ops::link{"file", "latest"}).error);
  CHECK(entries(folder.path()) == std::vector<std::string>{"file", "latest"});
}

TEST_CASE("an error text names the path and a fix", "[storage]") {
  temporary_folder folder;
  write_text(folder.path() / "file", "x");
  const auto text = [&](const storage_op& op) { return perform(folder.path(), op).text; };
  CHECK_THAT(text(ops::make_folder{"file/run"}), Contains("a part of this path is a file"));
  CHECK_THAT(text(ops::write{"file/run", {}}), Contains("a part of this path is a file"));
  fs::create_directory(folder.path() / "folder");
  CHECK_THAT(text(ops::write{"folder", {}}), Contains("there is a folder of this name"));
  CHECK_THAT(text(ops::write{"../x", {}}), Contains("leaves " + folder.path().string()));
  CHECK_THAT(text(ops::write{std::string(300, 'n'), {}}), Contains("name too long"));
  if (::geteuid() != 0) {
    fs::permissions(folder.path() / "folder", fs::perms::owner_read | fs::perms::owner_exec);
    CHECK_THAT(text(ops::write{"folder/x", {}}), Contains("check its owner and mode"));
    fs::permissions(folder.path() / "folder", fs::perms::owner_all);
  }
}

TEST_CASE("an absolute path is used unchanged", "[storage]") {
  temporary_folder root;
  temporary_folder elsewhere;
  const auto path = (elsewhere.path() / "file").string();
  CHECK_FALSE(perform(root.path(), small(path)).error);
  CHECK(read_text(path) == "xxx");
  CHECK_FALSE(perform("/", small(path.substr(1))).error);
}

TEST_CASE("reading a pipe fails at once instead of waiting", "[storage]") {
  temporary_folder folder;
  REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(perform(folder.path(), ops::read{"pipe", 10}).text, Contains("is not a file"));
}
