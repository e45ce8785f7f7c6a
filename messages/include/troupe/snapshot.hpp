// A copy of a rank's state in host memory, readable without LibTorch. The checkpointer writes it.
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
  /// A parameter's or buffer's name in its module.
  std::string name;
  /// The name that safetensors has for the type.
  std::string dtype;
  /// Empty for a scalar.
  std::vector<std::int64_t> shape;
  /// Never null.
  std::shared_ptr<const std::vector<std::byte>> bytes;
};

/// The state of a rank at one step boundary. Immutable once shared.
/// - `model`: parameters and buffers, in the module's order.
/// - `state`: JSON text with optimizer groups, schedulers, precision, data, random state, and what
///   the module's on_save_checkpoint returned.
struct snapshot {
  /// The step boundary.
  loop_state loop;
  /// The job's shards when it was taken.
  std::int32_t ranks = 1;
  /// The generation in which it was taken.
  std::uint64_t generation = 1;
  std::string weights_digest;          ///< of `model`; equal digests mean equal bytes
  std::vector<tensor_blob> model;      ///< in the module's order
  std::vector<tensor_blob> optimizer;  ///< `<optimizer>.<parameter>.<slot>`
  std::string state;                   ///< JSON text; empty: none
};
/// Shared and const, so any thread may read it.
using snapshot_ptr = std::shared_ptr<const snapshot>;

}  // namespace troupe
