#include "backends/shm/operation.hpp"

#include "backends/shm/channel.hpp"

namespace troupe::shm {

operation::~operation() = default;

work_result operation::poll() {
  if (how.pending()) channel_->poll(*this);
  return how.result();
}

void operation::wait() {
  if (how.pending()) channel_->wait(*this);
  if (how.status() != work_status::ok) raise(how.result());
}

}  // namespace troupe::shm
