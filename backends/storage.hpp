// The storage port: files as checkpoints need them. Asynchronous, so that no actor waits for a
// disk.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

namespace troupe {

/// Operations on files. Paths are absolute or relative to the adapter's root. Every one is
/// idempotent.
namespace storage_ops {
/// Writes the chunks one behind the other to `path` (created or truncated), flushes and fsyncs it.
struct write {
  std::string path;
  std::vector<std::shared_ptr<const std::vector<std::byte>>> chunks;
};
/// Renames, replacing `to` if it is a file. Atomic.
struct rename {
  std::string from, to;
};
/// Makes entries of a folder durable.
struct sync_folder {
  std::string path;
};
/// Creates a folder and its parents.
struct make_folder {
  std::string path;
};
/// Removes a file or a whole folder; one that is not there is fine.
struct remove {
  std::string path;
};
/// A relative symbolic link, replaced atomically.
struct link {
  std::string target, path;
};
/// Reads a whole file, up to `limit` bytes; a longer one is an error.
struct read {
  std::string path;
  std::size_t limit;
};
/// Names of a folder's entries, sorted.
struct list {
  std::string path;
};
}  // namespace storage_ops

using storage_op = std::variant<storage_ops::write, storage_ops::rename, storage_ops::sync_folder,
                                storage_ops::make_folder, storage_ops::remove, storage_ops::link,
                                storage_ops::read, storage_ops::list>;

struct storage_result {
  std::error_code error;
  std::string text;  ///< names the path and the mend when `error`
  std::shared_ptr<const std::vector<std::byte>> bytes;  ///< read
  std::vector<std::string> names;                       ///< list
};

/// Operations of one caller are done in the order submitted; `done` is called once, on any thread,
/// never inside `submit`. Bound: the caller keeps at most a few in flight (the checkpointer one).
class storage {
public:
  virtual ~storage() = default;
  virtual void submit(storage_op op, std::function<void(storage_result)> done) = 0;
};

}  // namespace troupe
