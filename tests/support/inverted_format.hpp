// A checkpoint format of a program's own.
#pragma once

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

namespace troupe::testing {

/// The library's files with all bits inverted, which no other format can read.
class inverted_format : public checkpoint_io {
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

}  // namespace troupe::testing
