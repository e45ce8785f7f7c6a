#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "backends/learner/host_devices.hpp"
#include "backends/torch/accelerators/adapters.hpp"
#include "backends/torch/accelerators/host_memory.hpp"

namespace troupe {

namespace {

struct always_done final : device_event {
  bool done() const override { return true; }
  void wait() const override {}
};

/// The processors of the host are one device that all ranks share. Operators run in the calling
/// thread, so there is nothing to wait for.
class cpu final : public accelerator {
public:
  std::string_view name() const override { return to_string(accelerator_kind::cpu); }
  c10::DeviceType type() const override { return host_device().type(); }
  std::string unusable() const override { return {}; }
  std::string about() const override {
    return fmt::format("kernels for {}", at::get_cpu_capability());
  }
  std::int32_t count() const override { return 1; }
  bool shared() const override { return true; }
  int preference() const override { return 0; }
  std::vector<c10::Device> parse(const device_choice& which, std::int32_t) const override {
    check_host_devices(which);
    return {host_device()};
  }
  std::unique_ptr<scope> make_current(c10::Device) const override { return nullptr; }
  c10::Stream stream(c10::Device device) const override {
    return c10::Stream{c10::Stream::DEFAULT, device};
  }
  c10::Stream new_stream(c10::Device device) const override { return stream(device); }
  std::unique_ptr<scope> use(c10::Stream) const override { return nullptr; }
  device_event_ptr record(c10::Stream) const override { return std::make_shared<always_done>(); }
  void synchronize(c10::Device) const override {}
  // A rank has a generator for host memory already.
  at::Generator generator(c10::Device) const override { return {}; }
  device_memory memory(c10::Device) const override { return {}; }
};

}  // namespace

accelerator_ptr cpu_accelerator() { return std::make_shared<cpu>(); }

}  // namespace troupe
