#include "apps/bench/collectives.hpp"

#include "apps/bench/bare_loops.hpp"
#include "apps/bench/staging_floor.hpp"
#include "backends/collective/bucket_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::program {

namespace {

// Long compared with the clock's resolution and with the barrier at the batch's start.
constexpr double batch_seconds = 0.02;
constexpr std::size_t small_size = 1u << 20;

// One size of one operation on one rank.
class subject {
public:
  subject(communicator& group, std::string operation, std::size_t bytes, bool registered)
      : group_(group),
        operation_(std::move(operation)),
        ranks_(static_cast<std::size_t>(group.group().world)),
        piece_(bytes / sizeof(float) / ranks_),
        count_(pieces() ? piece_ * ranks_ : bytes / sizeof(float)),
        whole_(memory(registered, count_)),
        part_(memory(registered, piece_)) {
    std::fill(whole(), whole() + count_, 0.0f);
    std::fill(part(), part() + piece_, 0.0f);
  }

  std::size_t bytes() const { return operation_ == "barrier" ? 0 : count_ * sizeof(float); }

  void call() { submit()->wait(); }

  // Each rank contributes its number, counted from one.
  void check() {
    const auto mine = static_cast<float>(group_.group().rank + 1);
    std::fill(whole(), whole() + count_, mine);
    std::fill(part(), part() + piece_, mine);
    call();
    const auto sum = static_cast<float>(ranks_ * (ranks_ + 1)) / 2;
    if (operation_ == "all_reduce") expect(whole(), count_, sum);
    if (operation_ == "broadcast") expect(whole(), count_, 1);
    if (operation_ == "reduce_scatter") expect(part(), piece_, sum);
    if (operation_ == "all_gather")
      for (std::size_t rank = 0; rank < ranks_; ++rank)
        expect(whole() + rank * piece_, piece_, static_cast<float>(rank + 1));
    // Sums of zeros stay zeros, however often they are added up.
    std::fill(whole(), whole() + count_, 0.0f);
    std::fill(part(), part() + piece_, 0.0f);
  }

private:
  std::shared_ptr<void> memory(bool registered, std::size_t count) const {
    const auto bytes = std::max<std::size_t>(count, 1) * sizeof(float);
    return registered ? group_.allocate(bytes)
                      : allocate_bucket(bytes, true, static_cast<std::size_t>(group_.group().rank));
  }
  bool pieces() const { return operation_ == "all_gather" || operation_ == "reduce_scatter"; }
  float* whole() const { return static_cast<float*>(whole_.get()); }
  float* part() const { return static_cast<float*>(part_.get()); }

  work_ptr submit() {
    const buffer all{whole(), count_, dtype::f32};
    const buffer one{part(), piece_, dtype::f32};
    if (operation_ == "all_reduce") return group_.all_reduce(all, reduction::sum);
    if (operation_ == "broadcast") return group_.broadcast(all, 0);
    if (operation_ == "all_gather") return group_.all_gather(one, all);
    if (operation_ == "reduce_scatter") return group_.reduce_scatter(all, one, reduction::sum);
    return group_.barrier("bench");
  }

  void expect(const float* values, std::size_t count, float wanted) const {
    const auto* wrong = std::find_if(values, values + count, [&](float x) { return x != wanted; });
    if (wrong != values + count)
      throw internal_error(fmt::format("{} over {}: element {} is {}, not {}", operation_,
                                       group_.name(), wrong - values, *wrong, wanted));
  }

  communicator& group_;
  const std::string operation_;
  const std::size_t ranks_;
  const std::size_t piece_;
  const std::size_t count_;
  std::shared_ptr<void> whole_;
  std::shared_ptr<void> part_;
};

// This rank's share of the memory traffic, on memory that no other rank uses.
class bare_share {
public:
  bare_share(const std::string& operation, std::size_t bytes, std::int32_t ranks)
      : operation_(operation), count_(bytes / sizeof(float) / static_cast<std::size_t>(ranks)) {
    for (std::int32_t i = 0; i < ranks; ++i) arrays_.push_back(make(count_));
    if (operation_ == "reduce_scatter") out_ = make(count_);
    if (operation_ == "all_gather") out_ = make(count_ * arrays_.size());
  }

  void call() {
    if (operation_ == "all_reduce") bare_all_reduce(arrays_, count_);
    if (operation_ == "reduce_scatter") bare_reduce(arrays_, out_, count_);
    if (operation_ == "broadcast")
      bare_copy(arrays_.front(), std::span{arrays_}.subspan(1), count_);
    if (operation_ == "all_gather")
      for (std::size_t i = 0; i < arrays_.size(); ++i) {
        auto* to = out_ + i * count_;
        bare_copy(arrays_[i], {&to, 1}, count_);
      }
  }

private:
  float* make(std::size_t count) {
    memory_.push_back(
        allocate_bucket(std::max<std::size_t>(count, 1) * sizeof(float), true, memory_.size()));
    auto* array = static_cast<float*>(memory_.back().get());
    std::fill(array, array + count, 0.0f);
    return array;
  }

  const std::string operation_;
  const std::size_t count_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<float*> arrays_;
  float* out_ = nullptr;
};

void agree_on_slowest(communicator& group, std::vector<double>& seconds) {
  group.all_reduce({seconds.data(), seconds.size(), dtype::f64}, reduction::max)->wait();
}

template <class Call>
double time_of(communicator& group, int calls, const Call& call) {
  group.barrier("batch")->wait();
  const auto begin = bench_now();
  for (int i = 0; i < calls; ++i) call();
  return (bench_now() - begin) / calls;
}

// Calls that fill a batch: the same number on all ranks.
template <class Call>
int calls_of(communicator& group, const Call& call) {
  std::vector<double> trial{time_of(group, 3, call)};
  agree_on_slowest(group, trial);
  return static_cast<int>(std::clamp(batch_seconds / std::max(trial[0], 1e-9), 2.0, 20000.0));
}

collectives_row measure(communicator& group, const collectives_question& what, std::size_t bytes) {
  const auto& operation = what.operation;
  const int rounds = bytes <= small_size ? 5 * what.rounds : what.rounds;
  subject with{group, operation, bytes, what.registered};
  with.check();
  const auto ranks = group.group().world;
  collectives_row row{operation, std::string{group.name()}, ranks, with.bytes(), {}, {}, {}};
  const auto collective = [&] { with.call(); };
  const int calls = calls_of(group, collective);
  std::vector<double> seconds;
  if (ranks == 1 || row.bytes == 0) {
    for (int round = 0; round < rounds; ++round)
      seconds.push_back(time_of(group, calls, collective));
    agree_on_slowest(group, seconds);
    row.collective = summary(std::move(seconds));
    return row;
  }
  bare_share share{operation, row.bytes, ranks};
  const auto bare = [&] { share.call(); };
  const int bare_calls = calls_of(group, bare);
  const bool staged =
      !what.registered && ranks == 2 && operation == "all_reduce" && group.name() == "shm";
  std::optional<staging_floor> floor;
  if (staged && group.group().rank == 0) floor.emplace(row.bytes);
  std::vector<double> bare_seconds;
  std::vector<double> floor_seconds;
  for (int round = 0; round < rounds; ++round) {
    seconds.push_back(time_of(group, calls, collective));
    bare_seconds.push_back(time_of(group, bare_calls, bare));
    if (!staged) continue;
    // Rank 0 runs both threads of the floor; the other rank sleeps meanwhile.
    floor_seconds.push_back(floor ? floor->time_of(calls) : 0);
    group.barrier("the floor")->wait();
  }
  agree_on_slowest(group, seconds);
  agree_on_slowest(group, bare_seconds);
  agree_on_slowest(group, floor_seconds);
  row.collective = summary(std::move(seconds));
  row.bare = summary(std::move(bare_seconds));
  if (staged) row.floor = summary(std::move(floor_seconds));
  return row;
}

}  // namespace

const std::vector<std::string>& benched_operations() {
  static const std::vector<std::string> all{"all_reduce", "broadcast", "all_gather",
                                            "reduce_scatter", "barrier"};
  return all;
}

void bench_collectives(communicator& group, const collectives_question& what,
                       const std::function<void(const collectives_row&)>& take) {
  auto sizes = what.sizes;
  if (what.operation == "barrier") sizes = {0};
  for (const auto bytes : sizes) take(measure(group, what, bytes));
}

}  // namespace troupe::program
