// A checkpoint format that holds one checkpoint in memory, for tests that resume without files.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troupe/checkpoint.hpp"

namespace troupe::testing {

struct one_checkpoint : checkpoint_io {
  explicit one_checkpoint(snapshot_ptr what = nullptr) : kept(std::move(what)) {}
  std::vector<checkpoint_file> encode(const snapshot&) const override { return {}; }
  std::string commit_file() const override { return "none"; }
  checkpoint_facts facts(std::span<const std::byte>, const std::string&) const override {
    return {};
  }
  snapshot read(const std::string&) const override { return *kept; }
  void remove(const std::string&) const override {}
  found_checkpoint latest(const std::string&) const override { return {}; }
  snapshot_ptr kept;
};

}  // namespace troupe::testing
