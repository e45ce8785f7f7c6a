// A disk that is a value: copied, changed by storage operations, cut in the middle of one, cut off
// from power, compared. It holds files (what programs see and what is on the platter), folders (the
// same for their entries) and links, and knows which changes are not durable yet.
//
// An operation of the port is made of the calls that the real adapter makes: a write creates a
// hidden file beside the path, fills it, syncs it and renames it. A crash in between leaves what
// the calls so far have done. A loss of power leaves any of the changes of folders that were not
// synced, in whatever order they got to the platter; only a change that undoes or moves another
// brings that one along, and a rename is never half.
#pragma once

#include "troupe/storage.hpp"

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

/// What goes wrong with one operation.
struct storage_fault {
  enum class kind : std::uint8_t {
    none,
    error,        ///< refused with an input/output error; nothing is done
    full,         ///< what needs space (write, make_folder, link) is refused; nothing is done
    failed_sync,  ///< fsync reports an error: a write leaves the former content, entries stay
                  ///< as they are and are not durable
    lost_sync,    ///< fsync reports success, and nothing is durable
    torn,         ///< a write reports success; from some byte on the file holds zeros
    bit_flip,     ///< one bit of what is written is wrong, or of what is read (the file is right)
    slow,         ///< done and answered `lasts` later
    hang,         ///< not done before the storage is told to go on
  };
  kind what = kind::none;
  std::uint64_t draw = 0;  ///< which bit flips, where it is torn: any number
  std::chrono::nanoseconds lasts{0};
  friend bool operator==(const storage_fault&, const storage_fault&) = default;
};
std::string_view to_string(storage_fault::kind k);

/// A regular value. Not thread-safe. Paths count from its root, absolute ones too.
class simulated_disk {
public:
  simulated_disk();

  /// Does one operation now. `slow` and `hang` are the storage's: here they are no fault.
  storage_result perform(const storage_op& op, const storage_fault& fault = {});
  /// What perform answers to a read; nothing is counted or changed.
  storage_result read(const storage_ops::read& op) const;
  /// Does the first `calls` calls of an operation, as a program that was killed inside it. Returns
  /// whether all were done.
  bool perform_part(const storage_op& op, std::size_t calls);

  /// Changes of folders, and pages of files, that are not durable.
  std::size_t pending() const;
  /// What a loss of power leaves: of `pending()` those that `kept` names, and what they rest on. A
  /// page that is lost holds zeros.
  simulated_disk after_power_loss(const std::function<bool(std::size_t)>& kept) const;
  /// As above; bit i keeps the i-th, those past 63 are lost.
  simulated_disk after_power_loss(std::uint64_t kept) const;

  /// One thing that is there, seen from outside.
  struct entry {
    enum class kind : std::uint8_t { file, folder, link };
    kind what = kind::folder;
    std::string path;  ///< "" is the root, "/a/b" a file in a folder
    std::shared_ptr<const std::vector<std::byte>> bytes;  ///< of a file; else null
    std::string target;                                   ///< of a link
  };
  /// Everything that is there: folders before what they hold, names in order.
  std::vector<entry> entries() const;
  /// The same for disks that nobody could tell apart by looking, on every computer.
  std::uint64_t digest() const;
  /// Copies everything to a folder of the real disk. Throws std::filesystem::filesystem_error.
  void unload(const std::filesystem::path& to) const;

  /// Equal histories make equal disks. Stricter than equal digests.
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
  /// One entry of one folder as it becomes; none: it goes.
  struct entry_change {
    node_id folder = 0;
    std::string name;
    std::optional<node_id> becomes;
    friend bool operator==(const entry_change&, const entry_change&) = default;
  };
  /// Atomic: what a rename changes is one.
  using change = std::vector<entry_change>;
  struct calls;
  struct operations;

  /// Whether something may have become unreachable.
  bool apply(const change& what, entries_of node::*to);
  std::vector<bool> with_what_they_rest_on(std::vector<bool> kept) const;
  void sync(node_id folder);
  void forget_unreachable();
  std::vector<std::pair<node_id, std::size_t>> unsynced_pages() const;

  std::map<node_id, node> nodes_;  ///< 0 is the root
  std::vector<change> unsynced_;   ///< `synced` of all folders, then these in order, makes `now`
  node_id next_ = 1;
};

}  // namespace troupe
