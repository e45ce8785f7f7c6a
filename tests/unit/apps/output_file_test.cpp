// Goal: a command writes the file that the user names completely or not at all.
#include "apps/troupe/output_file.hpp"

#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace fs = std::filesystem;

namespace {

std::size_t count_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator{folder}, fs::directory_iterator{}));
}

}  // namespace

TEST_CASE("an output file is written completely and leaves no temporary file", "[output]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "model.pt").string();
  write_output(path, {"one ", "", "two"}, false);
  CHECK(read_text(path) == "one two");
  CHECK(count_in(folder.path()) == 1);
}

TEST_CASE("an existing output file is replaced only with force", "[output]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "model.pt").string();
  write_text(path, "precious");
  CHECK_THROWS_WITH(write_output(path, {"new"}, false),
                    Catch::Contains(path) && Catch::Contains("--force"));
  CHECK(read_text(path) == "precious");
  write_output(path, {"new"}, true);
  CHECK(read_text(path) == "new");
  CHECK(count_in(folder.path()) == 1);
}

TEST_CASE("an output path that is not a regular file is refused even with force", "[output]") {
  const temporary_folder folder;
  const auto pipe = (folder.path() / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto link = (folder.path() / "link").string();
  write_text(folder.path() / "file", "precious");
  fs::create_symlink("file", link);
  const std::vector<std::pair<std::string, std::string>> stories{
      {folder.path().string(), "folder"}, {pipe, "pipe"}, {link, "symbolic link"}};
  for (const auto& [path, kind] : stories) {
    CAPTURE(path);
    CHECK_THROWS_WITH(write_output(path, {"new"}, true), Catch::Contains(path) &&
                                                             Catch::Contains(kind) &&
                                                             Catch::Contains("--output"));
  }
  CHECK_THROWS_WITH(check_output("/dev/null", true), Catch::Contains("device"));
  CHECK(fs::is_fifo(pipe));
  CHECK(fs::is_symlink(link));
  CHECK(read_text(folder.path() / "file") == "precious");
  CHECK(count_in(folder.path()) == 3);
}

TEST_CASE("an output path in a missing folder is refused, and the error names it", "[output]") {
  const temporary_folder folder;
  const auto path = (folder.path() / "absent" / "model.pt").string();
  CHECK_THROWS_AS(write_output(path, {"new"}, false), user_error);
  CHECK_THROWS_WITH(write_output(path, {"new"}, false), Catch::Contains(path));
}
