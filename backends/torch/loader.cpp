#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "backends/torch/lane_thread.hpp"
#include "backends/torch/ordered_dataset.hpp"
#include "backends/torch/rank_random.hpp"
#include "backends/torch/sampler_check.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

/// The samples of an epoch in their order. Thread-safe.
class epoch_order {
public:
  using list = std::shared_ptr<const std::vector<std::int64_t>>;
  epoch_order(dataset_ptr data, const loader::options& how)
      : data_(std::move(data)),
        how_(how),
        shuffles_(how.shuffle && !dynamic_cast<const ordered_dataset*>(data_.get())) {}

  list of(std::int64_t epoch) {
    const std::lock_guard lock{guard_};
    if (!known_ || (shuffles_ && epoch_ != epoch)) {
      known_ = std::make_shared<const std::vector<std::int64_t>>(made(epoch));
      epoch_ = epoch;
    }
    return known_;
  }

private:
  std::vector<std::int64_t> made(std::int64_t epoch) const {
    if (shuffles_ && how_.order) return checked(how_.order->order(how_.seed, epoch));
    if (shuffles_) return permutation(how_.seed, epoch, data_->size());
    std::vector<std::int64_t> plain(static_cast<std::size_t>(how_.layout.size));
    std::iota(plain.begin(), plain.end(), std::int64_t{0});
    return plain;
  }

  std::vector<std::int64_t> checked(std::vector<std::int64_t> order) const {
    const auto size = data_->size();
    const auto fits = [size](std::int64_t sample) { return sample >= 0 && sample < size; };
    if (static_cast<std::int64_t>(order.size()) < how_.layout.size ||
        !std::ranges::all_of(order, fits))
      throw user_error(errc::job_failed,
                       "a sampler's order is shorter than its size, or has an index that is no "
                       "sample: return size() indices below the dataset's size");
    return order;
  }

  dataset_ptr data_;
  loader::options how_;
  bool shuffles_;
  std::mutex guard_;
  list known_;
  std::int64_t epoch_ = 0;  // of `known_`
};

/// Assembles batches. Used by one thread at a time.
class assembler {
public:
  assembler(dataset_ptr data, const loader::options& how, epoch_order& order)
      : data_(std::move(data)),
        ordered_(dynamic_cast<const ordered_dataset*>(data_.get())),
        how_(how),
        order_(order),
        random_(how.seed) {}

  loader::item assemble(std::int64_t epoch, std::int64_t batch, const data_layout& layout) {
    const auto mine = layout.of_rank(batch, how_.rank);
    loader::item made{{}, mine.count, batch};
    if (mine.count == 0) return made;
    const auto order = order_.of(epoch);
    // Augmentation depends on the batch's position, not on the thread or the batches before it.
    random_.reset({.epoch = epoch, .batch = batch, .shard = how_.rank, .purpose = "data"});
    const random_scope scope{random_};
    const sample_keys keys{how_.seed, epoch};
    const auto which = std::span{*order}.subspan(static_cast<std::size_t>(mine.first),
                                                 static_cast<std::size_t>(mine.count));
    made.batch =
        ordered_ ? ordered_->get_ordered(which, keys, how_.shuffle) : data_->get_keyed(which, keys);
    if (how_.staged_for)
      made.batch =
          map_tensors(made.batch, [&](const at::Tensor& t) { return how_.staged_for->staged(t); });
    return made;
  }

private:
  dataset_ptr data_;
  const ordered_dataset* ordered_;  // `data_`, or null
  const loader::options& how_;
  epoch_order& order_;
  rank_random random_;
};

/// One pass through the data: micro-batches up to `last` - 1 of an epoch. An error ends it early.
struct pass {
  std::uint64_t number = 0;
  std::int64_t epoch = 0;
  std::int64_t next = 0;     // to be assembled
  std::int64_t on_host = 0;  // the first that has not left the host stage
  std::int64_t last = 0;
  data_layout layout;
};

}  // namespace

struct loader::state {
  state(dataset_ptr data, options how)
      : data_(std::move(data)), how_(std::move(how)), order_(data_, how_) {
    if (uploads() && !(assemblers() > 0 && how_.staged_for && how_.device))
      throw internal_error(
          "a loader's device_prefetch needs num_workers, prefetch, staged_for and device");
  }

  ~state() {
    {
      const std::lock_guard lock{mutex_};
      ending_ = true;
    }
    work_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void begin(std::int64_t epoch, std::int64_t first, std::int64_t last) {
    taken_ = first;
    last_ = last;
    {
      const std::lock_guard lock{mutex_};
      pass_ = {pass_.number + 1, epoch, first, first, last, layout(epoch)};
      on_host_.clear();
      on_device_.clear();
    }
    failed_ = nullptr;
    if (threads_.empty()) {
      for (std::int32_t i = 0; i < assemblers(); ++i) threads_.emplace_back([this] { assemble(); });
      if (uploads()) threads_.emplace_back([this] { upload(); });
    }
    work_.notify_all();
  }

  item next() {
    if (taken_ >= last_) throw internal_error("a loader was asked past the end of its pass");
    if (failed_) std::rethrow_exception(failed_);
    auto one = assemblers() > 0 ? take() : made_by([&] { return batch_of(own_, pass_, taken_); });
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

  static item batch_of(assembler& by, const pass& of, std::int64_t batch) {
    return by.assemble(of.epoch, batch, of.layout);
  }

  std::int32_t assemblers() const { return how_.prefetch > 0 ? how_.num_workers : 0; }
  bool uploads() const { return how_.device_prefetch > 0; }

  piece take() {
    std::unique_lock lock{mutex_};
    arrived_.wait(lock, [&] { return uploads() ? !on_device_.empty() : host_has_next(); });
    if (!uploads()) return leave_host(lock);
    auto one = std::move(on_device_.front());
    on_device_.pop_front();
    lock.unlock();
    work_.notify_all();
    return one;
  }

  bool host_has_next() const { return on_host_.contains(pass_.on_host); }

  // Batches leave the host stage in their order.
  piece leave_host(std::unique_lock<std::mutex>& lock) {
    auto one = std::move(on_host_.extract(pass_.on_host).mapped());
    ++pass_.on_host;
    lock.unlock();
    work_.notify_all();
    return one;
  }

  bool may_assemble() const {
    const auto most = std::int64_t{how_.prefetch} * how_.num_workers;
    return pass_.next < pass_.last && pass_.next - pass_.on_host < most;
  }

  // A thread of the host stage.
  void assemble() {
    const lane_thread setup;
    assembler mine{data_, how_, order_};
    std::unique_lock lock{mutex_};
    while (true) {
      work_.wait(lock, [&] { return ending_ || may_assemble(); });
      if (ending_) return;
      const auto now = pass_;
      ++pass_.next;
      lock.unlock();
      auto one = made_by([&] { return batch_of(mine, now, now.next); });
      lock.lock();
      if (now.number != pass_.number) continue;  // of an earlier pass
      if (one.error) pass_.last = std::min(pass_.last, now.next + 1);
      on_host_.emplace(now.next, std::move(one));
      (uploads() ? work_ : arrived_).notify_all();
    }
  }

  // The device stage.
  void upload() {
    const lane_thread setup;
    std::unique_lock lock{mutex_};
    const auto may = [&] {
      return host_has_next() && pass_.on_host < pass_.last &&
             on_device_.size() < static_cast<std::size_t>(how_.device_prefetch);
    };
    while (true) {
      work_.wait(lock, [&] { return ending_ || may(); });
      if (ending_) return;
      const auto now = pass_;
      auto one = leave_host(lock);
      if (!one.error) one = made_by([&] { return uploaded(std::move(one.made)); });
      lock.lock();
      if (now.number != pass_.number) continue;
      if (one.error) pass_.last = std::min(pass_.last, now.on_host + 1);
      on_device_.push_back(std::move(one));
      arrived_.notify_all();
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

  epoch_order order_;
  // Used by the owner's thread only.
  assembler own_{data_, how_, order_};
  std::int64_t taken_ = 0;
  std::int64_t last_ = 0;
  std::exception_ptr failed_;
  // Shared with the stages.
  std::mutex mutex_;
  std::condition_variable work_, arrived_;
  pass pass_;
  std::map<std::int64_t, piece> on_host_;  // by batch
  std::deque<piece> on_device_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

namespace {

// Indices of samples, and the bounds of batches, are computed below this.
constexpr auto samples_max = std::int64_t{1} << 40;

void check_size(std::int64_t size, std::string_view of) {
  if (size < 0 || size >= samples_max)
    throw user_error(
        errc::bad_configuration,
        fmt::format("{} has {} samples: its size() must be from 0 to 2^40 - 1", of, size));
}

}  // namespace

loader_options loader_options_of(const data_loading& how, stage purpose, const dataset& data,
                                 std::int64_t ranks, std::int64_t batch_size) {
  loader_options made;
  made.layout = {data.size(), ranks, how.batch_size.value_or(batch_size)};
  made.num_workers = how.num_workers;
  made.prefetch = how.prefetch;
  made.device_prefetch = how.device_prefetch;
  made.batches_per_execution = how.batches_per_execution;
  if (made.layout.batch_size < 1 || how.num_workers < 0 || how.prefetch < 0 ||
      how.device_prefetch < 0 || how.batches_per_execution < 1)
    throw user_error(errc::bad_configuration,
                     "data_loading: batch_size must be 1 or more, batches_per_execution too, and "
                     "num_workers, prefetch and device_prefetch not negative");
  check_size(made.layout.size, fmt::format("a dataset of the stage {}", to_string(purpose)));
  if (made.layout.batch_size > samples_max / ranks)
    throw user_error(
        errc::bad_configuration,
        fmt::format("batch_size is {}: the {} ranks of the job may have 2^40 samples in a "
                    "micro-batch together; give a smaller one",
                    made.layout.batch_size, ranks));
  if (how.device_prefetch > 0 && (how.prefetch == 0 || how.num_workers == 0))
    throw user_error(errc::bad_configuration,
                     "data_loading: device_prefetch copies batches that were made ahead: let "
                     "num_workers and prefetch be 1 or more");
  if (purpose != stage::train) return made;
  made.shuffle = how.shuffle || how.order;
  if (how.order) {
    if (dynamic_cast<const ordered_dataset*>(&data))
      throw user_error(errc::bad_configuration,
                       "data_loading: a combined_dataset has an order of its own: leave out "
                       "`order`");
    check_sampler(*how.order, made.layout.size);
    made.order = how.order;
    made.layout.size = how.order->size();
    check_size(made.layout.size, "data_loading: the sampler");
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
const loader::options& loader::settings() const {
  return inner_ ? inner_->settings() : state_->how_;
}

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
