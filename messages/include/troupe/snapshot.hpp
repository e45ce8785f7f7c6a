// A copy of a rank's state in host memory, readable without LibTorch: what the checkpointer writes.
#pragma once

#include "troupe/detail/loop_state.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

/// One tensor's bytes: little endian, dense, row-major. `dtype` uses safetensors' names (F32, BF16,
/// I64, BOOL, ...). `bytes` is immutable and may be shared.
struct tensor_blob {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::shared_ptr<const std::vector<std::byte>> bytes;
};

/// State at one step boundary. `model` is in the module's order; `state` is JSON text (optimizer
/// groups, schedulers, precision, data and random state, the user's on_save_checkpoint additions).
struct snapshot {
  loop_state loop;
  std::int32_t ranks = 1;
  std::uint64_t generation = 1;
  std::string weights_digest;  ///< of `model`: contract, section 3
  std::vector<tensor_blob> model;
  std::vector<tensor_blob> optimizer;  ///< `<optimizer>.<parameter>.<slot>`
  std::string state;
};
using snapshot_ptr = std::shared_ptr<const snapshot>;

}  // namespace troupe
