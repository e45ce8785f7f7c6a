#include "troupe/data_parallel.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <xxhash.h>

#include <array>
#include <cstring>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/collective_wait.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

std::int64_t members(const subgroup& among, std::int32_t world) {
  return among.ranks.empty() ? world : static_cast<std::int64_t>(among.ranks.size());
}

std::int64_t place_of(std::int32_t rank, const subgroup& among) {
  if (among.ranks.empty()) return rank;
  const auto found = std::find(among.ranks.begin(), among.ranks.end(), rank);
  return found - among.ranks.begin();
}

}  // namespace

// Rank r's slice of the gathered tensor went to all ranks, so its gradient is the sum of theirs.
struct gather_with_gradients : torch::autograd::Function<gather_with_gradients> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& mine,
                            const data_parallel* how, const subgroup& among) {
    context->saved_data["how"] = reinterpret_cast<std::int64_t>(how);
    context->saved_data["among"] =
        std::vector<std::int64_t>(among.ranks.begin(), among.ranks.end());
    return how->gather(mine, among);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* how = reinterpret_cast<const data_parallel*>(context->saved_data["how"].toInt());
    subgroup among;
    for (const auto rank : context->saved_data["among"].toIntVector())
      among.ranks.push_back(static_cast<std::int32_t>(rank));
    const auto total = how->sum(gradients[0], among);
    return {total.select(0, place_of(how->rank(), among)), {}, {}};
  }
};

communicator& data_parallel::collectives() const {
  if (host_) return *host_;
  throw user_error(errc::job_failed,
                   "no collectives yet: barrier, reduce and their like work from "
                   "setup_environment on");
}

void data_parallel::model_to_device() {
  strategy::model_to_device();
  if (alone()) return;
  agree_on_module();
  if (!options_.sync_module_states) return;
  std::vector<at::Tensor> state;
  for (const auto& parameter : bare_module()->parameters())
    if (parameter.defined()) state.push_back(parameter);
  for (const auto& buffer : buffers()) state.push_back(buffer);
  broadcast_in_place(state);
}

// Checked here because different modules would otherwise show as a mismatch of a later collective.
void data_parallel::agree_on_module() {
  std::string text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined())
      text += fmt::format("{} {} [{}]\n", name, c10::toString(tensor.scalar_type()),
                          fmt::join(tensor.sizes(), ", "));
  };
  for (const auto& item : bare_module()->named_parameters()) {
    add(item.key(), item.value());
    // Gradients are summed in memory order. The stride of a dimension of one element is arbitrary.
    for (std::int64_t i = 0; item.value().defined() && i < item.value().dim(); ++i)
      if (item.value().size(i) > 1) text += fmt::format(" {}", item.value().stride(i));
  }
  for (const auto& item : bare_module()->named_buffers()) add(item.key(), item.value());
  const std::array<std::uint64_t, 1> mine{XXH3_64bits(text.data(), text.size())};
  const auto all = gather_bytes(std::as_bytes(std::span{mine}));
  for (std::size_t other = 1; other < all.size(); ++other)
    if (all[other] != all[0])
      throw user_error(errc::job_failed,
                       fmt::format("rank {}'s module has other parameters or buffers than rank "
                                   "0's (by name, dtype, shape or strides): make it alike on all "
                                   "ranks",
                                   other));
}

void data_parallel::broadcast_in_place(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  constexpr std::size_t at_once = 256;  // a communicator takes 4096 operations
  std::vector<at::Tensor> dense;
  std::vector<work_ptr> flying;
  for (const auto& tensor : tensors) {
    if (const auto n = flying.size(); n >= at_once) wait_for(collectives(), flying[n - at_once]);
    auto& one = dense.emplace_back(
        tensor.is_contiguous() && in_host_memory(tensor) ? tensor.detach() : copy_to_host(tensor));
    flying.push_back(collectives().broadcast(buffer_of(one), 0));
  }
  for (const auto& operation : flying) wait_for(collectives(), operation);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!in_host_memory(tensors[i]) || dense[i].const_data_ptr() != tensors[i].const_data_ptr())
      tensors[i].detach().copy_(dense[i]);
}

void data_parallel::setup_optimizers(optimizers& which) {
  strategy::setup_optimizers(which);
  lay_out_gradients();
}

void data_parallel::agree_on_shape(const at::Tensor& tensor, std::string_view operation,
                                   const subgroup& among) const {
  constexpr std::size_t most = 8;
  std::array<std::int64_t, most + 1> mine{};
  mine[0] = tensor.dim();
  for (std::size_t i = 0; i < most && i < tensor.sizes().size(); ++i) mine[i + 1] = tensor.size(i);
  std::vector<std::int64_t> all(mine.size() * members(among, world()));
  wait_for(collectives(), collectives().all_gather({mine.data(), mine.size(), dtype::i64},
                                                   {all.data(), all.size(), dtype::i64}, among));
  const auto text_of = [&](std::size_t member) {
    const auto* one = all.data() + member * mine.size();
    return fmt::format("({})",
                       fmt::join(one + 1, one + 1 + std::min<std::int64_t>(one[0], most), ", "));
  };
  for (std::size_t other = 1; other * mine.size() < all.size(); ++other)
    if (!std::equal(all.begin(), all.begin() + mine.size(), all.begin() + other * mine.size()))
      throw user_error(
          errc::job_failed,
          fmt::format("{}: rank {} has a tensor of shape {}, rank {} one of {}: bring equal shapes",
                      operation, among.ranks.empty() ? 0 : among.ranks[0], text_of(0),
                      among.ranks.empty() ? static_cast<std::int32_t>(other) : among.ranks[other],
                      text_of(other)));
}

value data_parallel::reduce(const value& what, std::string_view operation, const subgroup& among) {
  const auto how = named_reduction(operation);
  if (!what.is<tensor_ptr>() || alone()) return strategy::reduce(what, operation, among);
  const at::NoGradGuard no_grad;
  const auto& given = unboxed(what);
  agree_on_shape(given, "reduce", among);
  auto mine = copy_to_host(given);
  // Means of integers are truncated, as in PyTorch Lightning.
  const bool cut = how == reduction::mean && at::isIntegralType(mine.scalar_type(), false);
  wait_for(collectives(),
           collectives().all_reduce(buffer_of(mine), cut ? reduction::sum : how, among));
  if (cut) mine = at::div(mine, members(among, world()), "trunc").to(mine.scalar_type());
  return boxed(mine.to(given.device()));
}

value data_parallel::broadcast(const value& what, std::int32_t source, const subgroup& among) {
  if (alone()) return what;
  std::vector<std::byte> bytes;
  if (rank() == source) bytes = encode(what);
  std::int64_t size = static_cast<std::int64_t>(bytes.size());
  wait_for(collectives(), collectives().broadcast({&size, 1, dtype::i64}, source, among));
  bytes.resize(static_cast<std::size_t>(size));
  wait_for(collectives(),
           collectives().broadcast({bytes.data(), bytes.size(), dtype::u8}, source, among));
  return rank() == source ? what : decode(bytes);
}

at::Tensor data_parallel::gather(const at::Tensor& mine, const subgroup& among) const {
  const at::NoGradGuard no_grad;
  auto sent = copy_to_host(mine);
  auto shape = mine.sizes().vec();
  shape.insert(shape.begin(), members(among, world()));
  auto all = at::empty(shape, sent.options());
  wait_for(collectives(), collectives().all_gather(buffer_of(sent), buffer_of(all), among));
  return all.to(mine.device());
}

at::Tensor data_parallel::sum(const at::Tensor& mine, const subgroup& among) const {
  const at::NoGradGuard no_grad;
  auto total = copy_to_host(mine);
  wait_for(collectives(), collectives().all_reduce(buffer_of(total), reduction::sum, among));
  return total.to(mine.device());
}

value data_parallel::all_gather(const value& what, bool gradients, const subgroup& among) {
  if (alone()) return strategy::all_gather(what, gradients, among);
  if (gradients && gradients_) gradients_->hold_back();
  return stack_each(what, [&](const at::Tensor& mine) {
    agree_on_shape(mine, "all_gather", among);
    return gradients ? gather_with_gradients::apply(mine, this, among) : gather(mine, among);
  });
}

bool data_parallel::reduce_boolean_decision(bool yes, decision by, const subgroup& among) {
  return alone() ? yes : collectives().decide(yes, by, among);
}

void data_parallel::barrier(std::string_view label, std::chrono::nanoseconds deadline,
                            const subgroup& among) {
  if (!alone()) wait_for(collectives(), collectives().barrier(label, deadline, among));
}

std::vector<std::vector<std::byte>> data_parallel::gather_bytes(std::span<const std::byte> mine) {
  if (alone()) return strategy::gather_bytes(mine);
  std::vector<std::byte> sent{mine.begin(), mine.end()};
  std::vector<std::byte> all(sent.size() * world());
  wait_for(collectives(), collectives().all_gather({sent.data(), sent.size(), dtype::u8},
                                                   {all.data(), all.size(), dtype::u8}));
  std::vector<std::vector<std::byte>> pieces;
  for (std::int32_t r = 0; r < world(); ++r)
    pieces.emplace_back(all.begin() + r * sent.size(), all.begin() + (r + 1) * sent.size());
  return pieces;
}

}  // namespace troupe
