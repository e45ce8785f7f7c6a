#include "troupe/detail/reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/collective_wait.hpp"
#include "backends/torch/reducer_state.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/communicator.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

bool same_elements(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

}  // namespace

// Whether its gradient can be summed in place: no other tensor shares the memory. (Autograd shares
// memory between gradients, e.g. of two leaves that are added as views.)
bool reducer::state::can_stay(const member& one) {
  const auto& grad = one.what.tensor.grad();
  return one.stays && grad.storage().use_count() == 1 && !grad.requires_grad() &&
         grad.scalar_type() == one.what.tensor.scalar_type() &&
         grad.sizes() == one.what.tensor.sizes() && grad.strides() == one.strides;
}

const at::Tensor& reducer::state::place_of(member& one) {
  if (!one.place.defined())
    one.place = at::empty_strided(one.what.tensor.sizes(), one.strides,
                                  one.what.tensor.options().requires_grad(false));
  return one.place;
}

// Puts the member's gradient into the memory that is summed. False: it has none.
bool reducer::state::settle(member& one) {
  auto& grad = one.what.tensor.mutable_grad();
  if (!grad.defined()) return false;
  if (grad.is_same(one.held)) return true;
  if (grad.layout() != c10::kStrided)
    throw user_error(
        errc::job_failed,
        fmt::format("parameter {} has a sparse gradient, which ranks cannot sum: build "
                    "its layer with sparse(false)",
                    one.what.name));
  if (apart) {
    one.held = grad;
    return true;
  }
  if (can_stay(one)) {
    one.held = grad;
    ++seen.stayed;
    return true;
  }
  const auto& place = place_of(one);
  if (!same_elements(grad, place)) {
    const at::NoGradGuard no_grad;
    // Another view of the same memory would be written to while it is read.
    place.copy_(grad.is_alias_of(place) ? grad.clone() : grad);
    if (one.placed) ++seen.replaced;
  }
  one.placed = true;
  grad = one.held = place;
  return true;
}

// Computes how often each gradient will arrive in the backward that begins.
void reducer::state::expect() {
  const auto which = static_cast<std::size_t>(now.optimizer);
  if (usage.size() <= which) usage.resize(which + 1);
  const auto& known = usage[which];
  learning = options.static_graph && !known && now.loss.defined();
  std::optional<std::unordered_set<const torch::autograd::Node*>> reached;
  if (options.find_unused_parameters && !known && now.loss.defined())
    reached = nodes_behind(now.loss);
  for (std::size_t i = 0; i < members.size(); ++i) {
    auto& one = members[i];
    one.arrivals = 0;
    one.expected = 1;
    if (known) one.expected = (*known)[i];
    if (reached && !reached->contains(one.accumulator.get())) one.expected = 0;
  }
  for (const auto index : leaving) {
    auto& one = buckets[index];
    one.left = false;
    one.sum = {};
    one.missing = static_cast<std::size_t>(
        std::count_if(one.members.begin(), one.members.end(),
                      [&](std::size_t i) { return members[i].expected > 0; }));
  }
}

void reducer::state::arrived(std::size_t index) noexcept {
  if (error) return;
  try {
    auto& one = members[index];
    if (!one.taking_part) return;
    if (!one.stays) settle(one);
    // A parameter of no optimizer has the buckets of the first one.
    if (!armed || !of_optimizer(one)) return;
    ++one.arrivals;
    if (one.in_bucket == none) return;
    auto& home = buckets[one.in_bucket];
    if (home.left)
      throw user_error(
          errc::job_failed,
          fmt::format("a gradient of {} arrived when its bucket was on its way already, as number "
                      "{} of {} expected in this backward hook: set strategy.{} to false",
                      one.what.name, one.arrivals, one.expected,
                      options.static_graph ? "static_graph" : "overlap"));
    if (one.arrivals == 1 && !traced && std::ranges::find(trace, index) == trace.end())
      trace.push_back(index);  // once, also if several optimizers have it
    if (one.arrivals == one.expected) --home.missing;
    // A read runs what the device collected: it waits until backward has ended.
    if (!options.overlap || held_back || learning || !sums() || apart) return;
    // Autograd's thread of a device works for all ranks that share it: a hook might wait for them.
    if (options.hook && !in_host_memory(one.what.tensor)) return;
    // Autograd still holds other references to a gradient that has just arrived.
    const auto fresh = one.stays ? one.in_bucket : none;
    while (next < leaving.size() && buckets[leaving[next]].missing == 0 && leaving[next] != fresh) {
      leave(leaving[next++]);
      ++seen.early;
    }
  } catch (...) {
    error = std::current_exception();
  }
}

// static_graph: records the first backward, and checks that later ones are the same.
void reducer::state::check_usage() {
  if (!options.static_graph || !now.loss.defined()) return;
  auto& known = usage[static_cast<std::size_t>(now.optimizer)];
  if (learning) {
    known.emplace();
    for (const auto& one : members) known->push_back(of_optimizer(one) ? one.arrivals : 1);
    return;
  }
  for (const auto& one : members)
    if (of_optimizer(one) && one.arrivals != one.expected)
      throw user_error(errc::job_failed,
                       fmt::format("{} got {} gradients in this backward and {} in the first: the "
                                   "graph changes, set strategy.static_graph to false",
                                   one.what.name, one.arrivals, one.expected));
}

void reducer::state::fetch(const bucket& one) {
  std::vector<at::Tensor> gradients, places;
  for (const auto i : one.members) {
    const auto& each = members[i];
    if (each.held.is_same(each.place)) continue;  // zeros
    gradients.push_back(each.held);
    places.push_back(each.place);
  }
  const auto read = to_host(gradients);
  for (std::size_t i = 0; i < read.size(); ++i) places[i].copy_(read[i]);
}

void reducer::state::leave(std::size_t index) {
  const at::NoGradGuard no_grad;
  auto& one = buckets[index];
  for (const auto i : one.members) {
    auto& each = members[i];
    if (settle(each)) continue;
    each.held = place_of(each);
    each.held.zero_();
  }
  if (apart) fetch(one);
  one.left = true;
  // Waits until the device has computed them.
  if (one.on_device.defined()) one.gradients.copy_(one.on_device);
  if (options.hook) {
    const auto at = static_cast<std::size_t>(std::find(leaving.begin(), leaving.end(), index) -
                                             leaving.begin());
    const gradient_bucket handed{*world,        at,        at + 1 == leaving.size(),
                                 one.gradients, one.parts, one.kept};
    timed([&] { one.sum = options.hook(handed); });
    return;
  }
  if (one.word.defined()) {
    auto numbers = numbers_of_word();
    one.word.copy_(at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())},
                                 at::TensorOptions{}.dtype(c10::kDouble)));
  }
  auto all = one.all;
  if (!all.defined()) {
    const auto& lone = members[one.members.front()].held;
    all = lone.as_strided({lone.numel()}, {1});
  }
  timed([&] { one.sum.pending = world->all_reduce(memory_of(all), reduction::sum); });
  // With the rounding of a bucket that carries it, which other communicators have.
  if (!one.word.defined() && index == leaving.back())
    send_word(by_events() ? at::kDouble : all.scalar_type());
}

// Memory on a device is ready after what this thread has submitted so far.
buffer reducer::state::memory_of(at::Tensor& row) const {
  if (!on_devices) return buffer_of(row);
  buffer memory{row.mutable_data_ptr(), static_cast<std::size_t>(row.numel()), dtype_of(row)};
  memory.device = row.device().index();
  if (options.devices)
    memory.ready = options.devices->record(options.devices->stream(row.device()));
  return memory;
}

// The sum of a bucket is there: for the host, or for what is submitted to the current stream.
void reducer::state::complete(bucket& one) {
  if (!one.sum.pending) return;
  if (!by_events()) return wait_for(*world, one.sum.pending);
  device_event_ptr point;
  try {
    point = one.sum.pending->on_device();
  } catch (...) {
    if (world->aborted()) await_quiescence(*world);
    throw;
  }
  if (!point) return;
  const auto device = members[one.members.front()].what.tensor.device();
  options.devices->block(options.devices->stream(device), *point);
  on_their_way.push_back(std::exchange(one.sum.pending, nullptr));
}

void reducer::state::settle() {
  for (const auto& one : on_their_way) wait_for(*world, one);
  on_their_way.clear();
}

std::vector<double> reducer::state::numbers_of_word() const {
  std::vector<double> numbers{now.mine.stop ? 1.0 : 0.0, now.mine.loss,
                              now.mine.logged ? 1.0 : 0.0};
  for (const auto& each : members)
    numbers.push_back(each.taking_part && each.what.tensor.grad().defined() ? 1 : 0);
  return numbers;
}

reducer::word reducer::state::take_word(const double* numbers) {
  const auto* flags = numbers + word_numbers;
  for (std::size_t i = 0; i < members.size(); ++i) {
    auto& each = members[i];
    if (!of_optimizer(each)) continue;
    each.placed = flags[i] > 0;
    if (!each.placed)
      each.held = at::Tensor{};
    else if (apart)
      each.held = each.place.to(each.what.tensor.device());
    else if (!each.held.defined())
      each.held = place_of(each).zero_();
    each.what.tensor.mutable_grad() = each.held;
  }
  return {numbers[0] > 0, numbers[1], numbers[2] > 0};
}

reducer::word reducer::state::read_word(const bucket& one) {
  return take_word(to_host(one.word).to(c10::kDouble).const_data_ptr<double>());
}

// Sends the status as an operation of its own, because no bucket carries it.
void reducer::state::send_word(at::ScalarType type) {
  lone_word = at::tensor(numbers_of_word(), at::TensorOptions{}.dtype(c10::kDouble)).to(type);
  timed([&] { lone_word_sum = host->all_reduce(buffer_of(lone_word), reduction::sum); });
}

reducer::word reducer::state::receive_word() {
  timed([&] { wait_for(*host, lone_word_sum); });
  lone_word_sum = nullptr;
  return take_word(lone_word.to(c10::kDouble).const_data_ptr<double>());
}

reducer::reducer(std::vector<parameter> parameters, std::shared_ptr<communicator> world,
                 reducer_options options)
    : state_(std::make_shared<state>()) {
  auto& s = *state_;
  s.options = std::move(options);
  s.seen.caps.first = s.options.first_bucket_bytes;
  if (s.options.bucket_bytes) s.seen.caps.others = *s.options.bucket_bytes;
  std::uint64_t all = 1;
  const auto place = parameters.empty() ? host_device() : parameters.front().tensor.device();
  s.host = host_collectives(world);
  // Communication hooks compute in memory of the host.
  s.on_devices = !s.options.hook && carries(*world, c10::DeviceTypeName(place.type(), true));
  s.world = s.on_devices ? std::move(world) : s.host;
  s.apart = !parameters.empty() && !in_memory(parameters.front().tensor);
  for (auto& each : parameters) {
    if (each.optimizers == 0) each.optimizers = 1;
    all |= each.optimizers;
    if (each.tensor.layout() != c10::kStrided || !each.tensor.is_leaf() ||
        each.tensor.device() != place)
      throw user_error(errc::job_failed,
                       fmt::format("parameter {} cannot be trained data-parallel: it is not a "
                                   "dense leaf on the rank's device",
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
  const auto in_flight = [](const work_ptr& one) {
    return one && one->poll().status == work_status::pending;
  };
  const auto flying = in_flight(state_->lone_word_sum) ||
                      std::any_of(state_->buckets.begin(), state_->buckets.end(),
                                  [&](const auto& b) { return in_flight(b.sum.pending); });
  if (flying) state_->world->abort("a rank ended in the middle of a step");
  try {
    state_->settle();
  } catch (...) {
    // The group was aborted, and its memory is at rest.
  }
  if (flying) await_quiescence(*state_->world);
}

void reducer::zero(std::int32_t optimizer) {
  auto& s = *state_;
  if (s.armed) throw internal_error("reducer: zero inside a backward");
  for (auto& one : s.members) {
    if (!(one.what.optimizers >> optimizer & 1)) continue;
    one.what.tensor.mutable_grad() = one.held = at::Tensor{};
    one.placed = false;
  }
  const bool first_steps_done =
      !s.traced && std::find(s.stepped.begin(), s.stepped.end(), false) == s.stepped.end();
  if (first_steps_done) s.learn_from_first_steps();
  if (!first_steps_done && !s.membership_changed()) return;
  s.settle();  // the memory of the buckets is given back
  s.lay_out();
}

void reducer::begin(const last_backward& what) {
  auto& s = *state_;
  if (s.armed) throw internal_error("reducer: begin inside a backward");
  if (s.any_joined()) {  // a hook inside a window of micro-batches has unfrozen a parameter
    s.settle();
    s.lay_out();
  }
  s.armed = true;
  s.now = what;
  s.next = 0;
  s.leaving.clear();
  for (std::size_t i = 0; i < s.buckets.size(); ++i)
    if (s.buckets[i].optimizers >> what.optimizer & 1) s.leaving.push_back(i);
  s.expect();
}

reducer::word reducer::finish() {
  auto& s = *state_;
  if (!s.armed) throw internal_error("reducer: finish without begin");
  s.armed = s.held_back = false;
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
  s.check_usage();
  s.now.loss = at::Tensor{};
  const at::NoGradGuard no_grad;
  s.seen.stepped = true;
  if (static_cast<std::size_t>(s.now.optimizer) < s.stepped.size())
    s.stepped[static_cast<std::size_t>(s.now.optimizer)] = true;
  if (!s.sums())
    for (auto& one : s.members)
      if (s.of_optimizer(one)) s.settle(one);
  if (s.leaving.empty() || !s.sums()) {
    s.send_word();
    return s.receive_word();
  }
  for (; s.next < s.leaving.size(); ++s.next) s.leave(s.leaving[s.next]);
  s.timed([&] { s.settle(); });
  for (const auto index : s.leaving) {
    auto& one = s.buckets[index];
    s.timed([&] { s.complete(one); });
    if (!one.sum.sum) {
      if (one.on_device.defined()) one.on_device.copy_(one.gradients);
      continue;
    }
    const auto summed = one.sum.sum();
    if (summed.numel() != one.gradients.numel())
      throw user_error(errc::job_failed,
                       fmt::format("the communication hook returned {} elements for a bucket of "
                                   "{}: return as many",
                                   summed.numel(), one.gradients.numel()));
    if (summed.const_data_ptr() != one.gradients.const_data_ptr())
      one.gradients.copy_(summed.reshape({-1}));
    if (one.on_device.defined()) one.on_device.copy_(one.gradients);
  }
  if (s.options.hook) s.send_word();
  return s.lone_word_sum ? s.receive_word() : s.read_word(s.buckets[s.leaving.back()]);
}

void reducer::settle() { state_->settle(); }

void reducer::abandon() noexcept {
  state_->armed = state_->held_back = false;
  state_->error = nullptr;
  state_->now.loss = at::Tensor{};
}

void reducer::hold_back() { state_->held_back = true; }

const reducer::figures& reducer::seen() const { return state_->seen; }

}  // namespace troupe
