#include "backends/simulated/blocking_communicator.hpp"

#include <utility>

#include "troupe/learner.hpp"

namespace troupe {

namespace {

using thread_ptr = std::shared_ptr<baton_thread>;

class blocking_work final : public work {
public:
  blocking_work(work_ptr inner, thread_ptr thread)
      : inner_(std::move(inner)), thread_(std::move(thread)) {}

  work_result poll() override { return inner_->poll(); }
  void wait() override {
    while (inner_->poll().status == work_status::pending) thread_->rest();
    inner_->wait();
  }

private:
  const work_ptr inner_;
  const thread_ptr thread_;
};

class resting final : public communicator {
public:
  resting(std::shared_ptr<communicator> inner, thread_ptr thread)
      : inner_(std::move(inner)), thread_(std::move(thread)) {}

  const group_description& group() const override { return inner_->group(); }
  std::string_view name() const override { return inner_->name(); }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return wrapped(inner_->all_reduce(data, operation, among));
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    return wrapped(inner_->broadcast(data, root, among));
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    return wrapped(inner_->all_gather(in, out, among));
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    return wrapped(inner_->reduce_scatter(in, out, operation, among));
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    return wrapped(inner_->barrier(label, deadline, among));
  }
  bool decide(bool yes, decision by, const subgroup& among) override {
    while (true) {
      try {
        return inner_->decide(yes, by, among);
      } catch (const not_yet&) {
        thread_->rest();
      }
    }
  }

  bool waiting() const noexcept override { return inner_->waiting(); }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  bool aborted() const noexcept override { return inner_->aborted() || thread_->abandoned(); }
  bool quiescent() const noexcept override { return thread_->abandoned() || inner_->quiescent(); }

private:
  work_ptr wrapped(work_ptr inner) const {
    return std::make_shared<blocking_work>(std::move(inner), thread_);
  }

  const std::shared_ptr<communicator> inner_;
  const thread_ptr thread_;
};

}  // namespace

std::shared_ptr<communicator> blocking_communicator(std::shared_ptr<communicator> inner,
                                                    std::shared_ptr<baton_thread> thread) {
  return std::make_shared<resting>(std::move(inner), std::move(thread));
}

}  // namespace troupe
