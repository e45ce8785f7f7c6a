// What a communicator adds when its tensor operations carry memory of devices: `nccl`, or a
// program's own.
#pragma once

#include "troupe/communicator.hpp"

#include <memory>
#include <string_view>

namespace troupe {

/// A base beside `communicator`. Its all_reduce, broadcast, all_gather and reduce_scatter take
/// memory of one kind of device and no other; a barrier and a decision need no memory.
class device_collectives {
public:
  virtual ~device_collectives() = default;
  /// The accelerator whose memory is carried, by name: `cuda`.
  virtual std::string_view memory_of() const = 0;
  /// A communicator between the same ranks for memory of the host. It is aborted with this one.
  virtual communicator& on_host() = 0;
};

/// The communicator between the same ranks that carries memory of the host: `world` itself, or what
/// it has for that. Keeps `world` alive.
std::shared_ptr<communicator> host_collectives(const std::shared_ptr<communicator>& world);
/// Whether tensor operations of `world` take memory of this accelerator's devices.
bool carries(const communicator& world, std::string_view accelerator);

}  // namespace troupe
