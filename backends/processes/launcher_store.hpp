// The launcher store port: texts that all processes of a launcher (torchrun, Slurm) can read.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace troupe {

/// One table of keys and texts for all processes of a job. Thread-safe. Each call connects to the
/// store first if no call has, and throws user_error (membership) when the store cannot be reached
/// or has ended.
class launcher_store {
public:
  virtual ~launcher_store() = default;
  /// The host of the store, as the launcher names it.
  virtual const std::string& host() const = 0;
  /// Replaces the text of this key.
  virtual void set(const std::string& key, const std::string& text) = 0;
  /// The text of this key, if it is there. Takes a question to the store and its answer.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  /// The same, once it is there. Throws user_error (membership) after `limit`, which is at least a
  /// millisecond.
  virtual std::string wait(const std::string& key, std::chrono::milliseconds limit) = 0;
};

}  // namespace troupe
