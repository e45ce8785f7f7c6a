// Metrics of a job that may restart, each value once.
#pragma once

#include "troupe/observer.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace troupe {

/// Passes on to `inner` what a run without failures would show. After a failure the last values are
/// shown again, and steps that are done again have the same values as before: of each name, `inner`
/// gets only values of later positions than the one before.
class metrics_once : public observer {
public:
  explicit metrics_once(std::unique_ptr<observer> inner) : inner_(std::move(inner)) {}
  bool wants_hooks() const override { return inner_->wants_hooks(); }
  void on(const observation& what) override;
  void finish(std::uint64_t dropped) override { inner_->finish(dropped); }

private:
  std::unique_ptr<observer> inner_;
  /// By name: epoch, step, batch.
  std::map<std::string, std::tuple<std::int64_t, std::int64_t, std::int64_t>> last_;
};

}  // namespace troupe
