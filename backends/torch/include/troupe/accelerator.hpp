// The accelerator port: the kind of device that ranks compute on. It finds the devices of this
// host, refuses what cannot work before a job starts, and gives streams, events, generators and
// figures.
//
// Troupe has `cpu`, `cuda` and `lazy`. A program adds its own through torch_plugins::accelerators,
// for any device type for which LibTorch has a device guard: in most cases a name and a type are
// enough. docs/accelerators.md has an example.
#pragma once

#include "troupe/communicator.hpp"
#include "troupe/options.hpp"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Bytes of a device's memory; -1: unknown.
struct device_memory {
  std::int64_t allocated = -1;  ///< by tensors, now
  std::int64_t peak = -1;       ///< the most that `allocated` was
  std::int64_t reserved = -1;   ///< held by LibTorch's allocator, used or not
  std::int64_t free = -1;       ///< not used by any process
  /// All memory of the device.
  std::int64_t total = -1;
};

/// One kind of device. Const and thread-safe; shared by the ranks of a process.
///
/// The members that are not pure work for every device type with a device guard in LibTorch
/// (c10::impl::DeviceGuardImplInterface). What the guard lacks throws c10::Error.
class accelerator {
public:
  /// Undoes in its destructor what it switched, in the same thread.
  class scope {
  public:
    virtual ~scope() = default;
  };

  virtual ~accelerator() = default;
  /// As `--accelerator` takes it.
  virtual std::string_view name() const = 0;
  /// The type of its devices; constant.
  virtual c10::DeviceType type() const = 0;

  // Before a job starts.
  /// Why no rank of this host can use it, and what to do; empty: one can. For `doctor` and errors.
  virtual std::string unusable() const;
  /// One line for `doctor` about a usable one.
  virtual std::string about() const;
  /// Devices of this host. Never throws.
  virtual std::int32_t count() const;
  /// Several ranks of a host may compute on one device.
  virtual bool shared() const { return false; }
  /// `auto` takes the usable accelerator with the highest number; below 0: never.
  virtual int preference() const { return -1; }
  /// The devices that `which` means, for `ranks` ranks on this host, one each: element r is local
  /// rank r's. `ranks` 0: as many as it may be. Throws user_error (device) when a device is not
  /// there, is named twice, or when there is not one for each rank.
  virtual std::vector<c10::Device> parse(const device_choice& which, std::int32_t ranks) const;

  // In a rank's lane, and in other threads that work for the rank.
  /// Makes `device` the thread's current device. Null: there is nothing to switch.
  virtual std::unique_ptr<scope> make_current(c10::Device device) const;
  /// The thread's current stream of `device`.
  virtual c10::Stream stream(c10::Device device) const;
  /// Another stream of `device`; its only one where it has no more.
  virtual c10::Stream new_stream(c10::Device device) const;
  /// Makes `stream` the thread's current stream of its device. Null: there is nothing to switch.
  virtual std::unique_ptr<scope> use(c10::Stream stream) const;
  /// The point after everything that was submitted to `stream`. Never waits. Destroyed before its
  /// accelerator.
  virtual device_event_ptr record(c10::Stream stream) const;
  /// What is submitted to `stream` from now on runs after `point`, which `record` has made, or a
  /// collective (work::on_device). Never waits.
  virtual void block(c10::Stream stream, const device_event& point) const;
  /// Waits until `device` has done everything that was submitted, on all streams.
  virtual void synchronize(c10::Device device) const;
  /// Ends a step: after each optimizer step, and after each step of an evaluation. A device that
  /// collects operations before it runs them runs them now.
  virtual void mark_step(c10::Device device) const { (void)device; }
  /// What random operators on `device` draw from: LibTorch's default generator of the device,
  /// because fused ones (dropout) take no other. The rank restarts it for each hook, and so its
  /// numbers depend on the seed only. Undefined: the device is the host.
  virtual at::Generator generator(c10::Device device) const;
  /// The device type under which autocast is switched on.
  virtual c10::DeviceType autocast_type() const { return type(); }
  /// Host memory with the same numbers, from which a copy to the device need not wait. Called by
  /// the thread that loads data. The base returns `t`.
  virtual at::Tensor staged(const at::Tensor& t) const { return t; }
  /// `t` on `device`, which is current. From memory that `staged` returned the copy may still run
  /// when this returns: on the default stream, where operators of the rank come after it. Called by
  /// the rank, and by the thread that loads data while the rank computes.
  virtual at::Tensor uploaded(const at::Tensor& t, c10::Device device) const;
  /// Never throws.
  virtual device_memory memory(c10::Device device) const;
};

/// Shared by the ranks of a process.
using accelerator_ptr = std::shared_ptr<const accelerator>;
/// Never returns null.
using accelerator_factory = std::function<accelerator_ptr()>;
/// By name, as `--accelerator` takes it. A program adds or replaces entries.
using accelerator_table = std::map<std::string, accelerator_factory, std::less<>>;

/// The accelerators of accelerator_kind.
accelerator_table default_accelerators();

/// An accelerator and the devices of a job on this host.
struct chosen_devices {
  /// Null: the host's processors (strategy_parts only).
  accelerator_ptr kind;
  std::vector<c10::Device> devices;  ///< not empty
};

/// What `accelerator` and `devices` of the options mean for `ranks` ranks on this host (0:
/// unknown). Throws user_error: bad_configuration that lists the known names, or device with the
/// reason.
chosen_devices choose_devices(const accelerator_table& known, const trainer_options& options,
                              std::int32_t ranks);

/// The device of a local rank. With more shards on this host than devices, neighbours share one.
c10::Device device_of(const std::vector<c10::Device>& devices, std::int32_t local_rank,
                      std::int32_t shards);

// An accelerator to which a module that was made on the host cannot be moved. LibTorch replaces the
// memory of a tensor, but not its kind, so a module of such a device is made there.
//
// Such a device collects operators of one thread at a time. So each rank has a device of its own,
// and with more shards than ranks each shard.

/// A second base of such an accelerator. Its ranks evaluate without gradients, but outside of
/// LibTorch's inference mode.
class module_creation {
public:
  virtual ~module_creation() = default;
  /// While the scope exists, tensors that this thread makes without naming a device are made on
  /// `device`. Their numbers are those that they would have on the host, random ones included. The
  /// rank holds one where it makes its module and in configure_model. Not for tensors that are made
  /// from numbers in memory, such as torch::tensor({1, 2}): a module gives them the device.
  virtual std::unique_ptr<accelerator::scope> create_on(c10::Device device) const = 0;
};

// What LibTorch's lazy tensors did in this process: graphs, compilations, and operators that no
// graph can hold. For finding out why a fit on the accelerator `lazy` is slow.

/// Since the process started. All of its ranks count together.
struct lazy_counts {
  std::int64_t step_marks = 0;    ///< ends of steps, and reads by the host
  std::int64_t graphs = 0;        ///< that were run
  std::int64_t compilations = 0;  ///< graphs that had no equal before, and were compiled
  /// Operators that ran one by one on the host, by name (`aten::...`), with their number of calls.
  /// `aten::_local_scalar_dense` is the read of a single number.
  std::map<std::string, std::int64_t> fallbacks;
};

/// Thread-safe. Never waits for a device.
lazy_counts counts_of_lazy();
/// The counts, LibTorch's own counters, and the operators of graphs that have not run yet. For
/// people: the format may change. Thread-safe where no rank of the process is in a step.
std::string report_of_lazy();

}  // namespace troupe
