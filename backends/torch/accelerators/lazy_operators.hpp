// Operators on lazy tensors that Troupe calls differently: random ones, reads by the host, and the
// making of tensors. It needs no patch of LibTorch: boxed kernels under the dispatch key
// DeferredInit, which LibTorch itself does not use, are registered when the program loads. They are
// inert on threads that did not switch the key on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe {

/// Runs the operators that were collected for `device`, and waits until they are done.
void mark_lazy(c10::Device device);
/// `t` on `device`, from any thread: not while another thread is in mark_lazy for the same device,
/// which writes into all tensors of it.
at::Tensor upload_lazy(const at::Tensor& t, c10::Device device);
/// Calls of mark_lazy so far.
std::int64_t lazy_marks();

/// While it exists, in this thread:
/// - Random operators on lazy tensors draw on the host, in the order of the calls, and their
///   numbers are copied to the device. So they are the numbers of a rank on the CPU, and the graph
///   of a step does not depend on them.
/// - A read by the host first marks a step. LibTorch alone would compute the read tensor only, and
///   compute again what it shares with others later.
/// Scopes nest. Destroyed in the thread that created it, in reverse order.
class lazy_scope {
public:
  /// Tensors that are made without a device are made on `creating`, if it is given.
  explicit lazy_scope(std::optional<c10::Device> creating);
  ~lazy_scope();
  lazy_scope(const lazy_scope&) = delete;
  lazy_scope& operator=(const lazy_scope&) = delete;

private:
  std::optional<c10::Device> outer_;
  c10::impl::IncludeDispatchKeyGuard on_;
};

/// Marks a step for the lazy ones of `tensors`. While it exists, reads of these by this thread mark
/// no other one. Nothing else is computed on lazy tensors meanwhile.
class lazy_reads {
public:
  explicit lazy_reads(const std::vector<at::Tensor>& tensors);
  lazy_reads(const lazy_reads&) = delete;
  lazy_reads& operator=(const lazy_reads&) = delete;

private:
  c10::impl::ExcludeDispatchKeyGuard without_marks_;
};

}  // namespace troupe
