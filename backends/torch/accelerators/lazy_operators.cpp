#include "backends/torch/accelerators/lazy_operators.hpp"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/lazy/backend/backend_device.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/torch/accelerators/host_memory.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

constexpr auto lazy_key = c10::DispatchKey::DeferredInit;
// The key under which rank_random.cpp fills in the rank's generator.
constexpr auto draws_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local std::optional<c10::Device> creating;
std::atomic<std::int64_t> marks{0};
constexpr auto most_devices = std::numeric_limits<c10::DeviceIndex>::max() + 1;
std::array<std::mutex, most_devices> all_tensors;  // of a device: what a mark collects and writes

std::mutex& all_tensors_of(c10::Device device) {
  return all_tensors.at(static_cast<std::size_t>(std::max<c10::DeviceIndex>(device.index(), 0)));
}

/// The rank's generator again applies to operators on the host, which the call of an operator on
/// the device had switched off.
class draws_of_rank {
public:
  draws_of_rank() : off_(c10::impl::tls_is_dispatch_key_excluded(draws_key)) {
    c10::impl::tls_set_dispatch_key_excluded(draws_key, false);
  }
  ~draws_of_rank() { c10::impl::tls_set_dispatch_key_excluded(draws_key, off_); }
  draws_of_rank(const draws_of_rank&) = delete;
  draws_of_rank& operator=(const draws_of_rank&) = delete;

private:
  bool off_;
};

c10::IValue* arguments_of(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  return stack->data() + (stack->size() - op.schema().arguments().size());
}

bool is_lazy(const c10::IValue& one) {
  return one.isTensor() && one.toTensor().defined() && one.toTensor().is_lazy();
}

const c10::IValue* first_lazy(const c10::OperatorHandle& op, c10::IValue* arguments) {
  const auto* end = arguments + op.schema().arguments().size();
  const auto* found = std::find_if(static_cast<const c10::IValue*>(arguments), end, is_lazy);
  return found == end ? nullptr : found;
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// Its gradient would be lost where its noise is drawn on the host.
void refuse_rrelu(std::string_view name) {
  if (name.starts_with("aten::rrelu"))
    throw user_error(errc::job_failed,
                     "the accelerator lazy cannot train with rrelu, whose slopes are random: use "
                     "leaky_relu, or another accelerator");
}

// Draws into tensors of the host and copies the result. Operators with a generator return one
// tensor, and those that write into an argument return that one.
void draw_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(lazy_key);
  auto* given = arguments_of(op, stack);
  const auto* lazy = first_lazy(op, given);
  if (!lazy) return op.callBoxed(stack);
  refuse_rrelu(op.schema().name());
  const at::NoGradGuard no_grad;
  const auto device = lazy->toTensor().device();
  const auto& arguments = op.schema().arguments();
  at::Tensor written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_lazy(given[i])) continue;
    const auto tensor = given[i].toTensor();
    if (writes(arguments[i])) {
      written = tensor;
      given[i] = at::empty(tensor.sizes(), tensor.options().device(host_device()));
    } else {
      mark_lazy(device);
      given[i] = to_host(tensor);
    }
  }
  {
    const draws_of_rank again;
    op.callBoxed(stack);
  }
  auto& result = stack->back();
  if (written.defined())
    result = written.copy_(result.toTensor());
  else
    result = result.toTensor().to(device);
}

// Does what native_dropout does on the host: the rank's generator draws the mask.
void drop_out(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(lazy_key);
  const auto* given = arguments_of(op, stack);
  const bool trains = given[2].isNone() || given[2].toBool();
  const double kept = 1 - given[1].toDouble();
  if (!is_lazy(given[0]) || !trains || kept <= 0) return op.callBoxed(stack);
  const auto input = given[0].toTensor();
  at::Tensor mask;
  {
    const at::NoGradGuard no_grad;
    const draws_of_rank again;
    mask = at::empty(input.sizes(), input.options().device(host_device())).bernoulli_(kept);
  }
  const auto on_device = mask.to(input.device());
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, input.mul(on_device.div(kept)), on_device.to(at::kBool));
}

// A view is brought up to date, so that the graph of the next mark contains it.
void settle(const at::Tensor& lazy) {
  if (at::functionalization::impl::isFunctionalTensor(lazy))
    at::functionalization::impl::sync(lazy);
}

bool host_gets_it(const c10::OperatorHandle& op, const c10::IValue* given) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (given[i].isDevice()) return given[i].toDevice() == host_device();
    if (writes(arguments[i])) return !is_lazy(given[i]);
  }
  return op.schema().name() != "aten::_to_copy";
}

void read(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(lazy_key);
  auto* given = arguments_of(op, stack);
  if (const auto* lazy = first_lazy(op, given); lazy && host_gets_it(op, given)) {
    settle(lazy->toTensor());
    mark_lazy(lazy->toTensor().device());
    // LibTorch refuses to write into memory of the host from a lazy tensor.
    if (op.schema().name() == "aten::copy_") given[1] = to_host(given[1].toTensor());
  }
  op.callBoxed(stack);
}

// LibTorch's own fallback runs these always, and not for several threads at once
// (lazy_fallback.hpp).
void run_alone(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static std::mutex one_at_a_time;
  const c10::impl::ExcludeDispatchKeyGuard below(lazy_key);
  const std::lock_guard lock{one_at_a_time};
  op.callBoxed(stack);
}

bool is_number(const c10::IValue& one) {
  return one.isTensor() && one.toTensor().defined() &&
         one.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// A number that meets a tensor takes the tensor's type. In LibTorch's graphs it is a tensor of type
// double, which wins against a tensor without dimensions: the graph would compute in double.
void combine(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(lazy_key);
  auto* given = arguments_of(op, stack);
  for (auto* one : {given, given + 1}) {
    const auto& other = given[one == given ? 1 : 0];
    if (is_number(*one) && is_lazy(other) && other.toTensor().dim() == 0 &&
        other.toTensor().is_floating_point() && one->toTensor().is_floating_point())
      *one = one->toTensor().to(other.toTensor().scalar_type());
  }
  op.callBoxed(stack);
}

// A kernel of the lazy backend calls factories too, for memory of the host.
bool creates_here() {
  return creating && !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Functionalize);
}

c10::IValue* device_argument(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "device") return arguments_of(op, stack) + i;
  return nullptr;
}

// Memory without numbers is made on the device.
void make_empty(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(lazy_key);
  if (auto* device = device_argument(op, stack); creates_here() && device && device->isNone())
    *device = *creating;
  op.callBoxed(stack);
}

// Numbers are made on the host, so that they have the same bits.
void make_filled(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(lazy_key);
  auto* device = device_argument(op, stack);
  if (!creates_here() || !device || !device->isNone()) return op.callBoxed(stack);
  *device = host_device();
  op.callBoxed(stack);
  stack->back() = stack->back().toTensor().to(*creating);
}

constexpr std::array without_numbers{"empty.memory_format", "empty_strided"};
constexpr std::array with_numbers{"arange",
                                  "arange.start",
                                  "arange.start_step",
                                  "eye",
                                  "eye.m",
                                  "full",
                                  "linspace",
                                  "logspace",
                                  "ones",
                                  "rand",
                                  "randint",
                                  "randint.low",
                                  "randn",
                                  "randperm",
                                  "scalar_tensor",
                                  "tril_indices",
                                  "triu_indices",
                                  "zeros",
                                  "bartlett_window",
                                  "hann_window",
                                  "hamming_window",
                                  "rand.generator",
                                  "randn.generator",
                                  "randint.generator",
                                  "randint.low_generator",
                                  "randperm.generator"};
constexpr std::array with_a_number{"add.Tensor",  "sub.Tensor",  "mul.Tensor",  "div.Tensor",
                                   "add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor"};
constexpr std::array alone{"nonzero", "max_pool3d_with_indices",
                           "max_pool3d_with_indices_backward"};
constexpr std::array reads{"_local_scalar_dense", "_to_copy", "copy_", "equal"};

bool has_argument(const c10::FunctionSchema& schema, std::string_view name) {
  return std::ranges::any_of(schema.arguments(), [&](const auto& a) { return a.name() == name; });
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  for (const auto* name : without_numbers)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&make_empty>());
  for (const auto* name : with_numbers)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&make_filled>());
  for (const auto* name : with_a_number)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&combine>());
  for (const auto* name : reads) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&read>());
  for (const auto* name : alone)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_alone>());
  m.impl("native_dropout", torch::CppFunction::makeFromBoxedFunction<&drop_out>());
  auto& registry = c10::Dispatcher::singleton();
  for (const auto& name : registry.getAllOpNames()) {
    const auto op = registry.findSchema(name);
    if (!op || name.getNamespace() != "aten" || !has_argument(op->schema(), "generator") ||
        has_argument(op->schema(), "device"))
      continue;
    m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&draw_on_host>());
  }
}

void mark_lazy(c10::Device device) {
  ++marks;
  auto* executor = torch::lazy::LazyGraphExecutor::Get();
  const auto which = torch::lazy::atenDeviceToBackendDevice(device);
  const std::lock_guard lock{all_tensors_of(device)};
  executor->SyncLiveTensorsGraph(&which, {}, /*wait=*/true);
  executor->MarkStep(which);
}

at::Tensor upload_lazy(const at::Tensor& t, c10::Device device) {
  const std::lock_guard lock{all_tensors_of(device)};
  return t.to(device);
}

std::int64_t lazy_marks() { return marks; }

lazy_scope::lazy_scope(std::optional<c10::Device> device)
    : outer_(std::exchange(creating, device ? device : creating)), on_(lazy_key) {}

lazy_scope::~lazy_scope() { creating = outer_; }

lazy_reads::lazy_reads(const std::vector<at::Tensor>& tensors) : without_marks_(lazy_key) {
  std::optional<c10::Device> device;
  for (const auto& one : tensors) {
    if (!one.is_lazy()) continue;
    settle(one);
    device = one.device();
  }
  if (device) mark_lazy(*device);
}

}  // namespace troupe
