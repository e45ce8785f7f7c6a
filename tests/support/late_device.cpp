#include "tests/support/late_device.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <map>
#include <mutex>

#include "tests/support/late_memory.hpp"

namespace troupe::testing {

namespace {

thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, late_devices> streams{};

c10::Stream stream_of(c10::DeviceIndex device) {
  return c10::Stream{c10::Stream::UNSAFE, c10::Device(late_type, device), streams.at(device)};
}

struct guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return late_type; }
  c10::Device exchangeDevice(c10::Device to) const override {
    const auto before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return {late_type, current}; }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.index() < late_devices, "there is no device ", to);
    if (to.has_index()) current = to.index();
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.has_index()) current = to.index();
  }
  c10::Stream getStream(c10::Device of) const override {
    return stream_of(of.has_index() ? of.index() : current);
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return c10::Stream{c10::Stream::DEFAULT,
                       c10::Device(late_type, of.has_index() ? of.index() : current)};
  }
  c10::Stream getNewStream(c10::Device of, int) const override {
    return late_stream::make(of.has_index() ? of.index() : current);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto before = stream_of(to.device_index());
    streams.at(to.device_index()) = to.id();
    return before;
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (!*event) *event = new late_event;
    auto& of = late_stream::of(stream);
    *static_cast<late_event*>(*event) = {&of, of.last()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) wait_in(late_stream::of(stream), *static_cast<late_event*>(event));
  }
  bool queryEvent(void* event) const override {
    const auto* at = static_cast<late_event*>(event);
    return !at || !at->stream || at->stream->done(at->number);
  }
  void synchronizeEvent(void* event) const override {
    if (const auto* at = static_cast<late_event*>(event); at && at->stream)
      at->stream->wait(at->number);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<late_event*>(event);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return late_devices; }
  bool queryStream(const c10::Stream& stream) const override {
    auto& of = late_stream::of(stream);
    return of.done(of.last());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    late_stream::of(stream).wait();
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    late_stream::wait_for_all(device);
  }
};

struct allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* memory = late_memory::of_process().allocate(bytes);
    return {memory, memory, &release, c10::Device(late_type, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats found;
    const auto& memory = late_memory::of_process();
    found.allocated_bytes[all].current = static_cast<std::int64_t>(memory.in_use());
    found.allocated_bytes[all].peak = static_cast<std::int64_t>(memory.most_in_use());
    return found;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

  static void release(void* memory) { late_memory::of_process().free(memory); }
};

/// Host memory that the device copies from without a wait. Remembers what it gave out.
struct pinned_allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = ::operator new (std::max<std::size_t>(bytes, 1), std::align_val_t{64});
    const std::lock_guard lock{mutex};
    given[memory] = bytes;
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool gave(const void* where) {
    const std::lock_guard lock{mutex};
    auto after = given.upper_bound(where);
    if (after == given.begin()) return false;
    --after;
    const auto* begin = static_cast<const std::byte*>(after->first);
    return static_cast<const std::byte*>(where) < begin + std::max<std::size_t>(after->second, 1);
  }
  static pinned_allocator& of_process() {
    static auto* const one = new pinned_allocator;
    return *one;
  }
  static void release(void* memory) {
    auto& self = of_process();
    {
      const std::lock_guard lock{self.mutex};
      self.given.erase(memory);
    }
    ::operator delete (memory, std::align_val_t{64});
  }

  std::mutex mutex;
  std::map<const void*, std::size_t> given;
};

/// Numbers of the CPU's generator, under the device's name.
struct generator final : c10::GeneratorImpl {
  explicit generator(c10::DeviceIndex index)
      : GeneratorImpl(c10::Device(late_type, index),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        numbers(at::make_generator<at::CPUGeneratorImpl>()) {}
  void set_current_seed(std::uint64_t seed) override { numbers.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { numbers.set_offset(offset); }
  std::uint64_t get_offset() const override { return numbers.get_offset(); }
  std::uint64_t current_seed() const override { return numbers.current_seed(); }
  std::uint64_t seed() override { return numbers.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    numbers.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return numbers.unsafeGetGeneratorImpl()->get_state();
  }
  generator* clone_impl() const override {
    auto* copy = new generator(device_.index());
    copy->numbers = numbers.clone();
    return copy;
  }

  at::Generator numbers;
};

struct device_hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return late_devices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current, device);
  }
  bool isPinnedPtr(const void* data) const override {
    return pinned_allocator::of_process().gave(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator::of_process();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static auto* const all = [] {
      auto* made = new std::array<at::Generator, late_devices>;
      for (c10::DeviceIndex i = 0; i < late_devices; ++i)
        (*made)[i] = at::make_generator<generator>(i);
      return made;
    }();
    return all->at(index < 0 ? current : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<generator>(index < 0 ? current : index);
  }
  at::Device getDeviceFromPtr(void*) const override { return {late_type, current}; }
};

class late final : public accelerator {
public:
  std::string_view name() const override { return "late"; }
  c10::DeviceType type() const override { return late_type; }
  at::Tensor staged(const at::Tensor& t) const override { return t.pin_memory(); }
};

}  // namespace

/// The CPU's generator inside of one of the device's.
at::Generator inner_generator(const at::Generator& of) {
  return static_cast<generator*>(of.unsafeGetGeneratorImpl())->numbers;
}

accelerator_ptr late_accelerator() {
  static const bool once = [] {
    c10::register_privateuse1_backend("late");
    static auto* const made = new allocator;
    c10::SetAllocator(late_type, made);
    static const c10::impl::DeviceGuardImplRegistrar registrar{late_type, new guard};
    at::RegisterPrivateUse1HooksInterface(new device_hooks);
    return true;
  }();
  (void)once;
  return std::make_shared<late>();
}

}  // namespace troupe::testing
