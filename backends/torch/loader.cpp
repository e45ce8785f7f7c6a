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
      : data_(std::move(data)), how_(how), assembler_(data_, how) {}

  ~state() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock{mutex_};
      ending_ = true;
    }
    work_.notify_all();
    thread_.join();
  }

  void begin(std::int64_t epoch, std::int64_t first, std::int64_t last) {
    taken_ = first;
    {
      const std::lock_guard lock{mutex_};
      pass_ = {pass_.number + 1, epoch, first, last, layout(epoch)};
      ready_.clear();
      failed_ = nullptr;
    }
    if (how_.prefetch > 0 && !thread_.joinable()) thread_ = std::thread{[this] { run(); }};
    work_.notify_all();
  }

  item next() {
    if (taken_ >= pass_.last) throw internal_error("a loader was asked past the end of its pass");
    auto made = how_.prefetch > 0 ? take() : make_here();
    ++taken_;
    return made;
  }

  data_layout layout(std::int64_t epoch) const {
    return epoch == resumed_epoch_ ? resumed_ : how_.layout;
  }

  dataset_ptr data_;
  options how_;
  std::int64_t resumed_epoch_ = -1;
  data_layout resumed_;  ///< of that epoch

private:
  item make_here() {
    if (failed_) std::rethrow_exception(failed_);
    try {
      return assembler_.assemble(pass_.epoch, taken_, pass_.layout);
    } catch (...) {
      failed_ = std::current_exception();
      throw;
    }
  }

  item take() {
    std::unique_lock lock{mutex_};
    arrived_.wait(lock, [&] { return !ready_.empty() || failed_; });
    if (ready_.empty()) std::rethrow_exception(failed_);
    auto made = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    work_.notify_all();
    return made;
  }

  bool has_work() const {
    return !failed_ && pass_.next < pass_.last &&
           ready_.size() < static_cast<std::size_t>(how_.prefetch);
  }

  void run() {
    const lane_thread setup;
    std::unique_lock lock{mutex_};
    while (true) {
      work_.wait(lock, [&] { return ending_ || has_work(); });
      if (ending_) return;
      const auto [number, epoch, batch, last, layout] = pass_;
      ++pass_.next;
      lock.unlock();
      item made;
      std::exception_ptr error;
      try {
        made = assembler_.assemble(epoch, batch, layout);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (number != pass_.number) continue;  // of an earlier pass
      if (error)
        failed_ = error;
      else
        ready_.push_back(std::move(made));
      arrived_.notify_all();
    }
  }

  assembler assembler_;
  std::int64_t taken_ = 0;  ///< owner only; the loader thread shares all members below
  std::mutex mutex_;
  std::condition_variable work_, arrived_;
  pass pass_;
  std::deque<item> ready_;
  std::exception_ptr failed_;
  bool ending_ = false;
  std::thread thread_;
};

loader_options loader_options_of(const data_loading& how, stage purpose, const dataset& data,
                                 std::int64_t ranks, std::int64_t batch_size) {
  loader_options made;
  made.layout = {data.size(), ranks, how.batch_size.value_or(batch_size)};
  made.prefetch = how.prefetch;
  if (made.layout.batch_size < 1 || how.prefetch < 0)
    throw user_error(errc::bad_configuration,
                     "data_loading: batch_size must be 1 or more, and prefetch not negative");
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
