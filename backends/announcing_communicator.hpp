// Reports which collectives a lane calls, and how long each takes.
#pragma once

#include "backends/forwarding_communicator.hpp"
#include "troupe/observation.hpp"

#include <chrono>
#include <functional>

namespace troupe {

/// `report` gets a `seen::collective` for each operation whose end the lane has waited for or
/// polled, on the lane's thread, before that call returns. It must not throw.
class announcing_communicator final : public forwarding_communicator {
public:
  using clock = std::function<std::chrono::nanoseconds()>;
  using reporter = std::function<void(seen::collective)>;

  announcing_communicator(std::shared_ptr<communicator> inner, clock now, reporter report);

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override;
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override;
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override;
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override;
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override;
  bool decide(bool yes, decision by, const subgroup& among) override;
  work_ptr work_together(std::string_view label, const void* mine, std::size_t pieces,
                         shared_body body) override;

private:
  seen::collective begun(collective_kind kind, std::size_t bytes, const subgroup& among);
  work_ptr announced(seen::collective what, work_ptr inner) const;

  clock now_;
  std::shared_ptr<const reporter> report_;
  std::uint64_t count_ = 0;
};

}  // namespace troupe
