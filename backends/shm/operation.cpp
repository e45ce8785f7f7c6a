#include "backends/shm/operation.hpp"

#include "backends/shm/channel.hpp"

namespace troupe::shm {

namespace {

class ended_work final : public work {
public:
  explicit ended_work(work_result result) : result_(std::move(result)) {}
  work_result poll() override { return result_; }
  void wait() override {
    if (result_.status != work_status::ok) raise(result_);
  }

private:
  const work_result result_;
};

}  // namespace

operation::~operation() = default;

work_result operation::poll() {
  if (pending()) channel_->poll(*this);
  return pending() ? work_result{} : result_;
}

void operation::wait() {
  if (pending()) channel_->wait(*this);
  if (status() != work_status::ok) raise(result_);
}

void raise(const work_result& result) {
  if (result.status == work_status::timed_out) throw collective_timeout(result.text);
  if (result.status == work_status::mismatch) throw collective_mismatch(result.text);
  throw generation_closed(result.text);
}

work_ptr ended(work_result result) { return std::make_shared<ended_work>(std::move(result)); }

}  // namespace troupe::shm
