#include "troupe/detail/powersgd.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/torch/collective_wait.hpp"
#include "troupe/detail/tensor.hpp"

namespace troupe {

namespace {

// Gram-Schmidt where Python takes it: for few columns, and for types that LAPACK does not know.
void orthogonalize(at::Tensor& matrix, double epsilon) {
  const auto columns = matrix.size(1);
  if (columns > 2 && matrix.element_size() > 2) {
    matrix.copy_(std::get<0>(at::linalg_qr(matrix, "reduced")));
    return;
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    auto column = matrix.narrow(1, i, 1);
    const auto length = column.norm();
    if (epsilon == 0 && length.item<double>() == 0)
      column.zero_();
    else
      column.div_(length + epsilon);
    if (i + 1 == columns) break;
    auto rest = matrix.narrow(1, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum(0, /*keepdim=*/true) * column);
  }
}

}  // namespace

powersgd_state::powersgd_state(powersgd_options how) : how_(how), seeds_(how.seed) {}
powersgd_state::powersgd_state(powersgd_state&&) noexcept = default;
powersgd_state::~powersgd_state() = default;

// numpy's RandomState(seed).randint(1000000000): all ranks draw the same, and Python does too.
std::uint32_t powersgd_state::draw_seed() {
  constexpr std::uint32_t mask = (1U << 30) - 1;
  for (;;)
    if (const auto drawn = static_cast<std::uint32_t>(seeds_()) & mask; drawn < 1'000'000'000)
      return drawn;
}

at::Tensor powersgd_state::row(const gradient_bucket& bucket, std::int64_t elements) {
  auto& kept = rows_[bucket.index()];
  const auto type = bucket.buffer().scalar_type();
  if (kept.defined() && kept.numel() == elements && kept.scalar_type() == type) return kept;
  const auto bytes = static_cast<std::size_t>(elements) * c10::elementSize(type);
  const auto place = bucket.world().allocate(std::max<std::size_t>(bytes, 1));
  kept = at::from_blob(
      place.get(), {elements}, {1}, [place](void*) {}, at::TensorOptions{}.dtype(type));
  return kept;
}

/// One bucket on its way. What is sent is one row: plain gradients and Ps, then Qs.
struct powersgd_exchange {
  struct item {
    at::Tensor gradient;  // in the bucket
    at::Tensor matrix;    // the same as rows; a copy if its strides do not allow a view
    powersgd_state::memory* kept;
    std::int64_t rank;
    at::Tensor p, q;     // in `row`
    at::Tensor whole{};  // the gradient with the error of the last step
  };

  powersgd_exchange(powersgd_state& state_in_use, const gradient_bucket& bucket)
      : state(&state_in_use), world(&bucket.world()), buffer(bucket.buffer()) {}

  powersgd_state* state;
  communicator* world;
  at::Tensor buffer;
  std::vector<at::Tensor> plain;
  std::vector<item> items;
  at::Tensor row;
  std::int64_t first_part = 0;  // elements of the row that are sent first

  const powersgd_options& options() const { return state->how_; }
  void sort(const gradient_bucket& bucket);
  void lay_out(const gradient_bucket& bucket);
  void draw();
  work_ptr send();
  void finish(item& one);
  at::Tensor sum();
};

// Decides for each gradient whether it is compressed. Matrices of equal shape are adjacent in
// `items`, as in Python: `draw` draws their first Q matrices in this order.
void powersgd_exchange::sort(const gradient_bucket& bucket) {
  const auto gradients = bucket.gradients();
  const auto parameters = bucket.parameters();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& one = gradients[i];
    const auto n = one.dim() == 0 || one.numel() == 0 ? 1 : one.size(0);
    const auto m = one.numel() / n;
    const auto rank = std::min<std::int64_t>({n, m, options().rank});
    const auto compressed = (n + m) * rank;
    state->elements_before_ += one.numel();
    if (one.dim() == 0 || one.numel() == 0 ||
        !(static_cast<double>(compressed) * options().min_rate < static_cast<double>(n * m))) {
      state->elements_sent_ += one.numel();
      plain.push_back(one);
      continue;
    }
    state->elements_sent_ += compressed;
    auto& kept = state->kept_[parameters[i].unsafeGetTensorImpl()];
    kept.parameter = parameters[i];
    item fresh{one, one.reshape({n, m}), &kept, rank, {}, {}};
    const auto alike = std::find_if(items.rbegin(), items.rend(), [&](const item& other) {
      return other.matrix.sizes() == fresh.matrix.sizes();
    });
    items.insert(alike == items.rend() ? items.end() : alike.base(), std::move(fresh));
  }
}

void powersgd_exchange::lay_out(const gradient_bucket& bucket) {
  std::int64_t elements = 0;
  for (const auto& one : plain) elements += one.numel();
  for (const auto& one : items) elements += one.matrix.size(0) * one.rank;
  first_part = elements;
  for (const auto& one : items) elements += one.matrix.size(1) * one.rank;
  row = state->row(bucket, elements);
  std::int64_t at = 0;
  const auto next = [&](std::int64_t count) {
    at += count;
    return row.narrow(0, at - count, count);
  };
  for (auto& one : plain) next(one.numel()).view(one.sizes()).copy_(one);
  for (auto& one : items)
    one.p = next(one.matrix.size(0) * one.rank).view({one.matrix.size(0), one.rank});
  for (auto& one : items)
    one.q = next(one.matrix.size(1) * one.rank).view({one.matrix.size(1), one.rank});
}

// One seed for all Qs of a bucket that are drawn in a step.
void powersgd_exchange::draw() {
  at::Generator draws;
  for (auto& one : items) {
    const auto& last = one.kept->q;
    if (options().warm_start && last.defined() && last.sizes() == one.q.sizes()) {
      one.q.copy_(last);
      continue;
    }
    if (!draws.defined()) draws = at::detail::createCPUGenerator(state->draw_seed());
    one.q.copy_(at::randn(one.q.sizes(), draws, one.q.options()));
  }
}

work_ptr powersgd_exchange::send() {
  draw();
  for (auto& one : items) {
    if (options().error_feedback) {
      if (one.kept->error.defined()) one.matrix.add_(one.kept->error);
      one.whole = one.matrix.clone();
    }
    orthogonalize(one.q, options().epsilon);
    at::mm_out(one.p, one.matrix, one.q);
  }
  auto sent = row.narrow(0, 0, first_part);
  return world->all_reduce(buffer_of(sent), reduction::sum);
}

// The sums of P and Q are the same on all ranks, and so is what is decided here.
void powersgd_exchange::finish(item& one) {
  auto& kept = *one.kept;
  const auto length = one.q.norm().item<double>();
  if (std::isfinite(length)) {
    at::mm_out(one.matrix, one.p, one.q.t());
    if (options().error_feedback)
      kept.error = one.whole.sub_(one.matrix, 1.0 / world->group().world);
  } else {
    one.matrix.fill_(std::nan(""));
  }
  if (options().warm_start && std::isfinite(length) && length > 0)
    kept.q = one.q.clone();
  else
    kept.q = at::Tensor{};
  if (!one.matrix.is_alias_of(one.gradient))
    one.gradient.copy_(one.matrix.view(one.gradient.sizes()));
}

at::Tensor powersgd_exchange::sum() {
  const at::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (auto& one : plain) {
    one.copy_(row.narrow(0, at, one.numel()).view(one.sizes()));
    at += one.numel();
  }
  if (items.empty()) return buffer;
  for (auto& one : items) {
    // Python's gradients are means of a rank: only epsilon sees the difference.
    if (options().epsilon != 0) one.p.mul_(world->group().world);
    orthogonalize(one.p, options().epsilon);
    at::mm_out(one.q, one.matrix.t(), one.p);
  }
  auto qs = row.narrow(0, first_part, row.numel() - first_part);
  wait_for(*world, world->all_reduce(buffer_of(qs), reduction::sum));
  for (auto& one : items) finish(one);
  return buffer;
}

bucket_future powersgd_hook(powersgd_state& state, const gradient_bucket& bucket) {
  const bool compress = state.steps_ >= state.how_.start_step;
  if (bucket.is_last()) ++state.steps_;
  if (!compress) return allreduce_hook(bucket);
  const at::NoGradGuard no_grad;
  const auto exchange = std::make_shared<powersgd_exchange>(state, bucket);
  exchange->sort(bucket);
  exchange->lay_out(bucket);
  return {exchange->send(), [exchange] { return exchange->sum(); }};
}

}  // namespace troupe
