// The storage port: the file operations that checkpoints need. Asynchronous, so that no actor waits
// for a disk.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

namespace troupe {

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
  /// What the link names, and the link.
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
};

}  // namespace troupe
