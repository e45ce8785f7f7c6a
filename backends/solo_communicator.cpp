#include "backends/solo_communicator.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

namespace troupe {

namespace {

class done_work final : public work {
public:
  work_result poll() override { return {work_status::ok, {}, {}}; }
  void wait() override {}
};

class aborted_work final : public work {
public:
  explicit aborted_work(std::string why) : why_(std::move(why)) {}
  work_result poll() override { return {work_status::aborted, why_, {}}; }
  void wait() override { throw generation_closed(why_); }

private:
  std::string why_;
};

class solo final : public communicator {
public:
  explicit solo(const group_description& group) : group_(group) {}

  const group_description& group() const override { return group_; }
  std::string_view name() const override { return "solo"; }

  work_ptr all_reduce(buffer, reduction, const subgroup&) override { return end(); }
  work_ptr broadcast(buffer, std::int32_t, const subgroup&) override { return end(); }
  work_ptr all_gather(buffer in, buffer out, const subgroup&) override {
    const auto size = in.count * size_of(in.type);
    if (size == 0) return end();
    auto* to = static_cast<std::byte*>(out.data);
    for (std::size_t i = 0; i < out.count / in.count; ++i)
      if (to + i * size != in.data) std::memcpy(to + i * size, in.data, size);
    return end();
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction, const subgroup& among) override {
    const auto size = out.count * size_of(out.type);
    const auto* from = static_cast<const std::byte*>(in.data) + place(among) * size;
    if (size > 0) std::memmove(out.data, from, size);
    return end();
  }
  work_ptr barrier(std::string_view, std::chrono::nanoseconds, const subgroup&) override {
    return end();
  }
  bool decide(bool yes, decision, const subgroup&) override {
    end()->wait();
    return yes;
  }
  bool waiting() const noexcept override { return false; }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    constexpr std::align_val_t line{64};
    return {::operator new(bytes, line), [](void* memory) { ::operator delete(memory, line); }};
  }

  void abort(std::string_view why) noexcept override {
    const std::lock_guard hold{guard_};
    if (!aborted_.exchange(true)) why_ = why;
  }
  bool aborted() const noexcept override { return aborted_; }
  bool quiescent() const noexcept override { return true; }

private:
  work_ptr end() const {
    if (!aborted_) return std::make_shared<done_work>();
    const std::lock_guard hold{guard_};
    return std::make_shared<aborted_work>(why_);
  }
  std::size_t place(const subgroup& among) const {
    if (among.ranks.empty()) return static_cast<std::size_t>(group_.rank);
    return static_cast<std::size_t>(std::ranges::find(among.ranks, group_.rank) -
                                    among.ranks.begin());
  }

  const group_description group_;
  std::atomic<bool> aborted_ = false;
  mutable std::mutex guard_;
  std::string why_;
};

}  // namespace

std::shared_ptr<communicator> solo_communicator(const group_description& group) {
  return std::make_shared<solo>(group);
}

}  // namespace troupe
