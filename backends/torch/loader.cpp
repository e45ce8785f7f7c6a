#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "backends/torch/lane_thread.hpp"
#include "backends/torch/rank_random.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

/// One pass through the data: micro-batches next .. last - 1 of an epoch.
struct pass {
  std::uint64_t number = 0;
  std::int64_t epoch = 0;
  std::int64_t next = 0;
  std::int64_t last = 0;
  data_layout layout;
};

/// Assembles batches. Used by one thread at a time.
class assembler {
public:
  assembler(dataset_ptr data, const loader::options& how)
      : data_(std::move(data)), how_(how), random_(how.seed) {}

  loader::item assemble(std::int64_t epoch, std::int64_t batch, const data_layout& layout) {
    const auto mine = layout.of_rank(batch, how_.rank);
    loader::item made{{}, mine.count, batch};
    if (mine.count == 0) return made;
    see_to_order(epoch);
    // Augmentation depends on the batch's position, not on the batches loaded before it.
    random_.reset({.epoch = epoch, .batch = batch, .shard = how_.rank, .purpose = "data"});
    const random_scope scope{random_};
    const sample_keys keys{how_.seed, epoch};
    made.batch = data_->get_keyed(std::span{order_}.subspan(static_cast<std::size_t>(mine.first),
                                                            static_cast<std::size_t>(mine.count)),
                                  keys);
    if (how_.staged_for)
      made.batch =
          map_tensors(made.batch, [&](const at::Tensor& t) { return how_.staged_for->staged(t); });
    return made;
  }

private:
  void see_to_order(std::int64_t epoch) {
    if (ordered_ && (!how_.shuffle || *ordered_ == epoch)) return;
    if (how_.shuffle && how_.order) {
      order_ = how_.order->order(how_.seed, epoch);
      check_order();
    } else if (how_.shuffle) {
      order_ = permutation(how_.seed, epoch, data_->size());
    } else {
      order_.resize(static_cast<std::size_t>(how_.layout.size));
      std::iota(order_.begin(), order_.end(), std::int64_t{0});
    }
    ordered_ = epoch;
  }

  void check_order() const {
    const auto size = data_->size();
    const auto fits = [size](std::int64_t sample) { return sample >= 0 && sample < size; };
    if (static_cast<std::int64_t>(order_.size()) < how_.layout.size ||
        !std::ranges::all_of(order_, fits))
      throw user_error(errc::job_failed,
                       "a sampler's order is shorter than its size, or has an index that is no "
                       "sample: return size() indices below the dataset's size");
  }

  dataset_ptr data_;
  loader::options how_;
  rank_random random_;
  std::vector<std::int64_t> order_;
  std::optional<std::int64_t> ordered_;
};

}  // namespace

struct loader::state {
  state(dataset_ptr data, options how)
      : data_(std::move(data)), how_(std::move(how)), assembler_(data_, how_) {
    if (uploads() && !(how_.prefetch > 0 && how_.staged_for && how_.device))
      throw internal_error("a loader's device_prefetch needs prefetch, staged_for and device");
  }

  ~state() {
    {
      const std::lock_guard lock{mutex_};
      ending_ = true;
    }
    work_.notify_all();
    for (auto* thread : {&assembling_, &uploading_})
      if (thread->joinable()) thread->join();
  }

  void begin(std::int64_t epoch, std::int64_t first, std::int64_t last) {
    taken_ = first;
    last_ = last;
    {
      const std::lock_guard lock{mutex_};
      pass_ = {pass_.number + 1, epoch, first, last, layout(epoch)};
      on_host_.clear();
      on_device_.clear();
    }
    failed_ = nullptr;
    if (how_.prefetch > 0 && !assembling_.joinable())
      assembling_ = std::thread{[this] { assemble(); }};
    if (uploads() && !uploading_.joinable()) uploading_ = std::thread{[this] { upload(); }};
    work_.notify_all();
  }

  item next() {
    if (taken_ >= last_) throw internal_error("a loader was asked past the end of its pass");
    if (failed_) std::rethrow_exception(failed_);
    auto one = how_.prefetch > 0 ? take() : made_by([&] { return batch_of(pass_, taken_); });
    if (one.error) std::rethrow_exception(failed_ = one.error);
    ++taken_;
    return std::move(one.made);
  }

  data_layout layout(std::int64_t epoch) const {
    return epoch == resumed_epoch_ ? resumed_ : how_.layout;
  }

  dataset_ptr data_;
  options how_;
  std::int64_t resumed_epoch_ = -1;
  data_layout resumed_;  ///< of that epoch

private:
  /// A batch, or the error that a stage got in its place.
  struct piece {
    item made;
    std::exception_ptr error;
  };

  template <class F>
  static piece made_by(F&& make) {
    try {
      return {make(), nullptr};
    } catch (...) {
      return {{}, std::current_exception()};
    }
  }

  item batch_of(const pass& of, std::int64_t batch) {
    return assembler_.assemble(of.epoch, batch, of.layout);
  }

  bool uploads() const { return how_.device_prefetch > 0; }

  piece take() {
    auto& from = uploads() ? on_device_ : on_host_;
    std::unique_lock lock{mutex_};
    arrived_.wait(lock, [&] { return !from.empty(); });
    auto one = std::move(from.front());
    from.pop_front();
    lock.unlock();
    work_.notify_all();
    return one;
  }

  static bool room(const std::deque<piece>& in, std::int32_t most) {
    return in.size() < static_cast<std::size_t>(most);
  }

  // Drops what was made of an earlier pass. An error is the last piece of its pass.
  void put(piece one, std::uint64_t of_pass, std::deque<piece>& to) {
    if (of_pass != pass_.number) return;
    if (one.error) {
      pass_.next = pass_.last;
      if (&to != &on_host_) on_host_.clear();
    }
    to.push_back(std::move(one));
    arrived_.notify_all();
    if (uploads()) work_.notify_all();
  }

  // The host stage.
  void assemble() {
    const lane_thread setup;
    std::unique_lock lock{mutex_};
    while (true) {
      work_.wait(lock, [&] {
        return ending_ || (pass_.next < pass_.last && room(on_host_, how_.prefetch));
      });
      if (ending_) return;
      const auto now = pass_;
      ++pass_.next;
      lock.unlock();
      auto one = made_by([&] { return batch_of(now, now.next); });
      lock.lock();
      put(std::move(one), now.number, on_host_);
    }
  }

  // The device stage.
  void upload() {
    const lane_thread setup;
    std::unique_lock lock{mutex_};
    while (true) {
      work_.wait(lock, [&] {
        return ending_ || (!on_host_.empty() && room(on_device_, how_.device_prefetch));
      });
      if (ending_) return;
      const auto number = pass_.number;
      auto one = std::move(on_host_.front());
      on_host_.pop_front();
      lock.unlock();
      work_.notify_all();
      if (!one.error) one = made_by([&] { return uploaded(std::move(one.made)); });
      lock.lock();
      put(std::move(one), number, on_device_);
    }
  }

  item uploaded(item of_host) const {
    const auto& kind = *how_.staged_for;
    const auto device = how_.device.value();
    const auto current = kind.make_current(device);
    of_host.batch =
        map_tensors(of_host.batch, [&](const at::Tensor& t) { return kind.uploaded(t, device); });
    return of_host;
  }

  assembler assembler_;
  // Used by the owner's thread only.
  std::int64_t taken_ = 0;
  std::int64_t last_ = 0;
  std::exception_ptr failed_;
  // Shared with the stages.
  std::mutex mutex_;
  std::condition_variable work_, arrived_;
  pass pass_;
  std::deque<piece> on_host_, on_device_;
  bool ending_ = false;
  std::thread assembling_, uploading_;
};

loader_options loader_options_of(const data_loading& how, stage purpose, const dataset& data,
                                 std::int64_t ranks, std::int64_t batch_size) {
  loader_options made;
  made.layout = {data.size(), ranks, how.batch_size.value_or(batch_size)};
  made.prefetch = how.prefetch;
  made.device_prefetch = how.device_prefetch;
  made.batches_per_execution = how.batches_per_execution;
  if (made.layout.batch_size < 1 || how.prefetch < 0 || how.device_prefetch < 0 ||
      how.batches_per_execution < 1)
    throw user_error(errc::bad_configuration,
                     "data_loading: batch_size must be 1 or more, batches_per_execution too, and "
                     "prefetch and device_prefetch not negative");
  if (how.device_prefetch > 0 && how.prefetch == 0)
    throw user_error(errc::bad_configuration,
                     "data_loading: device_prefetch copies batches that prefetch made: let "
                     "prefetch be 1 or more");
  if (purpose != stage::train) return made;
  made.shuffle = how.shuffle;
  if (how.shuffle && how.order) {
    made.order = how.order;
    made.layout.size = how.order->size();
  }
  if (how.drop_last) made.layout.size -= made.layout.size % (ranks * made.layout.batch_size);
  return made;
}

loader::loader(dataset_ptr data, options how)
    : state_(std::make_unique<state>(std::move(data), how)) {}
loader::loader(std::unique_ptr<loader> inner) : inner_(std::move(inner)) {
  if (!inner_) throw internal_error("a loader that wraps nothing");
}
loader::~loader() = default;

const dataset_ptr& loader::data() const { return inner_ ? inner_->data() : state_->data_; }
const loader::options& loader::how() const { return inner_ ? inner_->how() : state_->how_; }

void loader::resume(std::int64_t epoch, std::int64_t batch, std::int64_t sample) {
  if (inner_) return inner_->resume(epoch, batch, sample);
  state_->resumed_epoch_ = epoch;
  state_->resumed_ = state_->how_.layout.resumed(batch, sample);
}
data_layout loader::layout(std::int64_t epoch) const {
  return inner_ ? inner_->layout(epoch) : state_->layout(epoch);
}
void loader::begin(std::int64_t epoch, std::int64_t first, std::int64_t last) {
  if (inner_) return inner_->begin(epoch, first, last);
  state_->begin(epoch, first, last);
}
loader::item loader::next() { return inner_ ? inner_->next() : state_->next(); }

}  // namespace troupe
