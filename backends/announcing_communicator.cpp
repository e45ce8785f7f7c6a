#include "backends/announcing_communicator.hpp"

#include "troupe/communicator.hpp"
#include "troupe/learner.hpp"

#include <utility>

namespace troupe {

namespace {

std::size_t bytes_of(const buffer& b) { return b.count * size_of(b.type); }

class announced_work final : public work {
public:
  announced_work(work_ptr inner, seen::collective what, announcing_communicator::clock now,
                 std::shared_ptr<const announcing_communicator::reporter> report)
      : inner_(std::move(inner)),
        what_(std::move(what)),
        now_(std::move(now)),
        report_(std::move(report)) {}

  work_result poll() override {
    auto result = inner_->poll();
    if (result.status != work_status::pending) report(result.status != work_status::ok);
    return result;
  }
  void wait() override {
    try {
      inner_->wait();
    } catch (const not_yet&) {
      throw;
    } catch (...) {
      report(true);
      throw;
    }
    report(false);
  }
  device_event_ptr on_device() override {
    try {
      auto point = inner_->on_device();
      report(false);
      return point;
    } catch (...) {
      report(true);
      throw;
    }
  }

private:
  void report(bool failed) {
    if (std::exchange(reported_, true)) return;
    what_.took = now_() - what_.began;
    what_.failed = failed;
    (*report_)(std::move(what_));
  }

  work_ptr inner_;
  seen::collective what_;
  announcing_communicator::clock now_;
  std::shared_ptr<const announcing_communicator::reporter> report_;
  bool reported_ = false;
};

}  // namespace

announcing_communicator::announcing_communicator(std::shared_ptr<communicator> inner, clock now,
                                                 reporter report)
    : forwarding_communicator(std::move(inner)),
      now_(std::move(now)),
      report_(std::make_shared<const reporter>(std::move(report))),
      count_(std::make_shared<std::uint64_t>(0)) {}

announcing_communicator::announcing_communicator(std::shared_ptr<communicator> inner,
                                                 const announcing_communicator& beside)
    : forwarding_communicator(std::move(inner)),
      now_(beside.now_),
      report_(beside.report_),
      count_(beside.count_) {}

seen::collective announcing_communicator::begun(collective_kind kind, std::size_t bytes,
                                                const subgroup& among) {
  const auto& whole = group();
  seen::collective what;
  what.rank = whole.rank;
  what.ranks = among.ranks.empty() ? whole.world : static_cast<std::int32_t>(among.ranks.size());
  what.generation = whole.generation.value();
  if (among.ranks.empty()) what.number = ++*count_;
  what.kind = kind;
  what.bytes = bytes;
  what.began = now_();
  return what;
}

work_ptr announcing_communicator::announced(seen::collective what, work_ptr inner) const {
  return std::make_shared<announced_work>(std::move(inner), std::move(what), now_, report_);
}

work_ptr announcing_communicator::all_reduce(buffer data, reduction operation,
                                             const subgroup& among) {
  auto what = begun(collective_kind::all_reduce, bytes_of(data), among);
  return announced(std::move(what), forwarding_communicator::all_reduce(data, operation, among));
}

work_ptr announcing_communicator::broadcast(buffer data, std::int32_t root, const subgroup& among) {
  auto what = begun(collective_kind::broadcast, bytes_of(data), among);
  return announced(std::move(what), forwarding_communicator::broadcast(data, root, among));
}

work_ptr announcing_communicator::all_gather(buffer in, buffer out, const subgroup& among) {
  auto what = begun(collective_kind::all_gather, bytes_of(in), among);
  return announced(std::move(what), forwarding_communicator::all_gather(in, out, among));
}

work_ptr announcing_communicator::reduce_scatter(buffer in, buffer out, reduction operation,
                                                 const subgroup& among) {
  auto what = begun(collective_kind::reduce_scatter, bytes_of(in), among);
  return announced(std::move(what),
                   forwarding_communicator::reduce_scatter(in, out, operation, among));
}

work_ptr announcing_communicator::barrier(std::string_view label, std::chrono::nanoseconds deadline,
                                          const subgroup& among) {
  auto what = begun(collective_kind::barrier, 0, among);
  what.label = label;
  return announced(std::move(what), forwarding_communicator::barrier(label, deadline, among));
}

bool announcing_communicator::decide(bool yes, decision by, const subgroup& among) {
  if (!deciding_) deciding_ = begun(collective_kind::decide, 1, among);
  const auto report = [&](bool failed) {
    auto what = *std::exchange(deciding_, std::nullopt);
    what.took = now_() - what.began;
    what.failed = failed;
    (*report_)(std::move(what));
  };
  bool agreed = false;
  try {
    agreed = forwarding_communicator::decide(yes, by, among);
  } catch (const not_yet&) {
    throw;
  } catch (...) {
    report(true);
    throw;
  }
  report(false);
  return agreed;
}

work_ptr announcing_communicator::work_together(std::string_view label, const void* mine,
                                                std::size_t pieces, shared_body body) {
  auto what = begun(collective_kind::work_together, 0, {});
  what.label = label;
  return announced(std::move(what),
                   forwarding_communicator::work_together(label, mine, pieces, std::move(body)));
}

namespace {

class announcing_devices final : public announcing_communicator, public device_collectives {
public:
  announcing_devices(const std::shared_ptr<communicator>& inner, const device_collectives& of,
                     clock now, reporter report)
      : announcing_communicator(inner, std::move(now), std::move(report)),
        memory_of_(of.memory_of()),
        host_(host_collectives(inner), *this) {}
  std::string_view memory_of() const override { return memory_of_; }
  communicator& on_host() override { return host_; }

private:
  const std::string memory_of_;
  announcing_communicator host_;
};

}  // namespace

std::shared_ptr<communicator> announcing(std::shared_ptr<communicator> inner,
                                         announcing_communicator::clock now,
                                         announcing_communicator::reporter report) {
  if (const auto* of = dynamic_cast<const device_collectives*>(inner.get()))
    return std::make_shared<announcing_devices>(inner, *of, std::move(now), std::move(report));
  return std::make_shared<announcing_communicator>(std::move(inner), std::move(now),
                                                   std::move(report));
}

}  // namespace troupe
