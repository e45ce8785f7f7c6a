#include "backends/nccl/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::nccl {

namespace {

// NCCL's names for element types and reductions; complex numbers are sent as pairs of reals.
struct spelling {
  ncclDataType_t type = ncclUint8;
  std::size_t per_element = 1;
};

spelling type_of(dtype type) {
  switch (type) {
    case dtype::u8:
    case dtype::boolean: return {ncclUint8};
    case dtype::i8: return {ncclInt8};
    case dtype::i32: return {ncclInt32};
    case dtype::i64: return {ncclInt64};
    case dtype::f16: return {ncclFloat16};
    case dtype::bf16: return {ncclBfloat16};
    case dtype::f32: return {ncclFloat32};
    case dtype::f64: return {ncclFloat64};
    case dtype::c64: return {ncclFloat32, 2};
    case dtype::c128: return {ncclFloat64, 2};
    case dtype::i16: break;
  }
  throw internal_error("an element type that nccl lacks");
}

ncclRedOp_t operation_of(dtype type, reduction wanted) {
  // Sums of truth are `or`, products `and`.
  if (type == dtype::boolean)
    return wanted == reduction::min || wanted == reduction::product ? ncclMin : ncclMax;
  switch (wanted) {
    case reduction::sum: return ncclSum;
    case reduction::mean: return ncclAvg;
    case reduction::min: return ncclMin;
    case reduction::max: return ncclMax;
    case reduction::product: return ncclProd;
  }
  throw internal_error("an unknown reduction");
}

bool reduces(collective_kind what) {
  return what == collective_kind::all_reduce || what == collective_kind::reduce_scatter;
}

}  // namespace

std::string lacks(const collective_call& call) {
  if (!reduces(call.what)) return {};
  if (call.type == dtype::i16) return "nccl does not add int16; use int32";
  const bool complex = call.type == dtype::c64 || call.type == dtype::c128;
  if (complex && call.operation == reduction::product)
    return "nccl has no product of complex numbers";
  return {};
}

channel::channel(std::shared_ptr<const library> functions, communicator& control, subgroup among,
                 std::vector<std::int32_t> members, int device, const gpu_name& own)
    : functions_(std::move(functions)),
      members_(std::move(members)),
      rank_(static_cast<int>(place_among(members_, control.group().rank))),
      device_(device),
      own_(own),
      facts_(members_.size()) {
  const auto& f = *functions_;
  if (rank_ == 0)
    if (const auto error = f.get_unique_id(&id_); error != ncclSuccess)
      throw user_error(errc::device, "nccl: " + nccl_says(error));
  gathered_ = control.all_gather({&own_, sizeof own_, dtype::u8},
                                 {facts_.data(), facts_.size() * sizeof own_, dtype::u8}, among);
  sent_ = control.broadcast({&id_, sizeof id_, dtype::u8}, members_.front(), among);
}

channel::~channel() {
  if (stream_) functions_->stream_destroy(stream_);
}

std::string channel::nccl_says(ncclResult_t error) const {
  const auto* more = functions_->last_error(comm_);
  return fmt::format("{}{}{}", functions_->error_text(error), more && *more ? ": " : "",
                     more ? more : "");
}

void channel::push(std::shared_ptr<operation> what) {
  const std::lock_guard hold{mutex_};
  queue_.push_back(std::move(what));
}

bool channel::busy() const {
  const std::lock_guard hold{mutex_};
  return !queue_.empty();
}

std::string channel::shared_gpu() const {
  for (std::size_t i = 0; i < facts_.size(); ++i)
    for (std::size_t k = i + 1; k < facts_.size(); ++k)
      if (facts_[i].host == facts_[k].host && facts_[i].bus == facts_[k].bus)
        return fmt::format("ranks {} and {} share the GPU {}; nccl needs one for each rank",
                           members_[i], members_[k], facts_[i].bus.data());
  return {};
}

std::string channel::begin_connecting() {
  const auto& f = *functions_;
  f.set_device(device_);
  if (const auto error = f.stream_create(&stream_, cudaStreamNonBlocking); error != cudaSuccess)
    return fmt::format("cuda: {}", f.cuda_error_text(error));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto error = f.comm_init(&comm_, static_cast<int>(members_.size()), id_, rank_, &config);
  if (error != ncclSuccess && error != ncclInProgress) return "nccl: " + nccl_says(error);
  phase_ = phase::connecting;
  return {};
}

// Called once all ranks have called the first operation. If a rank is missing, that operation says
// so, and not the two that connect.
std::string channel::connect() {
  if (phase_ == phase::facts) {
    if (const auto met = gathered_->poll(); met.status != work_status::ok) return met.text;
    if (auto why = shared_gpu(); !why.empty()) return why;
    phase_ = phase::unique_id;
  }
  if (phase_ == phase::unique_id) {
    if (const auto met = sent_->poll(); met.status != work_status::ok) return met.text;
    if (auto why = begin_connecting(); !why.empty()) return why;
  }
  if (phase_ == phase::connecting) {
    std::string why;
    if (settled(why)) phase_ = phase::ready;
    return why;
  }
  return {};
}

bool channel::settled(std::string& why) {
  auto state = ncclSuccess;
  const auto error = functions_->comm_get_async_error(comm_, &state);
  if (error != ncclSuccess) {
    why = "nccl: " + nccl_says(error);
    return false;
  }
  if (state != ncclSuccess && state != ncclInProgress) why = "nccl: " + nccl_says(state);
  return state == ncclSuccess;
}

ncclResult_t channel::call(const operation& what) {
  const auto& f = *functions_;
  const auto& c = what.what.call;
  const auto* in = what.what.in;
  auto* const out = what.what.out;
  if (c.what == collective_kind::all_reduce || c.what == collective_kind::reduce_scatter) {
    const auto [type, per_element] = type_of(c.type);
    const auto with = operation_of(c.type, c.operation);
    const auto run = c.what == collective_kind::all_reduce ? f.all_reduce : f.reduce_scatter;
    return run(in, out, c.count * per_element, type, with, comm_, stream_);
  }
  const auto bytes = c.count * size_of(c.type);
  if (c.what == collective_kind::all_gather)
    return f.all_gather(in, out, bytes, ncclUint8, comm_, stream_);
  const auto root = place_among(members_, c.root);
  return f.broadcast(in, out, bytes, ncclUint8, static_cast<int>(root), comm_, stream_);
}

// The stream goes on when the memory of the operation may be used.
cudaError_t channel::await_memory(const operation& what) {
  for (const auto& given : {what.what.in_ready, what.what.out_ready}) {
    auto* const event = given ? static_cast<cudaEvent_t>(given->native()) : nullptr;
    if (!event) continue;
    if (const auto error = functions_->stream_wait_event(stream_, event, 0); error != cudaSuccess)
      return error;
  }
  if (!what.ready) return cudaSuccess;
  return functions_->stream_wait_event(stream_, what.ready.get(), 0);
}

// In two steps, because a call may continue in the background: the communicator accepts no other
// call before it has finished.
std::string channel::launch(operation& what) {
  const auto& f = *functions_;
  f.set_device(device_);
  if (!what.launching) {
    what.launching = true;
    if (const auto error = await_memory(what); error != cudaSuccess)
      return fmt::format("cuda: {}", f.cuda_error_text(error));
    const auto error = call(what);
    if (error != ncclSuccess && error != ncclInProgress) return "nccl: " + nccl_says(error);
  }
  std::string why;
  if (!settled(why)) return why;
  cudaEvent_t done = nullptr;
  auto error = f.event_create(&done, cudaEventDisableTiming);
  if (error == cudaSuccess) {
    what.done = {done, f.event_destroy};
    error = f.event_record(done, stream_);
  }
  if (error == cudaSuccess) what.launched.store(true, std::memory_order_release);
  return error == cudaSuccess ? "" : fmt::format("cuda: {}", f.cuda_error_text(error));
}

// A network or a GPU that hangs ends no operation.
std::string channel::late(const operation& first) {
  const auto now = running_clock::now();
  if (std::exchange(first_, &first) != &first) since_ = now;
  const auto limit = first.deadline;
  if (limit.count() == 0 || now - since_ < limit) return {};
  return fmt::format("nccl: {} has not ended {} s after all ranks had called it",
                     describe(first.what.call), std::chrono::duration<double>{limit}.count());
}

std::string channel::step() {
  if (phase_ == phase::gone) return {};
  std::deque<std::shared_ptr<operation>> all;
  {
    const std::lock_guard hold{mutex_};
    all = queue_;
  }
  if (phase_ != phase::ready && !all.empty() &&
      all.front()->control->poll().status == work_status::ok)
    if (auto why = connect(); !why.empty()) return why;
  bool blocked = false;  // operations begin in order
  for (const auto& one : all) {
    if (one->done) {
      const auto state = functions_->event_query(one->done.get());
      if (state == cudaSuccess) one->how.end({work_status::ok, {}, {}});
      if (state != cudaSuccess && state != cudaErrorNotReady)
        return fmt::format("cuda: {}", functions_->cuda_error_text(state));
      continue;
    }
    const auto met = one->control->poll();
    if (met.status != work_status::ok && met.status != work_status::pending) {
      one->how.end(met);
      return met.text;
    }
    blocked = blocked || met.status == work_status::pending;
    if (blocked) continue;
    if (one->what.call.count == 0) {
      one->how.end({work_status::ok, {}, {}});
      continue;
    }
    blocked = phase_ != phase::ready;
    if (blocked) continue;
    if (auto why = launch(*one); !why.empty()) return why;
    blocked = !one->done;
  }
  std::string why;
  if (phase_ == phase::ready) settled(why);
  const auto first = std::ranges::find_if(all, [](const auto& one) { return one->how.pending(); });
  if (why.empty() && first != all.end() && (*first)->control->poll().status == work_status::ok)
    why = late(**first);
  const std::lock_guard hold{mutex_};
  std::erase_if(queue_, [this](const auto& one) {
    const bool ended = !one->how.pending();
    if (ended && one.get() == first_) first_ = nullptr;
    return ended;
  });
  return why;
}

void channel::abort() {
  const bool there = comm_ && phase_ != phase::gone;
  phase_ = phase::gone;
  if (!there) return;
  functions_->set_device(device_);
  functions_->comm_abort(std::exchange(comm_, nullptr));
}

bool channel::idle() {
  if (!stream_) return true;
  return functions_->stream_query(stream_) != cudaErrorNotReady;
}

bool channel::close() {
  if (phase_ == phase::gone || !comm_) return true;
  functions_->set_device(device_);
  if (phase_ != phase::finalizing) {
    phase_ = phase::finalizing;
    functions_->comm_finalize(comm_);
  }
  std::string why;
  if (!settled(why) && why.empty()) return false;
  phase_ = phase::gone;
  functions_->comm_destroy(std::exchange(comm_, nullptr));
  return true;
}

}  // namespace troupe::nccl
