// The checkpoint-IO port: turns a snapshot into files, and files into a snapshot. The checkpointer
// writes the files through the storage port. Ranks read, and wait for the disk.
#pragma once

#include "troupe/detail/loop_state.hpp"
#include "troupe/value.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

namespace troupe {

/// One file of a checkpoint's folder: chunks that are written one after the other.
struct checkpoint_file {
  std::string name;  ///< an entry of the folder, without separators
  /// Shared with the snapshot, so nothing is copied. None is null.
  std::vector<std::shared_ptr<const std::vector<std::byte>>> chunks;
};

/// What a manifest says about its checkpoint as a whole.
struct checkpoint_facts {
  /// The step boundary that it holds.
  loop_state loop;
  /// snapshot::ranks.
  std::int32_t ranks = 1;
  /// snapshot::generation.
  std::uint64_t generation = 1;
  /// snapshot::weights_digest.
  std::string weights_digest;
};

/// A checkpoint that cannot be used, and why: text for people that names the file.
struct refused_checkpoint {
  /// Its folder.
  std::string path;
  /// What is wrong with it.
  std::string why;
  friend bool operator==(const refused_checkpoint&, const refused_checkpoint&) = default;
};

/// The checkpoint to resume from, complete and verified, and newer ones that cannot be used.
struct found_checkpoint {
  /// Its folder.
  std::string path;
  /// What was passed over, and why.
  std::vector<refused_checkpoint> refused;
  friend bool operator==(const found_checkpoint&, const found_checkpoint&) = default;
};

/// Const and thread-safe. Errors are user_error(errc::checkpoint) that name the file and how to fix
/// it. No call can be cancelled: a slow disk is waited for, at a job's end for `hook_limit`.
class checkpoint_io {
public:
  virtual ~checkpoint_io() = default;

  /// The files of a checkpoint. The last one is its commit point: it is written after all others,
  /// and a folder without it is no checkpoint. Reads every byte once (for hashes), copies none.
  virtual std::vector<checkpoint_file> encode(const snapshot& what) const = 0;
  /// Why the format cannot hold tensors of a type (tensor_blob::dtype), for people; empty: it can.
  /// A fit that writes checkpoints asks for each type of its module, before its first step.
  virtual std::string obstacle(const std::string& dtype) const {
    (void)dtype;
    return {};
  }
  /// Name of that last file, which has at most `commit_file_limit` bytes.
  virtual std::string commit_file() const = 0;
  /// The contents of that file, from its bytes; `origin` is its path, for errors.
  virtual checkpoint_facts facts(std::span<const std::byte> commit,
                                 const std::string& origin) const = 0;

  /// Reads and verifies one checkpoint. The error of a bad one names the newest good one beside it.
  virtual snapshot read(const std::string& folder) const = 0;
  /// Removes one checkpoint, so that no reader ever finds a part of it. No error if it does not
  /// exist. Refuses folders that are not called `step-...`. The checkpointer removes a folder that
  /// is not kept through the storage port, and calls this after it, on the thread that answers the
  /// removal: for what the format keeps elsewhere. It does the same after a write that failed,
  /// unless an older checkpoint of that step is there, and at its start for what a crash left
  /// half-written or half-removed, which may never have been complete. Not for a folder that
  /// something else has removed, or that could not be removed.
  virtual void remove(const std::string& folder) const = 0;
  /// What `--resume latest` means in the run's folder `run`: the checkpoint that the link `latest`
  /// names, or if that one is damaged or missing, the newest good one. Throws when there is none.
  virtual found_checkpoint latest(const std::string& run) const = 0;
};

/// In bytes: 64 MiB.
inline constexpr std::size_t commit_file_limit = std::size_t{64} << 20;

/// The folder of a run that holds its checkpoints, and the link in it to the last one.
inline constexpr const char* checkpoints_folder = "checkpoints";
/// See checkpoints_folder. On a file system without symbolic links there is none.
inline constexpr const char* latest_link = "latest";
/// `step-00000937`
std::string checkpoint_folder_name(std::int64_t step);
/// The step of a folder with such a name; -1 for any other name.
std::int64_t step_of_checkpoint_folder(const std::string& name);

// The storage port: the file operations that checkpoints need. Asynchronous, so that no actor waits
// for a disk.

/// Operations on files. Paths are absolute, or relative to the adapter's root; a relative path that
/// leaves the root (`..`) is an error. Every operation is idempotent.
namespace storage_ops {
/// Writes the chunks one after the other, flushes and fsyncs: `path` has its former content or the
/// new one, never a part. Its folder must exist; the entry is durable after a sync_folder of it.
struct write {
  /// The file.
  std::string path;
  /// None is null.
  std::vector<std::shared_ptr<const std::vector<std::byte>>> chunks;
  friend bool operator==(const write&, const write&) = default;
};
/// Renames, replacing `to`, which may be a file or a folder with its contents. Atomic. Done again
/// (`from` is missing, `to` exists) it changes nothing.
struct rename {
  /// The former path and the new one.
  /// @{
  std::string from, to;
  /// @}
  friend bool operator==(const rename&, const rename&) = default;
};
/// Makes entries of a folder durable.
struct sync_folder {
  /// The folder.
  std::string path;
  friend bool operator==(const sync_folder&, const sync_folder&) = default;
};
/// Creates a folder and its parents. All of them are durable when it is done.
struct make_folder {
  /// The folder.
  std::string path;
  friend bool operator==(const make_folder&, const make_folder&) = default;
};
/// Removes a file, a link (not its target) or a whole folder. No error if it does not exist.
struct remove {
  /// What goes away.
  std::string path;
  friend bool operator==(const remove&, const remove&) = default;
};
/// A relative symbolic link, replaced atomically. `target` is relative to the link's folder.
struct link {
  /// What the link names, and the link. Where the file system has no links: no error, no link.
  /// @{
  std::string target, path;
  /// @}
  friend bool operator==(const link&, const link&) = default;
};
/// Reads a whole regular file, up to `limit` bytes; a longer one is an error.
struct read {
  /// The file.
  std::string path;
  /// In bytes.
  std::size_t limit;
  friend bool operator==(const read&, const read&) = default;
};
/// Names of a folder's entries, sorted.
struct list {
  /// The folder.
  std::string path;
  friend bool operator==(const list&, const list&) = default;
};
}  // namespace storage_ops

/// One operation, for storage::submit.
using storage_op = std::variant<storage_ops::write, storage_ops::rename, storage_ops::sync_folder,
                                storage_ops::make_folder, storage_ops::remove, storage_ops::link,
                                storage_ops::read, storage_ops::list>;

/// What became of an operation.
struct storage_result {
  /// Zero: it succeeded.
  std::error_code error;
  std::string text;  ///< when `error`: names the path and how to fix it
  std::shared_ptr<const std::vector<std::byte>> bytes;  ///< read
  std::vector<std::string> names;                       ///< list
};

/// Operations of one caller are done in the order of submission. `done` is called once, on any
/// thread, never inside `submit`, and must not throw. Errors are in the result; nothing is thrown.
/// No cancellation. While 256 wait, one more is not done: resource_unavailable_try_again.
class storage {
public:
  virtual ~storage() = default;
  /// Starts `op` and never waits for the disk. `done` gets what became of it.
  virtual void submit(storage_op op, std::function<void(storage_result)> done) = 0;
  /// Keeps the folder `path` for one job: until the last copy of the result is gone, a second claim
  /// of it throws user_error (bad_configuration), in this process and in others. `create`: creates
  /// it if need be. Waits for the disk. Null: the folder is not there, or this storage or its file
  /// system cannot do that. Any thread.
  virtual std::shared_ptr<const void> claim([[maybe_unused]] const std::string& path,
                                            [[maybe_unused]] bool create) {
    return {};
  }
};

}  // namespace troupe
