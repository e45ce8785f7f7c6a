// What oracle_sample writes for the scripts that compute it again.
#pragma once

#include <cstddef>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

/// A training with the reference executor. `words`: FOLDER MODEL OPTIMIZER SEED SHARDS BATCH_SIZE
/// ACCUMULATE STEPS. MODEL is mlp, cnn, or mlp:WIDTH for one hidden layer of that width.
///   initial.safetensors, final.safetensors   weights before and after the steps
///   order.jsonl          the samples of each step, batch and rank, as `troupe data order` has them
///   losses.json          the loss of each step
///   logits.safetensors   the logits of the first 64 test images, from the final weights
///   export.pt            the final state, for torch.load
void write_reference_run(const std::vector<std::string>& words);

/// Tensors are drawn from torch's generator with seeds that the script knows.
///   scaler.json           the loss scale after each step of a training in 16-mixed with infinities
///   scaler.safetensors    its weights at the end
///   recurrent.CELL.safetensors   weights after truncated back-propagation through time, two ranks
///   manual.safetensors    weights after manual optimization on two ranks
///   powersgd.safetensors  `CASE.STEP.PARAMETER`: sums of gradients by PowerSGD of two ranks
void write_numbers(const std::string& folder);

///   measures.safetensors   `CASE.prediction`, `CASE.target`: all samples of a case
///   measures.json          `CASE.MEASURE`: what three ranks compute that share them unevenly
void write_measures(const std::string& folder);

///   schedules.json   CASE: for each step the rates of all groups, then their momentums
void write_schedules(const std::string& folder);

/// The pieces of an encoded file, one after the other.
inline void write(const std::string& path,
                  const std::vector<std::shared_ptr<const std::vector<std::byte>>>& pieces) {
  std::ofstream out{path, std::ios::binary};
  for (const auto& piece : pieces)
    out.write(reinterpret_cast<const char*>(piece->data()),
              static_cast<std::streamsize>(piece->size()));
}
