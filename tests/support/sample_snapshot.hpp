// Small snapshots with every corner case that a checkpoint must restore.
#pragma once

#include "backends/checkpoint/digest.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/value.hpp"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace troupe::testing {

template <class T>
tensor_blob blob(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                 const std::vector<T>& numbers) {
  auto bytes = std::make_shared<std::vector<std::byte>>(numbers.size() * sizeof(T));
  if (!numbers.empty()) std::memcpy(bytes->data(), numbers.data(), bytes->size());
  return {std::move(name), std::move(dtype), std::move(shape), std::move(bytes)};
}

/// A snapshot after `steps` steps. Element sizes 1, 2, 4 and 8 in an order that needs padding for
/// alignment, a scalar, an empty tensor, and a name beyond ASCII.
inline snapshot sample_snapshot(std::int64_t steps = 10, double loss = 0.25) {
  snapshot s;
  s.loop = {1, 2, steps, steps * 64, true, {{"val/loss", loss}, {"train/löss", 0.1}}, {}};
  s.loop.early_stopping = {{loss, true, 2, "val/loss", true}};
  s.loop.monitored = {"val/loss", steps, -1};
  s.loop.ended_by = 2;
  s.loop.of_validation = {"val/accuracy", "val/loss"};
  s.ranks = 2;
  s.generation = 3;
  s.model = {
      blob<std::uint8_t>("net.mask", "BOOL", {3}, {1, 0, 1}),
      blob<float>("net.1.weight", "F32", {1, 3}, {static_cast<float>(steps), -0.0F, 1e-30F}),
      blob<std::int64_t>("net.batches", "I64", {}, {steps}),
      blob<std::uint16_t>("net.hälf", "BF16", {2}, {0x3f80, 0x7fc0}),
      blob<float>("net.empty", "F32", {0, 4}, {}),
  };
  s.optimizer = {blob<float>("0.net.1.weight.momentum", "F32", {1, 3}, {1.5F, 2.5F, 3.5F})};
  s.state = R"({"optimizers":[{"lr":0.05}]})";
  s.weights_digest = weights_digest(s.model);
  return s;
}

inline bool same_blobs(const std::vector<tensor_blob>& a, const std::vector<tensor_blob>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && *x.bytes == *y.bytes;
  });
}

inline bool same_snapshot(const snapshot& a, const snapshot& b) {
  return a.loop == b.loop && a.ranks == b.ranks && a.generation == b.generation &&
         a.weights_digest == b.weights_digest && same_blobs(a.model, b.model) &&
         same_blobs(a.optimizer, b.optimizer) && a.state == b.state;
}

inline void write_files(const std::filesystem::path& folder,
                        const std::vector<checkpoint_file>& files) {
  std::filesystem::create_directories(folder);
  for (const auto& file : files) {
    std::ofstream out{folder / file.name, std::ios::binary};
    for (const auto& chunk : file.chunks)
      out.write(reinterpret_cast<const char*>(chunk->data()),
                static_cast<std::streamsize>(chunk->size()));
  }
}

}  // namespace troupe::testing
