#include "backends/checkpoint/checkpoint_folder.hpp"

#include "backends/checkpoint/digest.hpp"
#include "backends/checkpoint/regular_file.hpp"
#include "backends/checkpoint/safetensors.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <system_error>

namespace troupe {

namespace {

namespace fs = std::filesystem;
using chunk = std::shared_ptr<const std::vector<std::byte>>;

// --- writing -------------------------------------------------------------------------------------

manifest_file describe_file(const checkpoint_file& file) {
  content_hash hash;
  std::uint64_t bytes = 0;
  for (const auto& piece : file.chunks) {
    hash.add(*piece);
    bytes += piece->size();
  }
  return {file.name, bytes, hash.hex()};
}

void describe_tensors(std::string_view file, const std::vector<tensor_blob>& tensors,
                      std::vector<manifest_tensor>& into) {
  for (const auto& tensor : tensors)
    into.push_back({std::string{file}, tensor.name, tensor.dtype, tensor.shape});
}

// --- reading -------------------------------------------------------------------------------------

manifest read_manifest(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    refuse(folder, error && error != std::errc::no_such_file_or_directory
                       ? error.message()
                       : "no such checkpoint; it is the folder that holds manifest.json");
  const bool named_as_one = step_of_checkpoint_folder(folder.filename().string()) >= 0;
  if (!named_as_one && !fs::exists(fs::symlink_status(folder / manifest_name, error)))
    refuse(folder, fmt::format("holds no checkpoint ({}), and no checkpoints of a run ({}/): name "
                               "the folder of a run, or of one of its checkpoints",
                               manifest_name, checkpoints_folder));
  const regular_file file{folder / manifest_name, regular_file::links::refuse};
  return parse_manifest(file.read_all(manifest_limit), file.path().string());
}

void check_size(const regular_file& file, const manifest_file& expected) {
  if (file.size() != expected.bytes)
    file.refuse(fmt::format("has {} bytes, the manifest says {}: truncated or half-written",
                            file.size(), expected.bytes));
}

void check_hash(const regular_file& file, const manifest_file& expected, const std::string& hash,
                const std::string& besides = {}) {
  if (hash != expected.hash)
    file.refuse(fmt::format("hash differs from manifest ({} there, {} found): changed or damaged{}",
                            expected.hash, hash, besides));
}

bool same_tensors(const std::vector<tensor_blob>& held, const manifest& what,
                  const std::string& file) {
  std::vector<manifest_tensor> here;
  describe_tensors(file, held, here);
  std::vector<manifest_tensor> there;
  std::copy_if(what.tensors.begin(), what.tensors.end(), std::back_inserter(there),
               [&](const auto& tensor) { return tensor.file == file; });
  return here == there;
}

std::vector<tensor_blob> read_tensors(const regular_file& file, const manifest_file& expected,
                                      const manifest& what) {
  tensor_file held;
  try {
    held = read_safetensors(file);
  } catch (const user_error& e) {
    // A damaged header fails in many ways, so the hash of the bytes is checked first.
    check_hash(file, expected, file.hash(), fmt::format(" ({})", e.what()));
    throw;
  }
  check_hash(file, expected, held.hash);
  if (!same_tensors(held.tensors, what, expected.name))
    file.refuse("holds other tensors than the manifest says");
  return std::move(held.tensors);
}

// Both tensor files are required: a checkpoint without one would load as an empty model.
void check_named(const fs::path& folder, const manifest& what, std::string_view file) {
  if (std::none_of(what.files.begin(), what.files.end(),
                   [&](const auto& named) { return named.name == file; }))
    refuse(folder / manifest_name, fmt::format("does not name {}", file));
}

}  // namespace

std::vector<checkpoint_file> encode_checkpoint(const snapshot& what,
                                               const std::map<std::string, std::string>& versions) {
  std::vector<checkpoint_file> files{
      {std::string{model_file}, encode_safetensors(what.model, {{"format", "pt"}})},
      {std::string{optimizer_file}, encode_safetensors(what.optimizer, {{"format", "pt"}})}};
  manifest described{what.loop, what.ranks, what.generation, what.weights_digest,
                     {},        {},         versions,        what.state};
  for (const auto& file : files) described.files.push_back(describe_file(file));
  describe_tensors(model_file, what.model, described.tensors);
  describe_tensors(optimizer_file, what.optimizer, described.tensors);
  const auto text = render_manifest(described);
  const auto bytes = std::as_bytes(std::span{text});
  files.push_back({std::string{manifest_name},
                   {std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end())}});
  return files;
}

manifest inspect_checkpoint(const fs::path& folder) {
  auto what = read_manifest(folder);
  for (const auto& expected : what.files)
    check_size(regular_file{folder / expected.name, regular_file::links::refuse}, expected);
  return what;
}

checkpoint_contents load_checkpoint(const fs::path& folder) {
  checkpoint_contents result{read_manifest(folder), {}, {}};
  check_named(folder, result.what, model_file);
  check_named(folder, result.what, optimizer_file);
  for (const auto& expected : result.what.files) {
    const regular_file file{folder / expected.name, regular_file::links::refuse};
    check_size(file, expected);
    if (expected.name == model_file)
      result.model = read_tensors(file, expected, result.what);
    else if (expected.name == optimizer_file)
      result.optimizer = read_tensors(file, expected, result.what);
    else
      check_hash(file, expected, file.hash());
  }
  const auto& digest = result.what.weights_digest;
  if (const auto found = weights_digest(result.model); !digest.empty() && found != digest)
    refuse(folder / model_file, fmt::format("weights_digest differs from manifest ({} there, {} "
                                            "found)",
                                            digest, found));
  return result;
}

}  // namespace troupe
