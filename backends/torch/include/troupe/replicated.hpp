// Copies of a module in one process: each computes a chunk of the batch on a device of its own, in
// a thread of its own. Gradients flow to the module that was copied. It is jactorch's DataParallel
// with replication callbacks; docs/replicated.md lists what differs.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <any>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/detail/scatter.hpp"
#include "troupe/failure.hpp"

namespace troupe {

/// A copy's exception, for exceptions that are not a user_error. what() begins with
/// `copy 1 of 2 on cpu: `; the original exception is nested (std::rethrow_if_nested).
class copy_failed : public std::runtime_error, public std::nested_exception {
public:
  /// Make it in the handler of the original exception, which becomes the nested one.
  copy_failed(const std::string& what, std::int64_t copy) : std::runtime_error(what), copy_(copy) {}
  /// Which copy, from 0.
  std::int64_t copy() const noexcept { return copy_; }

private:
  std::int64_t copy_;
};

/// One forward of all copies: which of them still run. Thread-safe.
class copy_round {
public:
  /// `copies` copies take part, and all of them run. `deadline` limits each wait of a copy.
  copy_round(std::int64_t copies, std::chrono::nanoseconds deadline);
  ~copy_round();
  copy_round(const copy_round&) = delete;
  copy_round& operator=(const copy_round&) = delete;

  /// Copies at the start, those that have ended included.
  std::int64_t copies() const;
  /// Copy `copy` has ended; `failure` is empty if it succeeded. Copies that wait for it end with an
  /// error. The first call for a copy counts. parallel_apply calls it; a program that runs copies
  /// itself should, because without it a wait ends at the deadline only.
  void end(std::int64_t copy, const std::string& failure = {});

private:
  friend class replication_context;
  struct state;
  std::unique_ptr<state> state_;
};

/// Shared by the copies of one sub-module during one forward. Each forward has new ones.
class replication_context {
public:
  /// For call_on_replicate, which makes one per sub-module.
  replication_context(std::string path, std::shared_ptr<copy_round> round);
  ~replication_context();
  replication_context(const replication_context&) = delete;
  replication_context& operator=(const replication_context&) = delete;

  /// The sub-module's name in the module, as `layers.bn`; empty for the module itself.
  const std::string& path() const { return path_; }
  /// Copies in this forward: the number of chunks, which may be less than that of devices.
  std::int64_t copies() const { return round_->copies(); }

  /// Whatever the callbacks keep here. Callbacks run one after the other in one thread. What copies
  /// do with it during the forward needs their own lock.
  std::map<std::string, std::any> items;

  /// For use in forward: waits until every copy of this sub-module has called it equally often.
  /// `combine` gets what they passed, in order of copies, and returns one result for each. It runs
  /// once, in copy 0's thread: `combine` of the other copies is ignored.
  /// Throws user_error at once where the copies call it differently often or in another order, and
  /// at the round's deadline. If another copy fails, an exception ends the wait at once.
  template <class T>
  T exchange(std::int64_t copy, T mine,
             const std::function<std::vector<T>(std::vector<T>)>& combine) {
    const auto any_combine = [&](std::vector<std::any> all) {
      std::vector<T> typed;
      for (auto& one : all) typed.push_back(std::any_cast<T>(std::move(one)));
      std::vector<std::any> results;
      for (auto& one : combine(std::move(typed))) results.emplace_back(std::move(one));
      return results;
    };
    return std::any_cast<T>(exchange_any(copy, std::move(mine), any_combine));
  }

private:
  friend class copy_round;
  struct place;
  std::any exchange_any(std::int64_t copy, std::any mine,
                        const std::function<std::vector<std::any>(std::vector<std::any>)>& combine);

  std::string path_;
  std::shared_ptr<copy_round> round_;
  std::unique_ptr<place> place_;
};

/// A sub-module that takes part in replication derives from this.
class replication_aware {
public:
  virtual ~replication_aware() = default;
  /// Before each forward on several devices, in the caller's thread, before any copy runs. First
  /// all sub-modules of copy 0, then those of copy 1, and so on; in each copy in the same order
  /// (parents first, each sub-module once). An exception ends the forward.
  virtual void on_replicate(const std::shared_ptr<replication_context>& context,
                            std::int64_t copy_id) = 0;
};

/// Copies of one module, by number.
using module_copies = std::vector<std::shared_ptr<torch::nn::Module>>;

/// How long a copy waits for the others in replication_context::exchange.
inline constexpr std::chrono::nanoseconds default_copy_deadline = std::chrono::minutes{10};

/// Calls on_replicate of every sub-module of `copies`, in the order above. Throws user_error unless
/// all copies have the same sub-modules.
std::shared_ptr<copy_round> call_on_replicate(
    const module_copies& copies, std::chrono::nanoseconds deadline = default_copy_deadline);

/// What copies need besides their values: copy 0 uses the original's buffers, so that updates in
/// place persist; every copy has the original's training modes and synchronised batch norms.
void adopt_copies(torch::nn::Module& original, const module_copies& copies);

/// The gradients of the copies' parameters are summed into those of the original, in order of
/// copies. A parameter that does not require a gradient requires none in its copies.
void link_gradients(torch::nn::Module& original, const module_copies& copies);

/// Throws user_error that names a parameter or buffer that is on another device.
void require_on(const torch::nn::Module& module, c10::Device device);

/// Calls body(i) for every copy i at the same time: copy 0 in the calling thread, each other one in
/// a new thread. Each has the caller's grad mode, inference mode and autocast, its device as the
/// current one, one LibTorch thread, and random numbers of its own, which follow from one number of
/// the caller's generator. Waits for all. Then throws the first copy's error that is not a
/// consequence of another copy's.
void run_copies(copy_round& round, const std::vector<c10::Device>& devices,
                const std::function<void(std::int64_t)>& body);

namespace detail {
/// A sync_batch_norm_scope of the copy, for its thread.
std::shared_ptr<void> routes_of_copy(torch::nn::Module& copy);
}  // namespace detail

/// The same copies as modules, for the functions above.
template <class M>
module_copies as_modules(const std::vector<std::shared_ptr<M>>& copies) {
  return {copies.begin(), copies.end()};
}

/// One copy per device, by M's clone(): M derives from torch::nn::Cloneable<M>, or has a clone().
template <class M>
std::vector<std::shared_ptr<M>> replicate(const std::shared_ptr<M>& module,
                                          const std::vector<c10::Device>& devices) {
  std::vector<std::shared_ptr<M>> copies;
  for (const auto device : devices)
    copies.push_back(std::dynamic_pointer_cast<M>(module->clone(device)));
  const auto plain = as_modules(copies);
  adopt_copies(*module, plain);
  link_gradients(*module, plain);
  return copies;
}

/// One tuple of arguments per chunk. Tensors in standard containers and in values are divided along
/// `dim`; other objects are copied. Throws user_error where tensors give different numbers of
/// chunks.
template <class... A>
std::vector<std::tuple<std::decay_t<A>...>> scatter(const std::vector<c10::Device>& devices,
                                                    std::int64_t dim, const A&... arguments) {
  detail::scattering how{devices, dim};
  const auto note = [&](const at::Tensor& t) { return how.add(t), t; };
  (void)note;
  (detail::with_tensors(arguments, note), ...);
  std::vector<std::tuple<std::decay_t<A>...>> chunks;
  for (std::int64_t i = 0; i < how.chunks(sizeof...(A) > 0); ++i)
    chunks.emplace_back(
        detail::with_tensors(arguments, [&](const at::Tensor& t) { return how.piece(t, i); })...);
  return chunks;
}

/// copies[i]->forward(chunks[i]...) of all copies at the same time (run_copies).
template <class M, class... A>
auto parallel_apply(copy_round& round, const std::vector<std::shared_ptr<M>>& copies,
                    std::vector<std::tuple<A...>> chunks, const std::vector<c10::Device>& devices) {
  using result = decltype(std::declval<M&>().forward(std::declval<A>()...));
  const auto forward = [&](std::int64_t i) -> result {
    const auto routes = detail::routes_of_copy(*copies[i]);
    return std::apply([&](auto&... one) { return copies[i]->forward(std::move(one)...); },
                      chunks[i]);
  };
  if constexpr (std::is_void_v<result>) {
    run_copies(round, devices, forward);
  } else {
    std::vector<std::optional<std::decay_t<result>>> there(copies.size());
    run_copies(round, devices, [&](std::int64_t i) { there[i].emplace(forward(i)); });
    std::vector<std::decay_t<result>> results;
    for (auto& one : there) results.push_back(std::move(*one));
    return results;
  }
}

/// Joins the copies' results on `device`: tensors are concatenated along `dim`, scalars become a
/// vector, containers are joined item by item. Throws user_error where they differ in size or keys.
template <class T>
T gather(const std::vector<T>& results, c10::Device device, std::int64_t dim = 0) {
  return detail::gathering{device, dim}.join(results);
}

/// A replication of a program's own, followed by adopt_copies and the callbacks (jactorch's
/// patch_replication_callback). Called like `replicate`.
template <class F>
class replication_with_callbacks {
public:
  /// `replicate(module, devices)` returns one copy per device, as `replicate` does.
  explicit replication_with_callbacks(F replicate) : replicate_(std::move(replicate)) {}
  /// The copies of `module`, ready to run. Throws what the replication and the callbacks throw.
  template <class M>
  std::vector<std::shared_ptr<M>> operator()(const std::shared_ptr<M>& module,
                                             const std::vector<c10::Device>& devices) const {
    std::vector<std::shared_ptr<M>> copies = replicate_(module, devices);
    adopt_copies(*module, as_modules(copies));
    call_on_replicate(as_modules(copies));
    return copies;
  }

  /// The replication without the callbacks.
  const F& plain() const { return replicate_; }

private:
  F replicate_;
};
/// See replication_with_callbacks.
template <class F>
replication_with_callbacks<F> with_replication_callbacks(F replicate) {
  return replication_with_callbacks<F>{std::move(replicate)};
}
/// A second time changes nothing: callbacks run once.
template <class F>
replication_with_callbacks<F> with_replication_callbacks(replication_with_callbacks<F> replicate) {
  return replicate;
}

/// Where the copies of a `replicated` run, and how batches are divided.
struct replication_options {
  /// One copy for each; the CPU may be there several times. The module is on the first. One: the
  /// module itself runs, without callbacks. Empty: the module itself runs where its caller's
  /// tensors are.
  std::vector<c10::Device> device_ids;
  /// Where results go. Unset: the first device.
  std::optional<c10::Device> output_device;
  /// The dimension of a batch's samples.
  std::int64_t dim = 0;
  /// How long a copy waits for another in replication_context::exchange.
  std::chrono::nanoseconds deadline = default_copy_deadline;
};

/// Called by one thread. Parameters are those of the submodule `module`, which is what it copies in
/// each forward.
template <class M>
class replicated : public torch::nn::Module {
public:
  /// Makes one copy per device.
  using replication = std::function<std::vector<std::shared_ptr<M>>(
      const std::shared_ptr<M>& module, const std::vector<c10::Device>& devices)>;

  /// Copies are made by `replicate`.
  /// @{
  explicit replicated(std::shared_ptr<M> module, replication_options options = {})
      : replicated(std::move(module), std::move(options), replication{}) {}
  explicit replicated(const torch::nn::ModuleHolder<M>& module, replication_options options = {})
      : replicated(module.ptr(), std::move(options), replication{}) {}
  /// @}
  /// `how` makes the copies (null: `replicate`); adopt_copies and the callbacks follow.
  replicated(std::shared_ptr<M> module, replication_options options, replication how)
      : torch::nn::Module("replicated"),
        module_(register_module("module", std::move(module))),
        options_(std::move(options)),
        replicate_(std::move(how)) {}
  /// Callbacks run once.
  template <class F>
  replicated(std::shared_ptr<M> module, replication_options options,
             const replication_with_callbacks<F>& how)
      : replicated(std::move(module), std::move(options), replication{how.plain()}) {}

  /// The joined result of the copies' forward. Arguments: see scatter; a keyword argument is an
  /// entry of a map. Throws user_error for arguments that cannot be divided, and what run_copies
  /// throws.
  template <class... A>
  auto forward(const A&... arguments)
      -> std::decay_t<decltype(std::declval<M&>().forward(std::declval<std::decay_t<A>>()...))> {
    using result =
        std::decay_t<decltype(std::declval<M&>().forward(std::declval<std::decay_t<A>>()...))>;
    const auto& devices = options_.device_ids;
    if (devices.empty()) return module_->forward(arguments...);
    require_on(*module_, devices[0]);
    auto chunks = scatter(devices, options_.dim, arguments...);
    if (devices.size() == 1) return alone<result>(std::move(chunks[0]));
    const std::vector<c10::Device> used{
        devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(chunks.size())};
    const auto copies = replicate_ ? replicate_(module_, used) : replicate(module_, used);
    if (replicate_) adopt_copies(*module_, as_modules(copies));
    const auto round = call_on_replicate(as_modules(copies), options_.deadline);
    if constexpr (std::is_void_v<result>)
      parallel_apply(*round, copies, std::move(chunks), used);
    else
      return gather<result>(parallel_apply(*round, copies, std::move(chunks), used),
                            output_device(), options_.dim);
  }
  /// forward(arguments...).
  template <class... A>
  auto operator()(const A&... arguments) {
    return forward(arguments...);
  }

  /// The module that is copied.
  const std::shared_ptr<M>& module() const { return module_; }
  /// As they were given.
  const replication_options& options() const { return options_; }

private:
  c10::Device output_device() const {
    return options_.output_device.value_or(options_.device_ids[0]);
  }
  template <class R, class Chunk>
  R alone(Chunk chunk) {
    const auto run = [&](auto&... one) { return module_->forward(std::move(one)...); };
    if constexpr (std::is_void_v<R>)
      std::apply(run, chunk);
    else
      return detail::with_tensors<R>(std::apply(run, chunk), [&](const at::Tensor& t) {
        return t.defined() ? t.to(output_device()) : t;
      });
  }

  std::shared_ptr<M> module_;
  replication_options options_;
  replication replicate_;
};

template <class M>
replicated(std::shared_ptr<M>) -> replicated<M>;
template <class M>
replicated(std::shared_ptr<M>, replication_options) -> replicated<M>;
template <class M, class F>
replicated(std::shared_ptr<M>, replication_options, F) -> replicated<M>;

}  // namespace troupe
