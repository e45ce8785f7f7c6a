#include "troupe/detail/comm_hook.hpp"

#include <ATen/ops/from_blob.h>

#include "troupe/detail/powersgd.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

std::vector<at::Tensor> gradient_bucket::gradients() const {
  std::vector<at::Tensor> views;
  for (const auto& one : *parts_)
    views.push_back(buffer_.as_strided(one.parameter.sizes(), one.strides,
                                       buffer_.storage_offset() + one.offset));
  return views;
}

std::vector<at::Tensor> gradient_bucket::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& one : *parts_) all.push_back(one.parameter);
  return all;
}

at::Tensor gradient_bucket::scratch(c10::ScalarType type) const {
  auto& kept = (*kept_)[type];
  if (kept.defined() && kept.numel() == buffer_.numel()) return kept;
  const auto bytes = static_cast<std::size_t>(buffer_.numel()) * c10::elementSize(type);
  const auto memory = world_->allocate(std::max<std::size_t>(bytes, 1));
  kept = at::from_blob(
      memory.get(), {buffer_.numel()}, {1}, [memory](void*) {}, at::TensorOptions{}.dtype(type));
  return kept;
}

gradient_bucket gradient_bucket::with(at::Tensor buffer) const {
  auto other = *this;
  other.buffer_ = std::move(buffer);
  return other;
}

bucket_future allreduce_hook(const gradient_bucket& bucket) {
  auto buffer = bucket.buffer();
  return {bucket.world().all_reduce(buffer_of(buffer), reduction::sum), {}};
}

bucket_future noop_hook(const gradient_bucket&) { return {}; }

namespace {

comm_hook compressed(c10::ScalarType type, comm_hook inner) {
  return [type, inner = std::move(inner)](const gradient_bucket& bucket) -> bucket_future {
    if (bucket.buffer().scalar_type() == type) return inner(bucket);
    auto narrow = bucket.scratch(type);
    narrow.copy_(bucket.buffer());
    auto promised = inner(bucket.with(narrow));
    return {promised.pending, [wide = bucket.buffer(), narrow, sum = std::move(promised.sum)] {
              wide.copy_(sum ? sum() : narrow);
              return wide;
            }};
  };
}

}  // namespace

comm_hook f16_compress_wrapper(comm_hook inner) { return compressed(at::kHalf, std::move(inner)); }
comm_hook bf16_compress_wrapper(comm_hook inner) {
  return compressed(at::kBFloat16, std::move(inner));
}

comm_hook comm_hook_of(const gradient_options& from) {
  switch (from.comm_hook) {
    case comm_hook_kind::allreduce: return {};
    case comm_hook_kind::f16_compress: return f16_compress_wrapper(allreduce_hook);
    case comm_hook_kind::bf16_compress: return bf16_compress_wrapper(allreduce_hook);
    case comm_hook_kind::powersgd:
      return [state = std::make_shared<powersgd_state>(from.powersgd)](
                 const gradient_bucket& bucket) { return powersgd_hook(*state, bucket); };
    case comm_hook_kind::noop: return noop_hook;
  }
  throw internal_error("the kind of the communication hook is unknown");
}

}  // namespace troupe
