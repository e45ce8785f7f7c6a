// The storage port on a file system.
#pragma once

#include "troupe/checkpoint.hpp"

#include <memory>
#include <string>

namespace troupe {

/// Runs operations one after the other on a thread of its own, as file_operations.hpp describes.
/// Answers are called on that thread, which receives no signals. Thread-safe. Bound: storage_queue.
class file_storage final : public storage {
public:
  /// `root` is made absolute now; it need not exist yet.
  explicit file_storage(const std::string& root);
  /// Finishes all operations that wait, then ends the thread. Waits for the disk, unless it is
  /// called on that thread (inside an answer); the thread then ends by itself.
  ~file_storage() override;

  void submit(storage_op op, std::function<void(storage_result)> done) override;
  /// Locks the folder (flock). Null also where it cannot be created: a write then reports why.
  std::shared_ptr<const void> claim(const std::string& path, bool create) override;

private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace troupe
