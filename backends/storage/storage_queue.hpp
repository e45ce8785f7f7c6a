// The operations that wait in an adapter of the storage port, with the port's bound.
#pragma once

#include "troupe/checkpoint.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

namespace troupe {

/// First in, first out. Not thread-safe.
class storage_queue {
public:
  /// Operations that wait at a time, of all callers together. One more is refused: it keeps its
  /// place, so that its answer comes in order, but of it only `done` is kept.
  static constexpr std::size_t limit = 256;

  struct task {
    std::optional<storage_op> op;  ///< nothing: it is refused
    std::function<void(storage_result)> done;
  };

  /// The answer to a refused operation.
  static storage_result refusal() {
    return {std::make_error_code(std::errc::resource_unavailable_try_again),
            "more than 256 operations on files wait; wait for the answers of some",
            nullptr,
            {}};
  }

  bool empty() const { return tasks_.empty(); }
  const task& front() const { return tasks_.front(); }
  void push(storage_op op, std::function<void(storage_result)> done) {
    auto& last = tasks_.emplace_back(std::nullopt, std::move(done));
    if (held_ == limit) return;
    ++held_;
    last.op = std::move(op);
  }
  task pop() {
    auto first = std::move(tasks_.front());
    tasks_.pop_front();
    if (first.op) --held_;
    return first;
  }
  void clear() {
    tasks_.clear();
    held_ = 0;
  }

private:
  std::deque<task> tasks_;
  std::size_t held_ = 0;  // of tasks_, those that are not refused
};

}  // namespace troupe
