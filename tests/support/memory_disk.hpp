// A disk that is a value: copied, changed by storage operations, cut off from power. What was not
// made durable may be lost, folder by folder. And the storage port on top of it, answering when it
// is told to.
#pragma once

#include "backends/storage.hpp"

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe::testing {

class memory_disk {
public:
  memory_disk();

  /// Does one operation now. Entries of a folder become durable when it is synced, contents of
  /// files at once (a write ends with fsync).
  storage_result perform(const storage_op& op);

  /// Folders whose entries are not all durable.
  std::vector<std::size_t> dirty_folders() const;
  /// What a loss of power leaves. Bit i of `kept` says whether the i-th dirty folder got to the
  /// disk as it is, or is as it was when last synced.
  memory_disk after_power_loss(std::uint64_t kept) const;

  /// Every path with what is there; equal for disks that nobody could tell apart by looking.
  std::string fingerprint() const;
  /// Copies everything to a folder of the real disk.
  void unload(const std::filesystem::path& to) const;

private:
  template <class F>
  void walk(F visit) const;
  struct node {
    enum class kind { file, folder, link };
    kind what = kind::folder;
    std::shared_ptr<const std::vector<std::byte>> bytes;
    std::string target;
    std::map<std::string, std::size_t> now, durable;
  };
  struct place {
    std::size_t folder;  ///< of the entry
    std::string name;
    std::string path;
  };
  struct operations;

  std::vector<node> nodes_;  ///< 0 is the root; an unlinked node stays, unreachable
};

/// Operations wait until `settle` or `step`.
class memory_storage final : public storage {
public:
  explicit memory_storage(memory_disk disk = {}) : disk_(std::move(disk)) {}

  void submit(storage_op op, std::function<void(storage_result)> done) override;
  /// Does the next one; false when none waits.
  bool step();
  void settle() {
    while (step()) continue;
  }
  const memory_disk& disk() const { return disk_; }

  /// Called with each operation before it is done; a text is the error it ends with instead.
  std::function<std::string(const storage_op&)> fault;
  /// Called when an operation was submitted, to arrange for a `step`.
  std::function<void()> submitted;

private:
  memory_disk disk_;
  std::deque<std::pair<storage_op, std::function<void(storage_result)>>> waiting_;
};

}  // namespace troupe::testing
