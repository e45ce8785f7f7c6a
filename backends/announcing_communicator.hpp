// Reports which collectives a lane calls, and how long each takes.
#pragma once

#include "backends/forwarding_communicator.hpp"
#include "troupe/observer.hpp"

#include <chrono>
#include <functional>
#include <optional>

namespace troupe {

/// `report` gets a `seen::collective` for each operation whose end the lane has waited for or
/// polled, on the lane's thread, before that call returns. It must not throw. The time of an
/// operation that ends on a device (work::on_device) is the time until the device has it. A lane
/// that cannot wait asks again after `not_yet`: that is one operation.
class announcing_communicator : public forwarding_communicator {
public:
  using clock = std::function<std::chrono::nanoseconds()>;
  using reporter = std::function<void(seen::collective)>;

  announcing_communicator(std::shared_ptr<communicator> inner, clock now, reporter report);
  /// Numbers its operations with those of `beside`, whose reporter it has.
  announcing_communicator(std::shared_ptr<communicator> inner,
                          const announcing_communicator& beside);

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
  std::shared_ptr<std::uint64_t> count_;      // used by the lane only
  std::optional<seen::collective> deciding_;  // a vote that the lane asks for again
};

/// An announcing_communicator, which carries memory of devices if `inner` does.
std::shared_ptr<communicator> announcing(std::shared_ptr<communicator> inner,
                                         announcing_communicator::clock now,
                                         announcing_communicator::reporter report);

}  // namespace troupe
