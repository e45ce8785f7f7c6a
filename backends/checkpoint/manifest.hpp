// manifest.json describes a checkpoint and lists its files. It is written last and is the commit
// point: a folder without a good manifest is not a checkpoint.
//
// The file is a JSON object. Its last member, `hash`, is the XXH3-128 of every byte of the file in
// front of the comma that precedes it, so a single wrong bit in the manifest is
// detected. The hashes in `files` detect a single wrong bit anywhere in the checkpoint.
#pragma once

#include "troupe/checkpoint.hpp"
#include "troupe/detail/loop_state.hpp"
#include "troupe/value.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view manifest_schema = "troupe.checkpoint/1";
/// Longest manifest that is written or read.
inline constexpr std::uint64_t manifest_limit = commit_file_limit;

struct manifest_file {
  std::string name;  ///< of an entry of the checkpoint's folder: no separators, not hidden
  std::uint64_t bytes = 0;
  std::string hash;  ///< XXH3-128
  friend bool operator==(const manifest_file&, const manifest_file&) = default;
};

struct manifest_tensor {
  std::string file;
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  friend bool operator==(const manifest_tensor&, const manifest_tensor&) = default;
};

struct manifest {
  loop_state loop;
  std::int32_t ranks = 1;
  std::uint64_t generation = 1;
  std::string weights_digest;
  std::vector<manifest_file> files;             ///< all but the manifest itself
  std::vector<manifest_tensor> tensors;         ///< file by file, in the order of the snapshot
  std::map<std::string, std::string> versions;  ///< of libraries, by name
  std::string state;                            ///< the snapshot's JSON text, kept to the byte
  friend bool operator==(const manifest&, const manifest&) = default;
};

/// Doubles come back exactly; infinities are written as "inf" and "-inf", every NaN as "nan".
/// Throws user_error(errc::checkpoint) for text that is not UTF-8 or a manifest beyond the limit.
std::string render_manifest(const manifest& what);

/// Throws user_error(errc::checkpoint) that begins with `origin`: not a manifest, another schema, a
/// wrong hash, members missing, of wrong type or out of range. Memory stays within a small multiple
/// of the text. Thread-safe.
manifest parse_manifest(std::span<const std::byte> text, const std::string& origin);

/// Whether `name` may be an entry of a checkpoint's folder.
bool is_plain_name(std::string_view name);

}  // namespace troupe
