#include "backends/shm/operation.hpp"

#include "backends/shm/channel.hpp"

namespace troupe::shm {

operation::~operation() = default;

work_result operation::poll() {
  if (pending()) channel_->poll(*this);
  return pending() ? work_result{} : result_;
}

void operation::wait() {
  if (pending()) channel_->wait(*this);
  if (status() != work_status::ok) raise(result_);
}

}  // namespace troupe::shm
