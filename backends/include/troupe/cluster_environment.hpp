// The cluster-environment port: what the surroundings say about who this rank is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace troupe {

/// Read once, when a rank's environment is set up; never written to. Used by the rank's lane only.
class cluster_environment {
public:
  virtual ~cluster_environment() = default;
  virtual std::string_view name() const = 0;
  virtual std::int32_t world() const = 0;
  virtual std::int32_t rank() const = 0;
  /// Among the ranks of one host: 0 prepares data for the others.
  virtual std::int32_t local_rank() const = 0;
  virtual std::int32_t node_rank() const { return 0; }
  /// Called when the rank is taken down.
  virtual void teardown() {}
};

/// All ranks on this host.
class local_environment : public cluster_environment {
public:
  local_environment(std::int32_t rank, std::int32_t world) : rank_(rank), world_(world) {}
  std::string_view name() const override { return "local"; }
  std::int32_t world() const override { return world_; }
  std::int32_t rank() const override { return rank_; }
  std::int32_t local_rank() const override { return rank_; }

private:
  std::int32_t rank_;
  std::int32_t world_;
};

}  // namespace troupe
