// Operators of the late device: each one is a task that runs the CPU's operator, later, on the same
// memory. Only the shapes of results are computed at once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/support/late_device.hpp"
#include "tests/support/late_memory.hpp"

namespace troupe::testing {

at::Generator inner_generator(const at::Generator& of);

namespace {

std::atomic<std::int64_t> operators{0}, waited{0};

bool is_late(const at::Tensor& t) { return t.defined() && t.device().type() == late_type; }

late_stream& stream_of(c10::Device device) {
  return late_stream::of(c10::impl::VirtualGuardImpl{late_type}.getStream(device));
}

/// The tensor's memory for the CPU's operators. Keeps the memory.
at::Tensor on_cpu(const at::Tensor& t) {
  if (!is_late(t)) return t;
  auto* at = late_memory::of_process().readable(t.storage().data());
  if (at) at += t.storage_offset() * static_cast<std::int64_t>(t.element_size());
  return at::from_blob(
      at, t.sizes(), t.strides(), [kept = t.storage()](void*) {},
      at::TensorOptions{}.dtype(t.scalar_type()));
}

/// A number that an operator gets from the host, as it is now.
at::Tensor taken_now(const at::Tensor& t) {
  if (!t.defined() || is_late(t)) return t;
  auto copy = t.detach().clone();
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

/// The same shape without memory.
at::Tensor shape_of(const at::Tensor& t) {
  if (!t.defined()) return t;
  auto shape = at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta));
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    shape.unsafeGetTensorImpl()->set_wrapped_number(true);
  return shape;
}

at::Tensor late_like(const at::Tensor& t, c10::Device device) {
  if (!t.defined()) return t;
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(device));
}

/// Dispatch as inside of a kernel of the CPU.
struct below_everything {
  c10::impl::ExcludeDispatchKeyGuard autograd{c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  c10::impl::ExcludeDispatchKeyGuard ranks{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

template <class F>
c10::IValue each_tensor(const c10::IValue& given, const F& f) {
  if (given.isTensor()) return f(given.toTensor());
  if (given.isTensorList()) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& one : given.toTensorList()) all.push_back(f(one));
    return c10::List<at::Tensor>(all);
  }
  if (given.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor>& one : given.toOptionalTensorList())
      all.push_back(one && one->defined() ? std::optional{f(*one)} : std::nullopt);
    return all;
  }
  return given;
}

/// One call of an operator.
struct call {
  call(const c10::OperatorHandle& what, torch::jit::Stack& stack)
      : op(what), random(what.hasTag(at::Tag::nondeterministic_seeded)) {
    const auto count = op.schema().arguments().size();
    given.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    stack.resize(stack.size() - count);
    look();
  }

  // As a GPU: tensors of one device, and single numbers or indices of the host.
  void look() {
    for (auto& one : given) {
      const bool indices = one.isOptionalTensorList();
      if (one.isDevice() && one.toDevice().type() == late_type && !device) device = one.toDevice();
      if (one.isGenerator() && one.toGenerator().device().type() == late_type) {
        random = true;
        one = inner_generator(one.toGenerator());
      }
      each_tensor(one, [&](const at::Tensor& t) {
        if (is_late(t)) {
          TORCH_CHECK(!device || *device == t.device(), op.operator_name(), " got tensors on ",
                      *device, " and on ", t.device());
          device = t.device();
        } else if (t.defined()) {
          TORCH_CHECK(t.dim() == 0 || indices, op.operator_name(),
                      " got a tensor on the late device and one of shape ", t.sizes(), " on ",
                      t.device());
        }
        return t;
      });
      one = each_tensor(one, taken_now);
    }
    TORCH_CHECK(device, op.operator_name(), " got no tensor and no device");
    for (const auto& one : op.schema().returns()) {
      const auto* alias = one.alias_info();
      TORCH_CHECK(!alias || alias->isWrite(), op.operator_name(), " is a view, not there yet");
      const bool fresh = !alias;
      if (!one.type()->isSubtypeOf(*c10::TensorType::get())) only_tensors = false;
      written.push_back(fresh ? std::nullopt : argument_of(*alias));
    }
  }

  std::optional<std::size_t> argument_of(const c10::AliasInfo& alias) const {
    const auto& arguments = op.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].alias_info() &&
          arguments[i].alias_info()->beforeSets() == alias.beforeSets())
        return i;
    return std::nullopt;
  }

  bool any_fresh() const {
    return std::any_of(written.begin(), written.end(), [](const auto& one) { return !one; });
  }

  template <class F>
  torch::jit::Stack arguments(c10::DeviceType where, const F& f) const {
    torch::jit::Stack all;
    for (const auto& one : given)
      all.push_back(one.isDevice() ? c10::IValue(c10::Device(where)) : each_tensor(one, f));
    return all;
  }

  /// Results without memory; none: the shapes are not known before the operator has run.
  std::optional<torch::jit::Stack> shapes() const {
    if (!only_tensors || random) return std::nullopt;
    if (!any_fresh()) return torch::jit::Stack(written.size());
    try {
      const below_everything guards;
      auto stack = arguments(c10::kMeta, shape_of);
      op.callBoxed(&stack);
      return stack;
    } catch (const c10::Error&) {
      return std::nullopt;
    }
  }

  const c10::OperatorHandle& op;
  std::vector<c10::IValue> given;
  std::optional<c10::Device> device;
  bool random;
  bool only_tensors = true;
  std::vector<std::optional<std::size_t>> written;  // by result: the argument that it is
};

std::vector<std::vector<std::int64_t>> sizes_of(const torch::jit::Stack& stack) {
  std::vector<std::vector<std::int64_t>> all;
  for (const auto& one : stack)
    if (one.isTensor() && one.toTensor().defined()) all.push_back(one.toTensor().sizes().vec());
  return all;
}

/// The CPU's default generator is the device's, meanwhile.
class drawing {
public:
  explicit drawing(c10::Device device)
      : lock_(mutex()),
        theirs_(inner_generator(at::globalContext().defaultGenerator(device))),
        host_(at::detail::getDefaultCPUGenerator()),
        before_(host_.get_state()) {
    host_.set_state(theirs_.get_state());
  }
  ~drawing() {
    theirs_.set_state(host_.get_state());
    host_.set_state(before_);
  }
  drawing(const drawing&) = delete;
  drawing& operator=(const drawing&) = delete;

private:
  static std::mutex& mutex() {
    static auto* const one = new std::mutex;
    return *one;
  }
  std::unique_lock<std::mutex> lock_;
  at::Generator theirs_, host_;
  at::Tensor before_;
};

void run_later(const call& what, const torch::jit::Stack& shapes, torch::jit::Stack& stack) {
  std::vector<at::Tensor> fresh(shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (what.written[i]) {
      stack.push_back(what.given[*what.written[i]]);
      continue;
    }
    const auto made = late_like(shapes[i].toTensor(), *what.device);
    fresh[i] = on_cpu(made);
    stack.emplace_back(made);
  }
  stream_of(*what.device)
      .submit([op = what.op, arguments = what.arguments(c10::kCPU, on_cpu),
               fresh = std::move(fresh)]() mutable {
        const below_everything guards;
        const auto sizes = sizes_of(arguments);
        const auto given = arguments;
        op.callBoxed(&arguments);
        TORCH_CHECK(sizes_of(given) == sizes, op.operator_name(), " changed a shape");
        for (std::size_t i = 0; i < fresh.size(); ++i)
          if (fresh[i].defined()) fresh[i].copy_(arguments[i].toTensor());
      });
}

void run_now(const call& what, torch::jit::Stack& stack) {
  ++waited;
  stream_of(*what.device).wait();
  auto results = what.arguments(c10::kCPU, on_cpu);
  const below_everything guards;
  std::optional<drawing> draws;
  if (what.random) draws.emplace(*what.device);
  what.op.callBoxed(&results);
  draws.reset();
  for (std::size_t i = 0; i < what.written.size(); ++i) {
    if (what.written[i]) {
      const auto& mine = what.given[*what.written[i]];
      if (results[i].isTensor() && results[i].toTensor().sizes() != mine.toTensor().sizes())
        mine.toTensor().unsafeGetTensorImpl()->set_sizes_contiguous(results[i].toTensor().sizes());
      stack.push_back(mine);
      continue;
    }
    stack.push_back(each_tensor(results[i], [&](const at::Tensor& t) {
      auto made = late_like(t, *what.device);
      if (made.defined()) on_cpu(made).copy_(t);
      return made;
    }));
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++operators;
  const call what{op, *stack};
  const c10::DeviceGuard here{*what.device};
  if (const auto shapes = what.shapes())
    run_later(what, *shapes, *stack);
  else
    run_now(what, *stack);
}

// --- memory --------------------------------------------------------------------------------------

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard here{device.value_or(c10::Device(late_type))};
  return at::detail::empty_generic(size, c10::GetAllocator(late_type),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard here{device.value_or(c10::Device(late_type))};
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(late_type),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

void submit_copy(late_stream& in, const at::Tensor& to, const at::Tensor& from) {
  in.submit([to = on_cpu(to), from = on_cpu(from)] {
    const below_everything guards;
    to.copy_(from);
  });
}

// As on a GPU: the streams of both devices wait for each other.
void copy_between(const at::Tensor& to, const at::Tensor& from) {
  auto& reader = stream_of(to.device());
  auto& writer = stream_of(from.device());
  wait_in(reader, {&writer, writer.last()});
  submit_copy(reader, to, from);
  wait_in(writer, {&reader, reader.last()});
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  ++operators;
  if (is_late(to) && is_late(from)) {
    copy_between(to, from);
  } else if (is_late(to)) {
    const bool direct = non_blocking && from.is_pinned();
    submit_copy(stream_of(to.device()), to, direct ? from.detach() : from.detach().clone());
  } else {
    auto& stream = stream_of(from.device());
    submit_copy(stream, to.detach(), from);
    if (!non_blocking || !to.is_pinned()) stream.wait();
  }
  return to;
}

bool same_kind(const at::Tensor&, const at::Tensor&) { return true; }

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

// LibTorch's own first makes a result of another shape than its last one.
at::Tensor mse_loss(const at::Tensor& a, const at::Tensor& b, std::int64_t reduction) {
  const auto difference = at::sub(a, b);
  const auto each = at::mul(difference, difference);
  if (reduction == at::Reduction::None) return each;
  return reduction == at::Reduction::Mean ? at::mean(each) : at::sum(each);
}

// The shape changes now. New memory gets the old contents in its turn.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  ++operators;
  const c10::DeviceGuard here{self.device()};
  auto storage = self.storage();
  const auto bytes = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<std::size_t>(self.storage_offset()));
  if (const auto before = storage.nbytes(); bytes > before) {
    const auto old = std::make_shared<c10::DataPtr>(
        storage.set_data_ptr(c10::GetAllocator(late_type)->allocate(bytes)));
    storage.set_nbytes(bytes);
    auto& memory = late_memory::of_process();
    if (before > 0)
      stream_of(self.device())
          .submit([old, before, from = memory.readable(old->get()),
                   to = memory.readable(storage.data()),
                   storage] { std::copy_n(from, before, to); });
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

// --- convolutions, which LibTorch leaves to devices of others -----------------------------------

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  TORCH_CHECK(!transposed, "the late device has no transposed convolutions");
  ++operators;
  const c10::DeviceGuard here{input.device()};
  auto made = at::empty(
      at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation),
      input.options());
  stream_of(input.device())
      .submit([to = on_cpu(made), x = on_cpu(input), w = on_cpu(weight),
               b = bias ? on_cpu(*bias) : at::Tensor{}, s = stride.vec(), p = padding.vec(),
               d = dilation.vec(), o = output_padding.vec(), groups] {
        const below_everything guards;
        to.copy_(at::convolution(x, w, b.defined() ? std::optional{b} : std::nullopt, s, p, d,
                                 false, o, groups));
      });
  return made;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> mask) {
  TORCH_CHECK(!transposed, "the late device has no transposed convolutions");
  ++operators;
  const c10::DeviceGuard here{input.device()};
  const std::vector<std::int64_t> bias_size{weight.size(0)};
  at::Tensor of_input, of_weight, of_bias;
  if (mask[0]) of_input = at::empty(input.sizes(), input.options());
  if (mask[1]) of_weight = at::empty(weight.sizes(), weight.options());
  if (mask[2]) of_bias = at::empty(bias_size, weight.options());
  stream_of(input.device())
      .submit([gi = on_cpu(of_input), gw = on_cpu(of_weight), gb = on_cpu(of_bias),
               g = on_cpu(gradient), x = on_cpu(input), w = on_cpu(weight), bias_size,
               s = stride.vec(), p = padding.vec(), d = dilation.vec(), o = output_padding.vec(),
               groups, mask] {
        const below_everything guards;
        const auto [a, b, c] =
            at::convolution_backward(g, x, w, bias_size, s, p, d, false, o, groups, mask);
        if (gi.defined()) gi.copy_(a);
        if (gw.defined()) gw.copy_(b);
        if (gb.defined()) gb.copy_(c);
      });
  return {of_input, of_weight, of_bias};
}

}  // namespace

late_counts late_operators() { return {operators, waited}; }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("_has_compatible_shallow_copy_type", &same_kind);
  m.impl("as_strided", &as_strided);
  m.impl("resize_", &resize);
  m.impl("mse_loss", &mse_loss);
  m.impl("relu", [](const at::Tensor& x) { return at::clamp_min(x, 0); });
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace troupe::testing
