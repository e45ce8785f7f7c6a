// Goal: every damage to a checkpoint's bytes is found, and costs an error only: every truncation,
// every single bit, and random changes of the header.
#include "backends/checkpoint/run_checkpoints.hpp"
#include "backends/checkpoint/safetensors.hpp"
#include "tests/support/sample_snapshot.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <fstream>
#include <random>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

bool refused(const std::filesystem::path& folder) {
  try {
    load_checkpoint(folder);
    return false;
  } catch (const user_error&) {
    return true;
  }
}

// One small checkpoint and the content of its files.
struct small_checkpoint {
  temporary_folder folder;
  std::vector<std::pair<std::filesystem::path, std::string>> files;

  small_checkpoint() {
    write_files(folder.path(), encode_checkpoint(sample_snapshot(), {}));
    for (const auto* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"})
      files.emplace_back(folder.path() / name, read_text(folder.path() / name));
  }
};

}  // namespace

TEST_CASE("a file truncated at any length is refused", "[checkpoint]") {
  const small_checkpoint good;
  REQUIRE_FALSE(refused(good.folder.path()));
  for (const auto& [path, text] : good.files) {
    for (std::size_t length = text.size(); length-- > 0;) {
      std::filesystem::resize_file(path, length);
      if (!refused(good.folder.path())) FAIL(path << " cut at " << length << " was accepted");
    }
    write_text(path, text + '\0');
    CHECK(refused(good.folder.path()));
    std::filesystem::remove(path);
    CHECK(refused(good.folder.path()));
    write_text(path, text);
  }
  CHECK_FALSE(refused(good.folder.path()));
}

TEST_CASE("any single flipped bit is refused", "[checkpoint]") {
  const small_checkpoint good;
  for (const auto& [path, text] : good.files) {
    std::fstream file{path, std::ios::in | std::ios::out | std::ios::binary};
    for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
      const auto at = static_cast<std::streamoff>(bit / 8);
      const auto changed = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
      file.seekp(at).put(changed).flush();
      if (!refused(good.folder.path())) FAIL(path << " with bit " << bit << " was accepted");
      file.seekp(at).put(text[bit / 8]).flush();
    }
  }
  CHECK_FALSE(refused(good.folder.path()));
}

// Reads without a manifest's hash, as --init-weights does. An accepted file must be consistent;
// everything else must be a user_error. Sanitizers check the rest.
TEST_CASE("random changes of a safetensors file give an error or consistent tensors",
          "[checkpoint]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 draw{seed};
  const small_checkpoint good;
  const auto& text = good.files[0].second;
  const std::string marks = R"({}[],:"0123456789-.eE\ unlaF)";
  int accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    auto changed = text;
    for (auto changes = draw() % 4 + 1; changes > 0; --changes) {
      const auto at = draw() % changed.size();
      switch (draw() % 5) {
        case 0: changed[at] = static_cast<char>(draw()); break;
        case 1: changed[at] = marks[draw() % marks.size()]; break;
        case 2: changed.erase(at, draw() % 16); break;
        case 3: changed.insert(at, changed.substr(draw() % changed.size(), draw() % 32)); break;
        default: changed[draw() % 16] = static_cast<char>(draw());
      }
    }
    try {
      const auto file = decode_safetensors(std::as_bytes(std::span{changed}), "mutant");
      std::size_t bytes = 0;
      for (const auto& tensor : file.tensors) bytes += tensor.bytes->size();
      if (bytes >= changed.size()) FAIL("more tensors than file in round " << round);
      ++accepted;
    } catch (const user_error&) {
    }
  }
  // This reader does not detect changes of the data alone.
  CHECK(accepted > 0);
  CHECK(accepted < 30000);
}
