#include "backends/torch/reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>

#include "backends/torch/collective_wait.hpp"
#include "backends/torch/tensor.hpp"
#include "messages/failure.hpp"

namespace troupe {

namespace {

constexpr std::size_t alignment = 64;  // bytes; keeps every gradient on cache lines of its own
constexpr std::size_t word_numbers = 2;

std::size_t aligned(std::size_t elements, std::size_t element_bytes) {
  const auto step = std::max<std::size_t>(alignment / element_bytes, 1);
  return (elements + step - 1) / step * step;
}

// The layout that autograd keeps for gradients: that of the parameter when it is dense.
std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty_like(parameter, at::MemoryFormat::Contiguous).strides().vec();
}

}  // namespace

struct reducer::state : std::enable_shared_from_this<reducer::state> {
  struct member {
    parameter what;
    at::Tensor place;  // in bucket memory; undefined while it takes no part
    std::size_t in_bucket = 0;
    bool taking_part = false;  // required a gradient when the buckets were laid out
    bool placed = false;       // its gradient is (or was, in this window) in its place
    int arrivals = 0;          // in the backward in progress
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor{})) accumulator;
  };
  struct bucket {
    std::vector<std::size_t> members;
    std::uint64_t optimizers = 1;
    at::Tensor all;   // gradients and word
    at::Tensor word;  // undefined: carries none
    std::size_t missing = 0;
    work_ptr sum;  // in flight or done in this backward
  };

  std::vector<member> members;
  std::vector<bucket> buckets;
  std::vector<std::size_t> order;  // of members, in the order in which they are laid out
  std::vector<std::size_t> trace;  // of members, as gradients arrived in the first steps
  std::vector<bool> stepped;       // by optimizer: has finished a step
  bool traced = false;
  std::shared_ptr<communicator> world;
  reducer_options options;
  figures seen;

  bool armed = false;
  bool held_back = false;
  std::int32_t optimizer = 0;
  word mine;
  std::vector<std::size_t> leaving;  // buckets of the backward in progress, in order
  std::size_t next = 0;
  std::exception_ptr error;

  void listen(std::size_t index);
  void lay_out();
  bucket& bucket_for(std::size_t index, std::vector<std::size_t>& open);
  void allocate(bucket& one, bool with_word);
  bool membership_changed() const;
  void share_trace();
  bool settle(member& one);
  void arrived(std::size_t index) noexcept;
  void leave(bucket& one);
  void fill_word(bucket& one);
  word read_word(const bucket& one);
  word exchange_word_alone();
};

// Installs the hook that autograd calls behind each accumulation. It holds on to nothing.
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

// The bucket that takes the member: the last one opened for the same optimizers and dtype, while
// there is room. `open` holds one bucket per kind.
reducer::state::bucket& reducer::state::bucket_for(std::size_t index,
                                                   std::vector<std::size_t>& open) {
  const auto& one = members[index].what;
  const auto bytes_of = [&](const bucket& b) {
    std::size_t bytes = 0;
    for (const auto i : b.members) bytes += members[i].what.tensor.nbytes();
    return bytes;
  };
  for (auto place = open.begin(); place != open.end(); ++place) {
    auto& known = buckets[*place];
    const auto& first = members[known.members.front()].what;
    if (known.optimizers != one.optimizers ||
        first.tensor.scalar_type() != one.tensor.scalar_type())
      continue;
    const auto room = *place == 0 ? options.first_bucket_bytes : options.bucket_bytes;
    if (bytes_of(known) + one.tensor.nbytes() <= room) return known;
    open.erase(place);
    break;
  }
  open.push_back(buckets.size());
  auto& fresh = buckets.emplace_back();
  fresh.optimizers = one.optimizers;
  return fresh;
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
        options_of);
  };
  one.all = view(0, {static_cast<std::int64_t>(elements)}, {1});
  one.all.zero_();
  if (with_word) one.word = view(word_at, {static_cast<std::int64_t>(elements - word_at)}, {1});
  for (std::size_t i = 0; i < one.members.size(); ++i) {
    auto& held = members[one.members[i]];
    held.place = view(offsets[i], held.what.tensor.sizes(), gradient_strides(held.what.tensor));
  }
}

// Gradients that are there move along: they are what earlier micro-batches of a window left.
void reducer::state::lay_out() {
  const at::NoGradGuard no_grad;
  buckets.clear();
  ++seen.rebuilt;
  seen.buckets.clear();
  std::vector<std::size_t> open;
  for (const auto index : order) {
    auto& one = members[index];
    one.taking_part = one.what.tensor.requires_grad();
    one.place = at::Tensor{};
    if (!one.taking_part) continue;
    listen(index);
    auto& home = bucket_for(index, open);
    home.members.push_back(index);
    one.in_bucket = static_cast<std::size_t>(&home - buckets.data());
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    std::uint64_t later = 0;
    for (auto j = i + 1; j < buckets.size(); ++j) later |= buckets[j].optimizers;
    allocate(buckets[i], (buckets[i].optimizers & ~later) != 0);
    seen.buckets.push_back(buckets[i].members.size());
  }
  for (auto& one : members) {
    one.placed = false;
    if (one.taking_part) settle(one);
  }
}

// Rank 0's first steps say in which order gradients arrive.
void reducer::state::share_trace() {
  traced = true;
  for (const auto index : order)
    if (std::find(trace.begin(), trace.end(), index) == trace.end()) trace.push_back(index);
  std::vector<std::int64_t> sent(trace.begin(), trace.end());
  wait_for(*world, world->broadcast({sent.data(), sent.size(), dtype::i64}, 0));
  order.assign(sent.begin(), sent.end());
}

// Brings the member's gradient into its place. False: there is none.
bool reducer::state::settle(member& one) {
  auto& grad = one.what.tensor.mutable_grad();
  if (!grad.defined()) return false;
  if (grad.is_same(one.place)) return true;
  if (grad.layout() != c10::kStrided)
    throw user_error(
        errc::job_failed,
        fmt::format("parameter {} has a sparse gradient, which ranks cannot sum: build "
                    "its layer with sparse(false)",
                    one.what.name));
  if (grad.const_data_ptr() != one.place.const_data_ptr()) {
    const at::NoGradGuard no_grad;
    one.place.copy_(grad);
    if (one.placed) ++seen.replaced;
  }
  one.placed = true;
  grad = one.place;
  return true;
}

void reducer::state::arrived(std::size_t index) noexcept {
  if (error) return;
  try {
    auto& one = members[index];
    if (!one.taking_part) return;
    settle(one);
    if (!armed) return;
    auto& home = buckets[one.in_bucket];
    if (one.arrivals++ > 0) {
      if (home.sum)
        throw user_error(errc::job_failed,
                         fmt::format("the gradient of {} arrived twice in one backward hook, when "
                                     "it was on its way already: set "
                                     "data_parallel_options::overlap to false",
                                     one.what.name));
      return;
    }
    if (!traced) trace.push_back(index);
    if (home.missing > 0) --home.missing;
    if (!options.overlap || held_back) return;
    while (next < leaving.size() && buckets[leaving[next]].missing == 0) {
      leave(buckets[leaving[next++]]);
      ++seen.early;
    }
  } catch (...) {
    error = std::current_exception();
  }
}

void reducer::state::leave(bucket& one) {
  const at::NoGradGuard no_grad;
  for (const auto index : one.members)
    if (!settle(members[index])) members[index].place.zero_();
  if (one.word.defined()) fill_word(one);
  one.sum = world->all_reduce(buffer_of(one.all), reduction::sum);
}

void reducer::state::fill_word(bucket& one) {
  std::vector<double> numbers{mine.stop ? 1.0 : 0.0, mine.loss};
  for (const auto& each : members)
    numbers.push_back(each.taking_part && each.what.tensor.grad().defined() ? 1 : 0);
  one.word.copy_(at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())},
                               at::TensorOptions{}.dtype(c10::kDouble)));
}

reducer::word reducer::state::read_word(const bucket& one) {
  const auto numbers = one.word.to(c10::kDouble);
  const auto* number = numbers.const_data_ptr<double>();
  for (std::size_t i = 0; i < members.size(); ++i) {
    auto& each = members[i];
    if (!each.taking_part || !(buckets[each.in_bucket].optimizers >> optimizer & 1)) continue;
    each.placed = number[word_numbers + i] > 0;
    each.what.tensor.mutable_grad() = each.placed ? each.place : at::Tensor{};
  }
  return {number[0] > 0, number[1]};
}

// Every parameter is frozen.
reducer::word reducer::state::exchange_word_alone() {
  double numbers[word_numbers] = {mine.stop ? 1.0 : 0.0, mine.loss};
  wait_for(*world, world->all_reduce({numbers, word_numbers, dtype::f64}, reduction::sum));
  return {numbers[0] > 0, numbers[1]};
}

reducer::reducer(std::vector<parameter> parameters, std::shared_ptr<communicator> world,
                 reducer_options options)
    : state_(std::make_shared<state>()) {
  auto& s = *state_;
  s.world = std::move(world);
  s.options = options;
  std::uint64_t all = 1;
  for (auto& each : parameters) {
    if (each.optimizers == 0) each.optimizers = 1;
    all |= each.optimizers;
    if (!each.tensor.is_cpu() || each.tensor.layout() != c10::kStrided || !each.tensor.is_leaf())
      throw user_error(errc::job_failed,
                       fmt::format("parameter {} cannot be trained data-parallel: it is not a "
                                   "dense leaf on the CPU",
                                   each.name));
    s.members.emplace_back().what = std::move(each);
  }
  for (auto bits = all; bits != 0; bits >>= 1) s.stepped.push_back((bits & 1) == 0);
  s.order.resize(s.members.size());
  std::iota(s.order.rbegin(), s.order.rend(), 0);
  s.lay_out();
  s.seen.rebuilt = 0;
}

reducer::~reducer() {
  const auto flying = std::any_of(
      state_->buckets.begin(), state_->buckets.end(),
      [](const auto& b) { return b.sum && b.sum->poll().status == work_status::pending; });
  if (!flying) return;
  state_->world->abort("a rank ended in the middle of a step");
  await_quiescence(*state_->world);
}

void reducer::zero(std::int32_t optimizer) {
  auto& s = *state_;
  if (s.armed) throw internal_error("reducer: zero inside a backward");
  for (auto& one : s.members) {
    if (!(one.what.optimizers >> optimizer & 1)) continue;
    one.what.tensor.mutable_grad() = at::Tensor{};
    one.placed = false;
  }
  s.held_back = false;
  const bool first_steps_done =
      !s.traced && std::find(s.stepped.begin(), s.stepped.end(), false) == s.stepped.end();
  if (first_steps_done) s.share_trace();
  if (first_steps_done || s.membership_changed()) s.lay_out();
}

void reducer::begin(std::int32_t optimizer, const word& mine) {
  auto& s = *state_;
  if (s.armed) throw internal_error("reducer: begin inside a backward");
  s.armed = true;
  s.optimizer = optimizer;
  s.mine = mine;
  s.next = 0;
  s.leaving.clear();
  for (auto& one : s.members) one.arrivals = 0;
  for (std::size_t i = 0; i < s.buckets.size(); ++i) {
    auto& one = s.buckets[i];
    if (!(one.optimizers >> optimizer & 1)) continue;
    one.missing = one.members.size();
    one.sum = nullptr;
    s.leaving.push_back(i);
  }
}

reducer::word reducer::finish() {
  auto& s = *state_;
  if (!s.armed) throw internal_error("reducer: finish without begin");
  s.armed = false;
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
  if (static_cast<std::size_t>(s.optimizer) < s.stepped.size()) s.stepped[s.optimizer] = true;
  if (s.leaving.empty()) return s.exchange_word_alone();
  for (; s.next < s.leaving.size(); ++s.next) s.leave(s.buckets[s.leaving[s.next]]);
  for (const auto index : s.leaving) wait_for(*s.world, s.buckets[index].sum);
  return s.read_word(s.buckets[s.leaving.back()]);
}

void reducer::abandon() noexcept {
  state_->armed = false;
  state_->error = nullptr;
}

void reducer::hold_back() { state_->held_back = true; }

reducer::figures reducer::seen() const { return state_->seen; }

}  // namespace troupe
