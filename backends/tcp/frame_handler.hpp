// One peer's frames on their way into a mesh. Used under the mesh's mutex.
#pragma once

#include "backends/tcp/mesh.hpp"

namespace troupe::tcp {

/// Thrown through the reading of a connection: the group is over, the rest does not matter.
struct group_over {};

class mesh::frame_handler final : public frame_receiver {
public:
  frame_handler(mesh& in, std::int32_t rank, std::uint16_t stream)
      : in_(in),
        rank_(rank),
        from_(in.peers_[static_cast<std::size_t>(rank)]),
        stream_(from_.streams[stream]),
        main_(stream == 0) {}

  bool early(const frame_header& header) override;
  std::byte* frame(const frame_header& header, std::span<const std::byte> extension) override;
  void landed(const frame_header& header) override;

private:
  channel& channel_of(const frame_header& header);
  /// Must have been called by the peer, and not be over here.
  std::shared_ptr<operation> operation_of(const frame_header& header);
  void name_channel(const frame_header& header, std::span<const std::byte> extension);
  std::byte* on_call(const frame_header& header, std::span<const std::byte> extension);
  void be_ready(const std::shared_ptr<operation>& what);
  std::byte* place(const frame_header& header);
  void on_abort(const frame_header& header, std::span<const std::byte> extension);
  void on_bye();

  mesh& in_;
  const std::int32_t rank_;
  peer& from_;
  stream& stream_;
  const bool main_;
};

}  // namespace troupe::tcp
