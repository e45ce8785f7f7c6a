// Forwards every call to another communicator; what derives from it overrides single members.
#pragma once

#include <memory>
#include <utility>

#include "troupe/communicator.hpp"

namespace troupe {

class forwarding_communicator : public communicator {
public:
  explicit forwarding_communicator(std::shared_ptr<communicator> inner)
      : inner_(std::move(inner)) {}

  const group_description& group() const override { return inner_->group(); }
  std::string_view name() const override { return inner_->name(); }
  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return inner_->all_reduce(data, operation, among);
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    return inner_->broadcast(data, root, among);
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    return inner_->all_gather(in, out, among);
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    return inner_->reduce_scatter(in, out, operation, among);
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    return inner_->barrier(label, deadline, among);
  }
  bool decide(bool yes, decision by, const subgroup& among) override {
    return inner_->decide(yes, by, among);
  }
  bool shares_memory() const override { return inner_->shares_memory(); }
  work_ptr work_together(std::string_view label, const void* mine, std::size_t pieces,
                         shared_body body) override {
    return inner_->work_together(label, mine, pieces, std::move(body));
  }
  bool waiting() const noexcept override { return inner_->waiting(); }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  bool aborted() const noexcept override { return inner_->aborted(); }
  bool quiescent() const noexcept override { return inner_->quiescent(); }

private:
  std::shared_ptr<communicator> inner_;
};

}  // namespace troupe
