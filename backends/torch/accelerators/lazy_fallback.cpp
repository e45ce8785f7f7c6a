#include "backends/torch/accelerators/lazy_fallback.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <torch/csrc/lazy/core/metrics.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <string>

namespace troupe {

namespace {

std::mutex counting;

// One counter per operator, under the name that LibTorch's fallback gives it.
torch::lazy::Counter& counter_of(const std::string& name) {
  static std::map<std::string, torch::lazy::Counter> counters;
  const std::lock_guard lock{counting};
  return counters.try_emplace(name, name).first->second;
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  counter_of(c10::toString(op.operator_name())).AddValue(1);
  at::native::cpu_fallback(op, stack);
}

// Looks for a kernel as the dispatcher does: one for the key itself, or a composite one.
bool has_kernel(const c10::OperatorHandle& op) {
  using enum c10::DispatchKey;
  return op.hasKernelForDispatchKey(Lazy) ||
         op.hasKernelForDispatchKey(CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(CompositeImplicitAutograd);
}

}  // namespace

void register_lazy_fallback() {
  static std::map<std::string, torch::Library> libraries;  // by namespace
  auto& registry = c10::Dispatcher::singleton();
  for (const auto& name : registry.getAllOpNames()) {
    const auto op = registry.findSchema(name);
    if (!op || has_kernel(*op)) continue;
    const std::string space{name.getNamespace().value_or("_")};
    auto& library = libraries
                        .try_emplace(space, torch::Library::IMPL, space, c10::DispatchKey::Lazy,
                                     __FILE__, __LINE__)
                        .first->second;
    library.impl(c10::toString(name).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

}  // namespace troupe
