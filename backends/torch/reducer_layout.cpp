#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/collective_wait.hpp"
#include "backends/torch/reducer_state.hpp"

namespace troupe {

namespace {

constexpr std::size_t alignment = 64;  // bytes; keeps every gradient on cache lines of its own

std::size_t aligned(std::size_t elements, std::size_t element_bytes) {
  const auto step = std::max<std::size_t>(alignment / element_bytes, 1);
  return (elements + step - 1) / step * step;
}

// The strides that autograd uses for a gradient: the parameter's, if that is dense.
std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty_like(parameter, at::MemoryFormat::Contiguous).strides().vec();
}

template <std::size_t Rounds, class F>
std::chrono::nanoseconds median_of(F&& time_one) {
  std::array<std::chrono::nanoseconds, Rounds> times;
  for (auto& one : times) one = time_one();
  std::nth_element(times.begin(), times.begin() + Rounds / 2, times.end());
  return times[Rounds / 2];
}

}  // namespace

// Installs the hook that autograd calls after each accumulation. The hook owns nothing.
void reducer::state::listen(std::size_t index) {
  auto& one = members[index];
  if (one.accumulator || !one.what.tensor.requires_grad()) return;
  one.accumulator = torch::autograd::impl::grad_accumulator(one.what.tensor);
  using list = torch::autograd::variable_list;
  one.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [self = weak_from_this(), index](const list& outputs, const list&) {
        if (const auto alive = self.lock()) alive->arrived(index);
        return outputs;
      }));
}

bool reducer::state::membership_changed() const {
  return std::any_of(members.begin(), members.end(), [](const member& one) {
    return one.taking_part != one.what.tensor.requires_grad();
  });
}

bool reducer::state::any_joined() const {
  return std::any_of(members.begin(), members.end(), [](const member& one) {
    return !one.taking_part && one.what.tensor.requires_grad();
  });
}

void reducer::state::allocate(bucket& one, bool with_word) {
  const auto options_of = members[one.members.front()].what.tensor.options().requires_grad(false);
  const auto width = options_of.dtype().itemsize();
  std::vector<std::size_t> offsets;
  std::size_t elements = 0;
  for (const auto index : one.members) {
    offsets.push_back(elements);
    elements += aligned(members[index].what.tensor.numel(), width);
  }
  const auto word_at = elements;
  if (with_word) elements += word_numbers + members.size();
  const auto memory = world->allocate(std::max<std::size_t>(elements, 1) * width);
  const auto view = [&](std::size_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return at::from_blob(
        static_cast<std::byte*>(memory.get()) + offset * width, sizes, strides, [memory](void*) {},
        on_devices ? options_of : options_of.device(host_device()));
  };
  const auto row = [&](std::size_t from, std::size_t to) {
    return view(from, {static_cast<std::int64_t>(to - from)}, {1});
  };
  one.all = row(0, elements);
  one.all.zero_();
  one.gradients = row(0, word_at);
  if (with_word) one.word = row(word_at, elements);
  const bool copied =
      !apart && !on_devices && !in_host_memory(members[one.members.front()].what.tensor);
  if (copied) one.on_device = at::zeros({static_cast<std::int64_t>(word_at)}, options_of);
  for (std::size_t i = 0; i < one.members.size(); ++i) {
    auto& held = members[one.members[i]];
    const auto& parameter = held.what.tensor;
    const auto offset = static_cast<std::int64_t>(offsets[i]);
    held.place = copied ? one.on_device.as_strided(parameter.sizes(), held.strides, offset)
                        : view(offsets[i], parameter.sizes(), held.strides);
    one.parts.push_back({parameter, offset, held.place.strides().vec()});
  }
}

// Existing gradients, of earlier micro-batches of the window, are copied to the new layout.
void reducer::state::lay_out() {
  const at::NoGradGuard no_grad;
  ++seen.rebuilt;
  const bool in_place = world->shares_memory() && !options.hook;
  bool changed = false;
  std::vector<std::size_t> taking_part;
  std::vector<bucket_item> items;
  for (std::size_t i = 0; i < members.size(); ++i) {
    auto& one = members[i];
    changed |= one.taking_part != one.what.tensor.requires_grad();
    one.taking_part = one.what.tensor.requires_grad();
    one.strides = gradient_strides(one.what.tensor);
    one.place = one.held = at::Tensor{};
    one.in_bucket = none;
    one.stays = summed_elsewhere(one) || (in_place && in_host_memory(one.what.tensor) &&
                                          one.what.tensor.nbytes() >= options.stays_from_bytes);
    listen(i);
    items.push_back({one.what.tensor.nbytes(), static_cast<int>(one.what.tensor.scalar_type()),
                     one.what.optimizers, one.stays});
  }
  std::copy_if(order.begin(), order.end(), std::back_inserter(taking_part), [&](std::size_t i) {
    return members[i].taking_part && !summed_elsewhere(members[i]);
  });
  if (changed) usage.clear();
  buckets.clear();
  seen.buckets.clear();
  for (auto& list : cut_into_buckets(taking_part, items, seen.caps)) {
    for (const auto index : list) members[index].in_bucket = buckets.size();
    seen.buckets.push_back(list.size());
    auto& fresh = buckets.emplace_back();
    fresh.optimizers = items[list.front()].optimizers;
    fresh.members = std::move(list);
  }
  std::uint64_t later = 0;
  for (auto one = buckets.rbegin(); one != buckets.rend(); ++one) {
    if (!members[one->members.front()].stays)
      allocate(*one, !options.hook && !by_events() && (one->optimizers & ~later) != 0);
    later |= one->optimizers;
  }
  for (auto& one : members) {
    one.placed = false;
    if (one.taking_part) settle(one);
  }
}

// Rank 0's first steps give the order of buckets, and its measured times give their size.
void reducer::state::learn_from_first_steps() {
  traced = true;
  // What a hook returns may depend on which gradients share a bucket: neither on measured times nor
  // on whether a first step has been traced, which a resumed job has not.
  if (buckets.empty() || options.hook) return;
  if (!options.bucket_bytes && !on_devices) measure();
  for (const auto index : order)
    if (std::find(trace.begin(), trace.end(), index) == trace.end()) trace.push_back(index);
  std::vector<std::int64_t> sent(trace.begin(), trace.end());
  sent.push_back(static_cast<std::int64_t>(seen.caps.first));
  sent.push_back(static_cast<std::int64_t>(seen.caps.others));
  wait_for(*host, host->broadcast({sent.data(), sent.size(), dtype::i64}, 0));
  seen.caps.others = static_cast<std::size_t>(sent.back());
  sent.pop_back();
  seen.caps.first = static_cast<std::size_t>(sent.back());
  sent.pop_back();
  order.assign(sent.begin(), sent.end());
}

// Times a few all_reduces of registered memory while no rank computes.
void reducer::state::measure() {
  constexpr std::size_t large = std::size_t{1} << 20;
  const auto memory = world->allocate(large);
  std::fill_n(static_cast<float*>(memory.get()), large / sizeof(float), 0.0F);
  const auto time_of = [&](std::size_t bytes) {
    return [&, bytes] {
      const auto before = clock();
      wait_for(*world, world->all_reduce({memory.get(), bytes / sizeof(float), dtype::f32},
                                         reduction::sum));
      return clock() - before;
    };
  };
  time_of(large)();
  const std::chrono::duration<double> small_takes = median_of<9>(time_of(1024));
  const std::chrono::duration<double> large_takes = median_of<3>(time_of(large));
  seen.latency_seconds = small_takes.count();
  const auto moving = large_takes - small_takes;
  seen.bytes_per_second = moving.count() > 0 ? static_cast<double>(large) / moving.count() : 0;
  seen.caps = tuned_caps(seen.latency_seconds, seen.bytes_per_second);
}

std::unordered_set<const torch::autograd::Node*> nodes_behind(const at::Tensor& loss) {
  std::unordered_set<const torch::autograd::Node*> found;
  std::vector<const torch::autograd::Node*> open;
  const auto meet = [&](const torch::autograd::Node* node) {
    if (node && found.insert(node).second) open.push_back(node);
  };
  if (const auto first = torch::autograd::impl::gradient_edge(loss).function) meet(first.get());
  while (!open.empty()) {
    const auto* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) meet(edge.function.get());
  }
  return found;
}

}  // namespace troupe
