#include "troupe/accelerator.hpp"

#include <fmt/format.h>
#include <torch/csrc/lazy/backend/backend_device.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/debug_util.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/metrics.h>
#include <torch/csrc/lazy/ts_backend/ts_backend_impl.h>

#include <limits>
#include <mutex>

#include "backends/torch/accelerators/adapters.hpp"
#include "backends/torch/accelerators/lazy_fallback.hpp"
#include "backends/torch/accelerators/lazy_operators.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

// A backend that the program registered itself, such as XLA's, stays.
void start_backend() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (torch::lazy::hasBackend()) return;
    torch::lazy::InitTorchScriptBackend();
    register_lazy_fallback();
  });
}

class in_lane final : public accelerator::scope {
public:
  explicit in_lane(std::optional<c10::Device> creating) : scope_(creating) {}

private:
  lazy_scope scope_;
};

struct computed final : device_event {
  bool done() const override { return true; }
  void wait() const override {}
};

/// LibTorch's lazy tensors: operators are collected into a graph, which a step mark runs on the
/// processors of the host, in the thread that marks. Its devices are queues and no hardware: there
/// are as many as LibTorch can number. Equal graphs of different devices are compiled once.
class lazy final : public accelerator, public module_creation {
public:
  std::string_view name() const override { return to_string(accelerator_kind::lazy); }
  c10::DeviceType type() const override { return c10::kLazy; }
  std::string unusable() const override { return {}; }
  std::string about() const override { return "graphs of operators, run on the processors"; }
  std::int32_t count() const override { return std::numeric_limits<c10::DeviceIndex>::max() + 1; }
  std::vector<c10::Device> parse(const device_choice& which, std::int32_t ranks) const override {
    start_backend();
    return accelerator::parse(which, ranks);
  }
  std::unique_ptr<scope> make_current(c10::Device) const override {
    start_backend();
    return std::make_unique<in_lane>(std::nullopt);
  }
  std::unique_ptr<scope> create_on(c10::Device device) const override {
    start_backend();
    return std::make_unique<in_lane>(device);
  }
  c10::Stream stream(c10::Device device) const override {
    return c10::Stream{c10::Stream::DEFAULT, device};
  }
  c10::Stream new_stream(c10::Device device) const override { return stream(device); }
  std::unique_ptr<scope> use(c10::Stream) const override { return nullptr; }
  device_event_ptr record(c10::Stream stream) const override {
    mark_lazy(stream.device());
    return std::make_shared<computed>();
  }
  void synchronize(c10::Device device) const override { mark_lazy(device); }
  void mark_step(c10::Device device) const override { mark_lazy(device); }
  at::Tensor uploaded(const at::Tensor& t, c10::Device device) const override {
    return device.type() == type() ? upload_lazy(t, device) : accelerator::uploaded(t, device);
  }
  // Random operators draw from the rank's generator for the host.
  at::Generator generator(c10::Device) const override { return {}; }
  c10::DeviceType autocast_type() const override {
    throw user_error(errc::bad_configuration,
                     "the accelerator lazy has no mixed precision, because LibTorch's autocast "
                     "does not know it: use precision 32-true, bf16-true or 64-true");
  }
  device_memory memory(c10::Device) const override { return {}; }
};

std::int64_t counter(const std::string& name) {
  auto* found = torch::lazy::GetCounter(name);
  return found ? found->Value() : 0;
}

}  // namespace

accelerator_ptr lazy_accelerator() { return std::make_shared<lazy>(); }

lazy_counts counts_of_lazy() {
  lazy_counts counts;
  counts.step_marks = lazy_marks();
  counts.compilations = counter("UncachedCompile");
  counts.graphs = counts.compilations + counter("CachedCompile");
  for (const auto& name : torch::lazy::GetCounterNames())
    if (name.starts_with("aten::")) counts.fallbacks[name] = counter(name);
  return counts;
}

std::string report_of_lazy() {
  const auto counts = counts_of_lazy();
  auto text = fmt::format("step marks: {}\ngraphs: {}, of which {} were compiled\nfallbacks:\n",
                          counts.step_marks, counts.graphs, counts.compilations);
  for (const auto& [name, calls] : counts.fallbacks) text += fmt::format("  {} {}\n", name, calls);
  text += "LibTorch's counters:\n" + torch::lazy::CreateMetricReport();
  auto* executor = torch::lazy::hasBackend() ? torch::lazy::LazyGraphExecutor::Get() : nullptr;
  if (!executor) return text;
  std::map<std::int64_t, std::vector<torch::lazy::LazyTensorPtr>> waiting;  // by device
  for (const auto& one : executor->GetLiveTensors(nullptr))
    if (one->CurrentIrValue()) waiting[one->GetDevice().ordinal()].push_back(one);
  if (waiting.empty()) return text + "no operator waits for a step mark\n";
  for (const auto& [device, tensors] : waiting)
    text += fmt::format("operators of device {} that wait for a step mark:\n{}\n", device,
                        torch::lazy::DebugUtil::GetTensorsGraphInfo(
                            tensors, nullptr, torch::lazy::DebugUtil::GraphFormat::kText));
  return text;
}

}  // namespace troupe
