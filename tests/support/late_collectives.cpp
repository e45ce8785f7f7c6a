#include "tests/support/late_collectives.hpp"

#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "backends/forwarding_communicator.hpp"
#include "tests/support/late_device.hpp"
#include "tests/support/late_memory.hpp"
#include "tests/support/reference_reduction.hpp"
#include "troupe/communicator.hpp"

namespace troupe::testing {

/// One sum of all ranks. The first stream that gets to it computes it for all.
struct late_sum {
  struct part {
    buffer memory;
    reduction how = reduction::sum;
    late_event ready;
  };

  void run(std::atomic<std::int64_t>& ran) {
    std::call_once(once, [&] {
      std::vector<bytes> leaves;
      for (const auto& one : parts) {
        await(one.ready);
        const auto* data = late_memory::of_process().readable(one.memory.data);
        leaves.emplace_back(data, data + one.memory.count * size_of(one.memory.type));
      }
      const auto& first = parts.front();
      const auto sum = reference_reduction(first.memory.type, first.how, leaves);
      for (const auto& one : parts)
        std::memcpy(late_memory::of_process().readable(one.memory.data), sum.data(), sum.size());
      ++ran;
    });
  }

  std::vector<part> parts;  // by rank; each rank writes its own before it agrees
  std::once_flag once;
};

namespace {

class late_point final : public device_event {
public:
  explicit late_point(late_event at) : at_(at) {}
  bool done() const override { return at_.stream->done(at_.number); }
  void wait() const override { at_.stream->wait(at_.number); }
  void* native() const override { return &at_; }

private:
  mutable late_event at_;
};

class late_work final : public work {
public:
  late_work(std::shared_ptr<communicator> host, work_ptr agreed, late_stream& in, late_event ready,
            std::function<void()> body)
      : host_(std::move(host)),
        agreed_(std::move(agreed)),
        stream_(&in),
        ready_(ready),
        body_(std::move(body)) {}

  work_result poll() override {
    if (auto met = agreed_->poll(); met.status != work_status::ok) return met;
    launch();
    if (host_->aborted()) return {work_status::aborted, "the group was aborted", {}};
    return {stream_->done(*number_) ? work_status::ok : work_status::pending, {}, {}};
  }
  void wait() override {
    on_device()->wait();
    if (host_->aborted()) throw generation_closed("the group was aborted");
  }
  device_event_ptr on_device() override {
    agreed_->wait();
    launch();
    return std::make_shared<late_point>(late_event{stream_, *number_});
  }

private:
  void launch() {
    if (number_) return;
    wait_in(*stream_, ready_);
    number_ = stream_->submit(std::move(body_));
  }

  const std::shared_ptr<communicator> host_;
  const work_ptr agreed_;
  late_stream* const stream_;
  const late_event ready_;
  std::function<void()> body_;
  std::optional<std::uint64_t> number_;
};

}  // namespace

class late_world final : public forwarding_communicator, public device_collectives {
public:
  late_world(late_rendezvous& rendezvous, const std::shared_ptr<communicator>& host)
      : forwarding_communicator(host), rendezvous_(rendezvous), host_(host) {}

  std::string_view name() const override { return "late"; }
  std::string_view memory_of() const override { return "late"; }
  communicator& on_host() override { return *host_; }
  bool shares_memory() const override { return false; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    if (!among.ranks.empty()) throw std::logic_error("late: sums of all ranks only");
    if (data.device < 0 || !late_memory::of_process().owns(data.data))
      throw std::logic_error("late: the memory is no late device's");
    const auto device = late_device(static_cast<c10::DeviceIndex>(data.device));
    if (!stream_) stream_ = &late_stream::of(late_stream::make(device.index()));
    auto& usual = late_stream::of(c10::Stream{c10::Stream::DEFAULT, device});
    late_event ready{&usual, usual.last()};
    if (data.ready) ready = *static_cast<const late_event*>(data.ready->native());
    const auto sum = rendezvous_.sum(++number_);
    const auto rank = static_cast<std::size_t>(group().rank);
    sum->parts[rank] = {data, operation, ready};
    auto agreed = host_->barrier("late sum", {}, {});
    return std::make_shared<late_work>(host_, std::move(agreed), *stream_, ready,
                                       [sum, &ran = rendezvous_.ran_] { sum->run(ran); });
  }
  work_ptr broadcast(buffer, std::int32_t, const subgroup&) override { only_sums(); }
  work_ptr all_gather(buffer, buffer, const subgroup&) override { only_sums(); }
  work_ptr reduce_scatter(buffer, buffer, reduction, const subgroup&) override { only_sums(); }
  std::shared_ptr<void> allocate(std::size_t size) override {
    return {late_memory::of_process().allocate(size),
            [](void* memory) { late_memory::of_process().free(memory); }};
  }
  bool quiescent() const noexcept override {
    return host_->quiescent() && (!stream_ || stream_->done(stream_->last()));
  }

private:
  [[noreturn]] static void only_sums() { throw std::logic_error("late: sums only"); }

  late_rendezvous& rendezvous_;
  const std::shared_ptr<communicator> host_;
  late_stream* stream_ = nullptr;
  std::uint64_t number_ = 0;
};

std::shared_ptr<communicator> late_rendezvous::join(const std::shared_ptr<communicator>& host) {
  return std::make_shared<late_world>(*this, host);
}

std::shared_ptr<late_sum> late_rendezvous::sum(std::uint64_t number) {
  const std::lock_guard lock{mutex_};
  auto& one = sums_[number];
  if (!one) {
    one = std::make_shared<late_sum>();
    one->parts.resize(static_cast<std::size_t>(world_));
  }
  return one;
}

}  // namespace troupe::testing
