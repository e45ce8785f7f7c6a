// Goal: a fit of a LibTorch module through the trainer writes a program's own checkpoint format,
// and a fit that resumes through that format ends in the bytes of a fit without an interruption.
#include <algorithm>
#include <atomic>
#include <filesystem>

#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// The library's files with all bits inverted, which no other format can read.
class inverted : public checkpoint_io {
public:
  std::vector<checkpoint_file> encode(const snapshot& what) const override {
    ++encoded;
    auto files = inner_->encode(what);
    for (auto& file : files)
      for (auto& chunk : file.chunks)
        chunk = std::make_shared<const std::vector<std::byte>>(inverse(*chunk));
    return files;
  }
  std::string commit_file() const override { return inner_->commit_file(); }
  checkpoint_facts facts(std::span<const std::byte> commit,
                         const std::string& origin) const override {
    return inner_->facts(inverse(commit), origin);
  }
  snapshot read(const std::string& folder) const override {
    ++reads;
    const temporary_folder plain;
    const auto copy = plain.path() / std::filesystem::path{folder}.filename();
    std::filesystem::create_directory(copy);
    for (const auto& file : std::filesystem::directory_iterator{folder}) {
      auto text = read_text(file.path());
      std::ranges::transform(text, text.begin(), [](char c) { return static_cast<char>(~c); });
      write_text(copy / file.path().filename(), text);
    }
    return inner_->read(copy.string());
  }
  void remove(const std::string& folder) const override { inner_->remove(folder); }
  found_checkpoint latest(const std::string& run) const override {
    const auto checkpoints = std::filesystem::path{run} / checkpoints_folder;
    if (!std::filesystem::exists(checkpoints / latest_link))
      throw user_error(errc::checkpoint, run + " has no checkpoint");
    return {.path = std::filesystem::canonical(checkpoints / latest_link).string(), .refused = {}};
  }

  mutable std::atomic<int> encoded{0};
  mutable std::atomic<int> reads{0};

private:
  static std::vector<std::byte> inverse(std::span<const std::byte> bytes) {
    std::vector<std::byte> all{bytes.begin(), bytes.end()};
    for (auto& one : all) one = ~one;
    return all;
  }

  std::shared_ptr<const checkpoint_io> inner_ = safetensors_checkpoints({});
};

struct dropping : regression {
  dropping()
      : regression({.dropout = 0.2, .batch_norm = true, .optimize = [](regression& m) {
                      return optimizers{torch::optim::Adam(m.parameters(), 0.01)};
                    }}) {}
};

}  // namespace

TEST_CASE("a fit of the trainer writes a program's checkpoint format and resumes through it",
          "[session]") {
  const temporary_folder folder;
  const auto format = std::make_shared<inverted>();
  torch_plugins plugins;
  plugins.checkpoints = format;
  const auto data = std::make_shared<table_data>(40);
  const auto fitted = [&](std::int64_t steps, const std::string& run, const std::string& resume) {
    job_context where{.run_folder = (folder.path() / run).string()};
    if (!resume.empty()) where.resume = resume;
    auto outcome = trainer{quick(2, 4, steps), where}.fit<dropping>(plugins, data);
    outcome.rethrow();
    return outcome;
  };
  const auto digest = [&](const job_outcome& outcome) {
    return format->read(outcome.last_checkpoint).weights_digest;
  };

  const auto whole = fitted(12, "whole", "");
  const auto half = fitted(7, "parts", "");
  CHECK(format->encoded > 0);
  CHECK_THROWS_AS(safetensors_checkpoints({})->read(half.last_checkpoint), user_error);
  CHECK(digest(half) != digest(whole));
  const auto read_so_far = format->reads.load();
  const auto rest = fitted(12, "parts", "latest");
  CHECK(format->reads >= read_so_far + 2);  // once per rank
  CHECK(rest.loop == whole.loop);
  CHECK(digest(rest) == digest(whole));
}
