#include <ATen/Context.h>
#include <ATen/DeviceGuard.h>
#include <ATen/TensorOperators.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <thread>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/lane_thread.hpp"
#include "backends/torch/rank_random.hpp"
#include "backends/torch/replication.hpp"
#include "backends/torch/sync_layers.hpp"
#include "troupe/replicated.hpp"

namespace troupe {

namespace {

void visit(torch::nn::Module& module, const std::string& path,
           std::set<const torch::nn::Module*>& seen, std::vector<submodule>& found) {
  if (!seen.insert(&module).second) return;
  found.push_back({path, &module});
  for (const auto& child : module.named_children())
    if (child.value())
      visit(*child.value(), path.empty() ? child.key() : path + "." + child.key(), seen, found);
}

/// The gradients of one parameter's copies, summed in order of copies. LibTorch's own (ReduceAdd)
/// fails where a copy did not use the parameter.
struct sum_of_copies : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::NoGradGuard no_grad;
    at::Tensor sum;
    for (const auto& one : gradients) {
      if (!one.defined()) continue;
      const auto here = one.to(device);
      // Not in place: the first gradient may be shared with another node.
      sum = sum.defined() ? sum + here : here;
    }
    return {sum};
  }
  std::string name() const override { return "troupe::sum_of_copies"; }

  c10::Device device = host_device();
};

[[noreturn]] void refuse_copies(const std::string& text) {
  throw user_error(errc::job_failed, text);
}

}  // namespace

std::vector<submodule> submodules(torch::nn::Module& root) {
  std::set<const torch::nn::Module*> seen;
  std::vector<submodule> found;
  visit(root, {}, seen, found);
  return found;
}

std::vector<std::vector<submodule>> submodules(const module_copies& copies) {
  std::vector<std::vector<submodule>> all;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i])
      refuse_copies(fmt::format("copy {} of the module is null or of another type", i));
    all.push_back(submodules(*copies[i]));
    if (!std::equal(all[0].begin(), all[0].end(), all[i].begin(), all[i].end(),
                    [](const auto& a, const auto& b) { return a.path == b.path; }))
      refuse_copies(
          fmt::format("a copy has {} sub-modules, the first {}, or their names differ: let "
                      "clone() register the same sub-modules in each copy",
                      all[i].size(), all[0].size()));
  }
  return all;
}

std::shared_ptr<copy_round> call_on_replicate(const module_copies& copies,
                                              std::chrono::nanoseconds deadline) {
  const auto all = submodules(copies);
  auto round = std::make_shared<copy_round>(static_cast<std::int64_t>(copies.size()), deadline);
  std::vector<std::shared_ptr<replication_context>> contexts;
  if (!all.empty())
    for (const auto& one : all[0])
      contexts.push_back(std::make_shared<replication_context>(one.path, round));
  for (std::size_t copy = 0; copy < all.size(); ++copy)
    for (std::size_t i = 0; i < contexts.size(); ++i)
      if (auto* aware = dynamic_cast<replication_aware*>(all[copy][i].module))
        aware->on_replicate(contexts[i], static_cast<std::int64_t>(copy));
  return round;
}

void adopt_copies(torch::nn::Module& original, const module_copies& copies) {
  follow_replaced_norms(original);
  for (const auto& copy : copies)
    if (copy) copy_sync_layers(original, *copy);
  module_copies all{original.shared_from_this()};
  all.insert(all.end(), copies.begin(), copies.end());
  const auto places = submodules(all);
  for (std::size_t i = 0; i < places[0].size(); ++i) {
    const auto& from = *places[0][i].module;
    for (std::size_t copy = 1; copy < places.size(); ++copy)
      if (auto& to = *places[copy][i].module; to.is_training() != from.is_training())
        to.train(from.is_training());
    if (copies.empty()) continue;
    const auto mine = places[1][i].module->named_buffers(/*recurse=*/false);
    for (const auto& buffer : from.named_buffers(/*recurse=*/false))
      if (auto* other = mine.find(buffer.key()); other && other->defined())
        if (buffer.value().defined() && other->device() == buffer.value().device())
          other->set_data(buffer.value());
  }
}

void link_gradients(torch::nn::Module& original, const module_copies& copies) {
  module_copies all{original.shared_from_this()};
  all.insert(all.end(), copies.begin(), copies.end());
  const auto places = submodules(all);
  for (std::size_t i = 0; i < places[0].size(); ++i)
    for (const auto& parameter : places[0][i].module->named_parameters(/*recurse=*/false)) {
      if (!parameter.value().defined()) continue;
      const bool wanted = at::GradMode::is_enabled() && parameter.value().requires_grad();
      c10::intrusive_ptr<sum_of_copies> sum;
      if (wanted) {
        sum = c10::make_intrusive<sum_of_copies>();
        sum->device = parameter.value().device();
        sum->set_next_edges(torch::autograd::collect_next_edges(parameter.value()));
      }
      for (std::size_t copy = 1; copy < places.size(); ++copy) {
        auto other = places[copy][i].module->named_parameters(/*recurse=*/false)[parameter.key()];
        if (sum)
          torch::autograd::set_history(other, sum);
        else
          other.set_requires_grad(false);
      }
    }
}

void require_on(const torch::nn::Module& module, c10::Device device) {
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device)
      refuse_copies(
          fmt::format("{} is on {}, but the first of device_ids is {}: move the module there "
                      "before it is replicated",
                      name, tensor.device().str(), device.str()));
  };
  for (const auto& item : module.named_parameters()) check(item.key(), item.value());
  for (const auto& item : module.named_buffers()) check(item.key(), item.value());
}

namespace {

/// The end of a wait for a copy that failed. Never an error of its own.
struct other_copy_failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void rethrow(const std::exception_ptr& error, std::size_t copy,
                          const std::vector<c10::Device>& devices) {
  const auto place =
      fmt::format("copy {} of {} on {}: ", copy, devices.size(), devices[copy].str());
  try {
    std::rethrow_exception(error);
  } catch (const user_error& e) {
    throw user_error(e.code(), place + e.what());
  } catch (const std::exception& e) {
    throw copy_failed(place + e.what(), static_cast<std::int64_t>(copy));
  } catch (...) {
    throw copy_failed(place + "an exception that is no std::exception",
                      static_cast<std::int64_t>(copy));
  }
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

bool follows(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const other_copy_failed&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void end_wait_for_failed_copy(std::int64_t copy, const std::string& failure) {
  throw other_copy_failed(fmt::format("copy {} failed: {}", copy, failure));
}

void run_copies(copy_round& round, const std::vector<c10::Device>& devices,
                const std::function<void(std::int64_t)>& body) {
  const at::ThreadLocalState callers;
  const auto seed = static_cast<std::uint64_t>(
      at::randint(std::numeric_limits<std::int64_t>::max(), {1}, at::kLong).item<std::int64_t>());
  std::vector<std::exception_ptr> errors(devices.size());
  const auto failed = [&](std::size_t copy) {
    errors[copy] = std::current_exception();
    round.end(static_cast<std::int64_t>(copy), text_of(errors[copy]));
  };
  const auto run = [&](std::size_t copy) {
    try {
      const at::ThreadLocalStateGuard as_caller{callers};
      const lane_thread one_thread;
      const c10::DeviceGuard here{devices[copy]};
      rank_random draws{seed};
      draws.reset({.shard = static_cast<std::int64_t>(copy), .purpose = "replicated"});
      const random_scope scope{draws};
      body(static_cast<std::int64_t>(copy));
      round.end(static_cast<std::int64_t>(copy));
    } catch (...) {
      failed(copy);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t copy = 1; copy < devices.size(); ++copy) try {
        threads.emplace_back(run, copy);
      } catch (const std::system_error&) {
        failed(copy);
      }
    if (!devices.empty()) run(0);
  }
  const auto first = [&](bool consequence) {
    for (std::size_t copy = 0; copy < errors.size(); ++copy)
      if (errors[copy] && follows(errors[copy]) == consequence)
        rethrow(errors[copy], copy, devices);
  };
  first(/*consequence=*/false);
  first(/*consequence=*/true);
}

}  // namespace troupe
