#include "troupe/accelerator.hpp"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "backends/torch/accelerators/adapters.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

class current_device final : public accelerator::scope {
public:
  explicit current_device(c10::Device device) : guard_(device) {}

private:
  c10::DeviceGuard guard_;
};

class current_stream final : public accelerator::scope {
public:
  explicit current_stream(c10::Stream stream) : guard_(stream) {}

private:
  c10::StreamGuard guard_;
};

class stream_event final : public device_event {
public:
  explicit stream_event(c10::Stream stream)
      : event_(std::make_unique<c10::Event>(stream.device_type())) {
    event_->record(stream);
  }
  bool done() const override { return event_->query(); }
  void wait() const override { event_->synchronize(); }
  void* native() const override { return event_->eventId(); }

private:
  std::unique_ptr<c10::Event> event_;
};

const c10::impl::DeviceGuardImplInterface* guard_of(c10::DeviceType type) {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(type)].load();
}

[[noreturn]] void refuse(std::string text) { throw user_error(errc::device, std::move(text)); }

std::string count_of(std::int32_t devices, std::string_view name) {
  return fmt::format("{} device{} of {}", devices, devices == 1 ? "" : "s", name);
}

void check_indices(const accelerator& kind, const std::vector<std::int32_t>& indices) {
  const auto there = kind.count();
  for (auto one = indices.begin(); one != indices.end(); ++one) {
    if (*one < 0 || *one >= there)
      refuse(fmt::format(
          "devices = [{}]: this host has {}, numbered 0 to {}; use --devices with numbers of these",
          fmt::join(indices, ", "), count_of(there, kind.name()), there - 1));
    if (std::find(indices.begin(), one, *one) != one)
      refuse(
          fmt::format("devices = [{}] names {} twice, but each rank computes on a device of its "
                      "own: name each one once",
                      fmt::join(indices, ", "), *one));
  }
}

}  // namespace

std::string accelerator::unusable() const {
  if (!guard_of(type()))
    return fmt::format("this program's LibTorch knows no device guard of {}",
                       c10::DeviceTypeName(type(), /*lower_case=*/true));
  if (count() == 0) return fmt::format("this host has no device of {}", name());
  return {};
}

std::string accelerator::about() const { return count_of(count(), name()); }

std::int32_t accelerator::count() const {
  const auto* guard = guard_of(type());
  return guard ? guard->deviceCount() : 0;
}

std::vector<c10::Device> accelerator::parse(const device_choice& which, std::int32_t ranks) const {
  const auto there = count();
  if (there < 1)
    refuse(fmt::format("accelerator = {}: this host has {}; use --accelerator {}", name(),
                       count_of(std::max(there, 0), name()), to_string(accelerator_kind::cpu)));
  auto indices = which.indices;
  if (indices.empty()) {
    if (!which.count && ranks > there)
      refuse(
          fmt::format("ranks = {}: each rank computes on a device of its own, and this host has "
                      "{}; use --ranks {}, or --accelerator {}",
                      ranks, count_of(there, name()), there, to_string(accelerator_kind::cpu)));
    const auto wanted = which.count.value_or(ranks > 0 ? ranks : there);
    if (wanted < 1 || wanted > there)
      refuse(fmt::format("devices = {}: this host has {}; use --devices {}", wanted,
                         count_of(there, name()), there));
    indices.resize(static_cast<std::size_t>(wanted));
    std::iota(indices.begin(), indices.end(), 0);
  }
  check_indices(*this, indices);
  const auto size = static_cast<std::int32_t>(indices.size());
  if (ranks > 0 && size != ranks)
    refuse(
        fmt::format("devices = {} and ranks = {}: each rank of this host computes on one device; "
                    "use --ranks {}, or name {}",
                    which.indices.empty() ? std::to_string(size)
                                          : fmt::format("[{}]", fmt::join(indices, ", ")),
                    ranks, size, count_of(ranks, name())));
  std::vector<c10::Device> devices;
  for (const auto index : indices)
    devices.emplace_back(type(), static_cast<c10::DeviceIndex>(index));
  return devices;
}

std::unique_ptr<accelerator::scope> accelerator::make_current(c10::Device device) const {
  return std::make_unique<current_device>(device);
}

c10::Stream accelerator::stream(c10::Device device) const {
  return c10::impl::VirtualGuardImpl{type()}.getStream(device);
}

c10::Stream accelerator::new_stream(c10::Device device) const {
  return c10::impl::VirtualGuardImpl{type()}.getNewStream(device);
}

std::unique_ptr<accelerator::scope> accelerator::use(c10::Stream stream) const {
  return std::make_unique<current_stream>(stream);
}

device_event_ptr accelerator::record(c10::Stream stream) const {
  return std::make_shared<stream_event>(stream);
}

void accelerator::block(c10::Stream stream, const device_event& point) const {
  if (auto* const event = point.native()) c10::impl::VirtualGuardImpl{type()}.block(event, stream);
}

void accelerator::synchronize(c10::Device device) const {
  c10::impl::VirtualGuardImpl{type()}.synchronizeDevice(device.index());
}

at::Generator accelerator::generator(c10::Device device) const {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor accelerator::uploaded(const at::Tensor& t, c10::Device device) const {
  return t.to(device, /*non_blocking=*/t.is_pinned());
}

device_memory accelerator::memory(c10::Device device) const {
  device_memory found;
  try {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type()));
    if (!allocator || !allocator->initialized()) return found;
    constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto figures = allocator->getDeviceStats(device.index());
    found.allocated = figures.allocated_bytes[all].current;
    found.peak = figures.allocated_bytes[all].peak;
    found.reserved = figures.reserved_bytes[all].current;
    const auto [free, total] = allocator->getMemoryInfo(device.index());
    found.free = static_cast<std::int64_t>(free);
    found.total = static_cast<std::int64_t>(total);
  } catch (const c10::Error&) {
    // An allocator without these figures leaves the rest unknown.
  }
  return found;
}

namespace {

// Ranks look an accelerator up by its own name.
accelerator_ptr made(const std::string& name, const accelerator_factory& make) {
  auto one = make ? make() : nullptr;
  if (!one)
    throw user_error(errc::bad_usage,
                     fmt::format("the factory of accelerator \"{}\" made none: return one", name));
  if (one->name() != name)
    throw user_error(errc::bad_usage,
                     fmt::format("the accelerator \"{}\" says that its name is \"{}\": give "
                                 "torch_plugins::accelerators the name that accelerator::name has",
                                 name, one->name()));
  return one;
}

accelerator_ptr preferred(const accelerator_table& known, const device_choice& devices,
                          std::int32_t ranks) {
  std::vector<accelerator_ptr> found;
  for (const auto& [name, make] : known)
    if (auto one = made(name, make); one->preference() >= 0 && one->unusable().empty())
      found.push_back(std::move(one));
  std::ranges::stable_sort(found, std::ranges::greater{},
                           [](const auto& one) { return one->preference(); });
  for (const auto& one : found) {
    if (one == found.back()) return one;  // its parse says what is wrong
    try {
      one->parse(devices, ranks);
      return one;
    } catch (const user_error&) {
      // `auto` takes the first accelerator that has a device for each rank: try the next one.
    }
  }
  refuse("no accelerator of this program can be used on this host: see its command doctor");
}

}  // namespace

chosen_devices choose_devices(const accelerator_table& known, const trainer_options& options,
                              std::int32_t ranks) {
  const auto& name = options.accelerator.name;
  chosen_devices chosen;
  if (name == to_string(accelerator_kind::automatic)) {
    chosen.kind = preferred(known, options.devices, ranks);
  } else if (const auto found = known.find(name); found != known.end()) {
    chosen.kind = made(found->first, found->second);
  } else {
    std::vector<std::string_view> names{to_string(accelerator_kind::automatic)};
    for (const auto& [other, make] : known) names.push_back(other);
    throw user_error(errc::bad_configuration, fmt::format("unknown accelerator \"{}\": use one of "
                                                          "{}",
                                                          name, fmt::join(names, ", ")));
  }
  if (const auto why = chosen.kind->unusable(); !why.empty())
    refuse(fmt::format("accelerator = \"{}\" cannot be used here: {}", name, why));
  check_autocast(*chosen.kind, options.precision.name);
  chosen.devices = chosen.kind->parse(options.devices, ranks);
  if (chosen.devices.empty())
    refuse(
        fmt::format("accelerator = \"{}\": its parse returned no device; return one for each "
                    "rank of this host, or throw the reason",
                    chosen.kind->name()));
  const auto shards = options.elastic.shards.value_or(0);
  if (ranks > 0 && shards > ranks && dynamic_cast<const module_creation*>(chosen.kind.get()))
    refuse(
        fmt::format("elastic.shards = {} and ranks = {}: on {} each shard computes on a device of "
                    "its own; use --ranks {}",
                    shards, ranks, chosen.kind->name(), shards));
  return chosen;
}

c10::Device device_of(const std::vector<c10::Device>& devices, std::int32_t local_rank,
                      std::int32_t shards) {
  const auto count = static_cast<std::int64_t>(devices.size());
  if (local_rank < count && shards <= count)
    return devices.at(static_cast<std::size_t>(local_rank));
  const auto all = std::max<std::int64_t>(shards, local_rank + 1);
  return devices.at(static_cast<std::size_t>(local_rank * count / all));
}

}  // namespace troupe
