// A disk that is a value: it can be copied, changed by storage operations, interrupted within one,
// cut off from power, and compared. It holds files (what programs read, and what is durable),
// folders (the same for their entries) and links, and knows which changes are not durable yet.
//
// An operation of the port consists of the calls that the real adapter makes: a write creates a
// hidden file beside the path, fills it, syncs it and renames it. A crash within it leaves the
// calls so far. A loss of power may keep or lose each change of a folder that was not synced, in
// any order. Only a change that undoes or moves another needs that one, and a rename is atomic.
#pragma once

#include "troupe/checkpoint.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// The fault of one operation.
struct storage_fault {
  enum class kind : std::uint8_t {
    none,
    error,  ///< fails with an input/output error; nothing is done
    full,   ///< an operation that needs space (write, make_folder, link) fails; nothing is done
    /// fsync fails: a write leaves the former content; entries stay but are not durable
    failed_sync,
    lost_sync,  ///< fsync succeeds, but nothing is durable
    torn,       ///< a write succeeds, but the file holds zeros from some byte on
    bit_flip,   ///< one bit is wrong in what is written, or in what is read (the file is right)
    slow,       ///< done and answered later by `lasts`
    hang,       ///< not done before `go_on`
  };
  kind what = kind::none;
  std::uint64_t draw = 0;  ///< which bit flips, where it is torn: any number
  std::chrono::nanoseconds lasts{0};
  friend bool operator==(const storage_fault&, const storage_fault&) = default;
};
std::string_view to_string(storage_fault::kind k);

/// A regular value. Not thread-safe. All paths start at its root, absolute ones too.
class simulated_disk {
public:
  simulated_disk();

  /// Performs one operation now. `slow` and `hang` belong to the storage: here they are no faults.
  storage_result perform(const storage_op& op, const storage_fault& fault = {});
  /// What perform returns for a read, without counting or changing anything.
  storage_result read(const storage_ops::read& op) const;
  /// Performs the first `calls` calls of an operation, as a program that is killed within it.
  /// Returns whether all calls were made.
  bool perform_part(const storage_op& op, std::size_t calls);

  /// Number of changes of folders and pages of files that are not durable.
  std::size_t pending() const;
  /// The disk after a power loss: keeps of `pending()` what `kept` selects, and what that depends
  /// on. A lost page holds zeros.
  simulated_disk after_power_loss(const std::function<bool(std::size_t)>& kept) const;
  /// The same. Bit i of `kept` keeps change number i; changes past 63 are lost.
  simulated_disk after_power_loss(std::uint64_t kept) const;

  /// One entry, seen from outside.
  struct entry {
    enum class kind : std::uint8_t { file, folder, link };
    kind what = kind::folder;
    std::string path;  ///< "" is the root, "/a/b" a file in a folder
    std::shared_ptr<const std::vector<std::byte>> bytes;  ///< of a file; else null
    std::string target;                                   ///< of a link
  };
  /// All entries: folders before their contents, names in order.
  std::vector<entry> entries() const;
  /// Equal for disks between which no program can see a difference, on every computer.
  std::uint64_t digest() const;
  /// Copies everything to a folder of the real disk. Throws std::filesystem::filesystem_error.
  void unload(const std::filesystem::path& to) const;

  /// Whether both have the same history. Stricter than equal digests.
  friend bool operator==(const simulated_disk& a, const simulated_disk& b);

private:
  using node_id = std::uint64_t;
  using content = std::shared_ptr<const std::vector<std::byte>>;
  using entries_of = std::map<std::string, node_id, std::less<>>;
  struct node {
    entry::kind what = entry::kind::folder;
    content bytes;    ///< of a file: what programs read
    content durable;  ///< of a file: what is on the platter
    std::string target;
    entries_of now, synced;
    bool operator==(const node& other) const;
  };
  /// One entry of one folder after a change; empty: removed.
  struct entry_change {
    node_id folder = 0;
    std::string name;
    std::optional<node_id> becomes;
    friend bool operator==(const entry_change&, const entry_change&) = default;
  };
  /// Atomic: a rename is one change of two entries.
  using change = std::vector<entry_change>;
  struct calls;
  struct operations;

  /// Returns whether something may have become unreachable.
  bool apply(const change& what, entries_of node::*to);
  std::vector<bool> with_what_they_rest_on(std::vector<bool> kept) const;
  void sync(node_id folder);
  void forget_unreachable();
  std::vector<std::pair<node_id, std::size_t>> unsynced_pages() const;

  std::map<node_id, node> nodes_;  ///< 0 is the root
  /// `now` is `synced` of all folders with these changes applied in order
  std::vector<change> unsynced_;
  node_id next_ = 1;
};

}  // namespace troupe
