// A learner whose collectives damage one bit, for tests of what is found and what is repaired.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "backends/forwarding_communicator.hpp"
#include "troupe/learner.hpp"

namespace troupe::testing {

// While `now` is true, flips one bit of what the rank sends of its state (`in_transfer`), or of a
// sum that it receives.
class damaging_world final : public forwarding_communicator {
public:
  damaging_world(std::shared_ptr<communicator> inner, std::function<bool()> now, bool in_transfer)
      : forwarding_communicator(std::move(inner)),
        now_(std::move(now)),
        in_transfer_(in_transfer) {}

  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    if (in_transfer_ && root == group().rank && now_()) flip(data);
    return forwarding_communicator::broadcast(data, root, among);
  }
  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    auto sum = forwarding_communicator::all_reduce(data, operation, among);
    if (in_transfer_ || !now_()) return sum;
    return std::make_shared<damaged_work>(std::move(sum), data);
  }

private:
  static void flip(const buffer& data) { *static_cast<std::uint8_t*>(data.data) ^= 1; }
  struct damaged_work final : work {
    damaged_work(work_ptr inner, buffer data) : inner_(std::move(inner)), data_(data) {}
    work_result poll() override { return inner_->poll(); }
    void wait() override {
      inner_->wait();
      flip(data_);
    }
    work_ptr inner_;
    buffer data_;
  };

  std::function<bool()> now_;
  bool in_transfer_;
};

class damaging_recipe final : public learner_recipe {
public:
  damaging_recipe(recipe_ptr inner, std::function<bool(const learner_context&, const hook&)> when,
                  bool in_transfer)
      : inner_(std::move(inner)), when_(std::move(when)), in_transfer_(in_transfer) {}
  std::unique_ptr<learner> make(const learner_context& who) const override {
    return std::make_unique<damaged>(*this, inner_->make(who), who);
  }

private:
  struct damaged final : learner {
    damaged(const damaging_recipe& of, std::unique_ptr<learner> inner, const learner_context& who)
        : of_(of), inner_(std::move(inner)), who_(who) {}
    void bind(std::shared_ptr<communicator> world, generation_id generation) override {
      const auto now = [this] { return hook_ && of_.when_(who_, *hook_); };
      inner_->bind(std::make_shared<damaging_world>(std::move(world), now, of_.in_transfer_),
                   generation);
    }
    hook_outcome on(const hook& h, const closure& inner) override {
      hook_ = h;
      return inner_->on(h, inner);
    }
    void keep_point() override { inner_->keep_point(); }
    value result() override { return inner_->result(); }
    const damaging_recipe& of_;
    std::unique_ptr<learner> inner_;
    learner_context who_;
    std::optional<hook> hook_;
  };

  recipe_ptr inner_;
  std::function<bool(const learner_context&, const hook&)> when_;
  bool in_transfer_;
};

}  // namespace troupe::testing
