// Goal: a loader returns the batches of its rank in the ledger's order, reads ahead within its
// bound, to memory of the host and to that of the device, and reports errors at their batch.
#include <ATen/Functions.h>
#include <limits>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "troupe/accelerator.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

/// Returns the requested indices.
class echo : public dataset {
public:
  explicit echo(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  value get(std::span<const std::int64_t> indices) const override {
    value_list list;
    for (const auto index : indices) list.items.emplace_back(index);
    return list;
  }

private:
  std::int64_t size_;
};

/// Blocks each get until the test allows it, and counts how many have begun.
class gated : public echo {
public:
  using echo::echo;
  value get(std::span<const std::int64_t> indices) const override {
    std::unique_lock lock{mutex_};
    ++began_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return allowed_ > 0; });
    --allowed_;
    return echo::get(indices);
  }
  void wait_for(int began) const {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return began_ >= began; });
  }
  void allow(int more) const {
    const std::lock_guard lock{mutex_};
    allowed_ += more;
    changed_.notify_all();
  }
  int began() const {
    const std::lock_guard lock{mutex_};
    return began_;
  }

private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int began_ = 0;
  mutable int allowed_ = 0;
};

class broken : public echo {
public:
  using echo::echo;
  value get(std::span<const std::int64_t> indices) const override {
    if (indices[0] == 6) throw std::out_of_range("sample 6 is torn");
    return echo::get(indices);
  }
};

/// Adds random numbers, as an augmentation would draw them.
class drawing : public echo {
public:
  using echo::echo;
  value get(std::span<const std::int64_t> indices) const override {
    return value_tuple{{echo::get(indices), boxed(at::rand({2}))}};
  }
};

/// Returns a batch of one tensor: the requested indices.
class rows : public gated {
public:
  using gated::gated;
  value get(std::span<const std::int64_t> indices) const override {
    gated::get(indices);
    return boxed(at::arange(indices[0], indices[0] + static_cast<std::int64_t>(indices.size())));
  }
};

/// A device whose memory is the host's. Blocks each copy until the test allows it, and adds 1000.
class gated_device : public accelerator {
public:
  std::string_view name() const override { return "gated"; }
  c10::DeviceType type() const override { return c10::kCPU; }
  std::unique_ptr<scope> make_current(c10::Device) const override {
    ++switched;
    return nullptr;
  }
  at::Tensor uploaded(const at::Tensor& t, c10::Device) const override {
    copies.get(std::vector<std::int64_t>{0});
    if (t[0].item<std::int64_t>() == breaks_at) throw std::bad_alloc();
    return t.add(1000);
  }
  gated copies{0};
  std::int64_t breaks_at = -1;  ///< the first number of the batch whose copy fails
  mutable std::atomic<int> switched{0};
};

/// The host under another name.
class free_device : public accelerator {
public:
  std::string_view name() const override { return "free"; }
  c10::DeviceType type() const override { return c10::kCPU; }
};

std::vector<std::int64_t> samples_of(const value& batch) {
  std::vector<std::int64_t> samples;
  if (const auto* list = batch.get_if<value_list>())
    for (const auto& item : list->items) samples.push_back(*item.get_if<std::int64_t>());
  return samples;
}

loader::options plain(std::int64_t size, std::int64_t batch_size, std::int32_t prefetch) {
  return {.layout = {.size = size, .ranks = 1, .batch_size = batch_size}, .prefetch = prefetch};
}

TEST_CASE("the loaders of all ranks together return the ledger's order") {
  const auto prefetch = GENERATE(0, 1, 3);
  const auto workers = GENERATE(0, 1, 4);
  const auto ranks = GENERATE(1, 2, 3, 7);
  constexpr std::int64_t size = 50, batch_size = 4;
  const data_layout layout{size, ranks, batch_size};
  std::vector<std::unique_ptr<loader>> loaders;
  for (int rank = 0; rank < ranks; ++rank)
    loaders.push_back(std::make_unique<loader>(std::make_shared<echo>(size),
                                               loader::options{.seed = 9,
                                                               .shuffle = true,
                                                               .layout = layout,
                                                               .rank = rank,
                                                               .num_workers = workers,
                                                               .prefetch = prefetch}));
  for (const std::int64_t epoch : {0, 1, 0}) {
    const auto order = permutation(9, epoch, size);
    for (auto& each : loaders) each->begin(epoch, 0, each->batches());
    std::vector<std::int64_t> seen;
    for (std::int64_t batch = 0; batch < layout.batches(); ++batch)
      for (auto& each : loaders) {
        const auto item = each->next();
        CHECK(item.index == batch);
        const auto samples = samples_of(item.batch);
        CHECK(item.samples == static_cast<std::int64_t>(samples.size()));
        CHECK(item.batch.empty() == samples.empty());
        seen.insert(seen.end(), samples.begin(), samples.end());
      }
    CHECK(seen == order);
  }
}

TEST_CASE("evaluation goes from the first sample to the last") {
  loader each{std::make_shared<echo>(10), plain(10, 4, 2)};
  each.begin(3, 0, 3);
  CHECK(samples_of(each.next().batch) == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(samples_of(each.next().batch) == std::vector<std::int64_t>{4, 5, 6, 7});
  CHECK(samples_of(each.next().batch) == std::vector<std::int64_t>{8, 9});
  CHECK_THROWS_AS(each.next(), internal_error);
}

TEST_CASE("a pass may begin at any batch and end early") {
  const auto prefetch = GENERATE(0, 2);
  loader each{std::make_shared<echo>(40), plain(40, 4, prefetch)};
  CHECK_THROWS_AS(each.next(), internal_error);
  each.begin(0, 3, 5);
  CHECK(each.next().index == 3);
  CHECK(each.next().index == 4);
  CHECK_THROWS_AS(each.next(), internal_error);
  each.begin(0, 2, 2);
  CHECK_THROWS_AS(each.next(), internal_error);
}

TEST_CASE("a new pass drops prefetched batches and a batch that is being loaded") {
  const auto data = std::make_shared<gated>(100);
  loader each{data, plain(100, 10, 2)};
  each.begin(0, 0, 10);
  data->allow(1);
  data->wait_for(2);  // batch 0 is ready, batch 1 is being loaded
  each.begin(0, 7, 10);
  data->allow(4);
  CHECK(each.next().index == 7);
  CHECK(each.next().index == 8);
  CHECK(each.next().index == 9);
}

TEST_CASE("at most `prefetch` batches are loaded ahead") {
  constexpr int prefetch = 3;
  const auto data = std::make_shared<gated>(1000);
  data->allow(1000);
  loader each{data, plain(1000, 10, prefetch)};
  each.begin(0, 0, 100);
  for (int taken = 0; taken < 100; ++taken) {
    CHECK(data->began() <= taken + prefetch);
    each.next();
  }
  CHECK(data->began() == 100);
}

TEST_CASE("several workers assemble batches at the same time, within their bound") {
  constexpr int workers = 3, prefetch = 2;
  const auto data = std::make_shared<gated>(1000);
  auto how = plain(1000, 10, prefetch);
  how.num_workers = workers;
  loader each{data, how};
  each.begin(0, 0, 100);
  data->wait_for(workers);  // none has returned
  data->allow(1000);
  for (int taken = 0; taken < 100; ++taken) {
    data->wait_for(std::min(taken + workers * prefetch, 100));
    CHECK(data->began() <= taken + workers * prefetch);
    const auto item = each.next();
    CHECK(item.index == taken);
    CHECK(samples_of(item.batch).front() == taken * 10);
  }
}

/// Lets a batch come only after a later one, whose first sample is `behind`.
class overtaken : public echo {
public:
  explicit overtaken(std::int64_t behind) : echo(1000), behind_(behind) {}
  value get(std::span<const std::int64_t> indices) const override {
    std::unique_lock lock{mutex_};
    if (indices[0] == behind_) came_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return came_ || indices[0] + 10 != behind_; });
    if (indices[0] == behind_) throw std::out_of_range("the later one");
    if (indices[0] + 10 == behind_ && breaks) throw std::out_of_range("the earlier one");
    return echo::get(indices);
  }
  bool breaks = false;

private:
  std::int64_t behind_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool came_ = false;
};

TEST_CASE("a worker's error waits for the batches before it, and the first error counts") {
  const auto data = std::make_shared<overtaken>(50);
  data->breaks = GENERATE(false, true);
  auto how = plain(1000, 10, 1);
  how.num_workers = 4;
  if (GENERATE(false, true)) {
    const auto device = std::make_shared<free_device>();
    how.staged_for = device;
    how.device_prefetch = 2;
    how.device = c10::Device{c10::kCPU};
  }
  loader each{data, how};
  each.begin(0, 0, 100);
  for (int i = 0; i < (data->breaks ? 4 : 5); ++i) CHECK(each.next().index == i);
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH(each.next(), data->breaks ? "the earlier one" : "the later one");
  each.begin(0, 6, 8);
  CHECK(each.next().index == 6);
  CHECK(each.next().index == 7);
}

TEST_CASE("an exception of the data is thrown when its batch is due") {
  const auto prefetch = GENERATE(0, 2);
  auto how = plain(10, 2, prefetch);
  how.num_workers = GENERATE(1, 3);
  loader each{std::make_shared<broken>(10), how};
  each.begin(0, 0, 5);
  for (int i = 0; i < 3; ++i) CHECK(each.next().index == i);
  CHECK_THROWS_WITH(each.next(), "sample 6 is torn");
  CHECK_THROWS_AS(each.next(), std::out_of_range);
  each.begin(0, 4, 5);
  CHECK(each.next().index == 4);
}

TEST_CASE("a loader can be destroyed while a batch is being loaded") {
  const auto data = std::make_shared<gated>(100);
  auto each = std::make_unique<loader>(data, plain(100, 10, 2));
  each->begin(0, 0, 10);
  data->wait_for(1);
  std::jthread opener{[&] { data->allow(100); }};
  each.reset();
}

TEST_CASE("the random numbers of an augmentation depend only on the sample's place") {
  const auto draws = [](std::int32_t prefetch, std::int64_t first, std::int64_t rank,
                        std::int32_t workers = 1) {
    loader each{std::make_shared<drawing>(80),
                {.seed = 4,
                 .shuffle = true,
                 .layout = {80, 2, 4},
                 .rank = rank,
                 .num_workers = workers,
                 .prefetch = prefetch}};
    each.begin(1, first, 10);
    at::Tensor last;
    for (auto i = first; i < 10; ++i)
      last = unboxed(each.next().batch.get_if<value_tuple>()->items[1]);
    return last;
  };
  const auto expected = draws(0, 0, 0);
  CHECK(at::equal(expected, draws(2, 0, 0)));
  CHECK(at::equal(expected, draws(2, 9, 0)));
  CHECK(at::equal(expected, draws(1, 0, 0, 4)));
  CHECK_FALSE(at::equal(expected, draws(2, 9, 1)));
}

// --- the device stage ----------------------------------------------------------------------------

constexpr int everything = 1 << 20;

struct two_stages {
  explicit two_stages(std::int32_t prefetch, std::int32_t device_prefetch, std::int64_t size = 1000)
      : data(std::make_shared<rows>(size)) {
    auto how = plain(size, 10, prefetch);
    how.staged_for = device;
    how.device_prefetch = device_prefetch;
    how.device = c10::Device{c10::kCPU};
    each = std::make_unique<loader>(data, how);
  }
  std::int64_t first_of_next() const {
    return unboxed(each->next().batch)[0].item<std::int64_t>() - 1000;
  }

  std::shared_ptr<rows> data;
  std::shared_ptr<gated_device> device = std::make_shared<gated_device>();
  std::unique_ptr<loader> each;
};

TEST_CASE("batches that are copied to the device ahead keep their order") {
  const auto host = GENERATE(1, 3), there = GENERATE(1, 2, 5);
  two_stages stages{host, there, 50};
  stages.data->allow(everything);
  stages.device->copies.allow(everything);
  for (int pass = 0; pass < 3; ++pass) {
    stages.each->begin(0, 0, 5);
    for (std::int64_t batch = 0; batch < 5; ++batch) CHECK(stages.first_of_next() == batch * 10);
    CHECK_THROWS_AS(stages.each->next(), internal_error);
  }
  CHECK(stages.device->copies.began() == 15);
  CHECK(stages.device->switched == 15);
}

TEST_CASE("no more than device_prefetch batches are on the device ahead") {
  constexpr int host = 2, there = 3;
  two_stages stages{host, there};
  stages.data->allow(everything);
  stages.device->copies.allow(everything);
  stages.each->begin(0, 0, 100);
  for (int taken = 0; taken < 100; ++taken) {
    // Both stages are full, and get the time to go on all the same.
    stages.data->wait_for(std::min(taken + there + host, 100));
    for (int i = 0; i < 10; ++i) std::this_thread::yield();
    CHECK(stages.device->copies.began() <= taken + there);
    CHECK(stages.data->began() <= taken + there + host);
    CHECK(stages.first_of_next() == taken * 10);
  }
  CHECK(stages.data->began() == 100);
}

TEST_CASE("a device that is slow to copy: the host stage waits at its bound") {
  two_stages stages{2, 1};
  stages.data->allow(everything);
  stages.each->begin(0, 0, 100);
  stages.device->copies.wait_for(1);  // batch 0 is being copied
  stages.data->wait_for(3);           // batches 1 and 2 wait for it
  stages.device->copies.allow(1);
  CHECK(stages.first_of_next() == 0);
  stages.device->copies.wait_for(2);
  stages.data->wait_for(4);
  CHECK(stages.data->began() == 4);
  stages.device->copies.allow(everything);
}

TEST_CASE("a copy that fails: its batch throws, and those before it come") {
  two_stages stages{GENERATE(1, 4), GENERATE(1, 4)};
  stages.device->breaks_at = 60;
  stages.data->allow(everything);
  stages.device->copies.allow(everything);
  stages.each->begin(0, 4, 100);
  CHECK(stages.first_of_next() == 40);
  CHECK(stages.first_of_next() == 50);
  CHECK_THROWS_AS(stages.each->next(), std::bad_alloc);
  CHECK_THROWS_AS(stages.each->next(), std::bad_alloc);
  stages.each->begin(0, 7, 9);
  CHECK(stages.first_of_next() == 70);
  CHECK(stages.first_of_next() == 80);
}

TEST_CASE("data that fails behind the device stage: the batches before it come") {
  auto how = plain(10, 2, 3);
  const auto device = std::make_shared<gated_device>();
  device->copies.allow(everything);
  how.staged_for = device;
  how.device_prefetch = GENERATE(1, 3);
  how.device = c10::Device{c10::kCPU};
  loader each{std::make_shared<broken>(10), how};
  each.begin(0, 0, 5);
  for (int i = 0; i < 3; ++i) CHECK(each.next().index == i);
  CHECK_THROWS_WITH(each.next(), "sample 6 is torn");
  CHECK_THROWS_AS(each.next(), std::out_of_range);
  each.begin(0, 4, 5);
  CHECK(each.next().index == 4);
}

TEST_CASE("a new pass drops what is on the device, and a batch that is being copied") {
  two_stages stages{2, 2};
  stages.data->allow(everything);
  stages.device->copies.allow(1);
  stages.each->begin(0, 0, 100);
  stages.device->copies.wait_for(2);  // batch 0 is there, batch 1 is being copied
  stages.each->begin(0, 90, 93);
  stages.device->copies.allow(everything);
  for (const auto first : {900, 910, 920}) CHECK(stages.first_of_next() == first);
}

TEST_CASE("a loader can be destroyed while a batch is being copied") {
  two_stages stages{2, 2};
  stages.data->allow(everything);
  stages.each->begin(0, 0, 100);
  stages.device->copies.wait_for(1);
  std::jthread opener{[&] { stages.device->copies.allow(everything); }};
  stages.each.reset();
}

TEST_CASE("a loader refuses impossible prefetch options") {
  const echo data{10};
  const auto refused = [&](const data_loading& how) {
    CHECK_THROWS_AS(loader_options_of(how, stage::train, data, 1, 2), user_error);
  };
  refused({.prefetch = -1});
  refused({.device_prefetch = -1});
  refused({.prefetch = 0, .device_prefetch = 1});
  refused({.num_workers = -1});
  refused({.num_workers = 0, .device_prefetch = 1});
  refused({.batches_per_execution = 0});
  const auto made = loader_options_of({.device_prefetch = 3, .batches_per_execution = 4},
                                      stage::validate, data, 1, 2);
  CHECK(made.device_prefetch == 3);
  CHECK(made.batches_per_execution == 4);
  CHECK_THROWS_AS((loader{std::make_shared<echo>(10), {.device_prefetch = 1}}), internal_error);
}

TEST_CASE("a loader refuses sizes and batches beyond 2^40 samples") {
  const auto limit = std::int64_t{1} << 40;
  for (const auto size : {std::int64_t{-1}, limit, std::numeric_limits<std::int64_t>::max()}) {
    CHECK_THROWS_WITH(loader_options_of({}, stage::validate, echo{size}, 1, 2),
                      Catch::Contains("a dataset of the stage validate") &&
                          Catch::Contains(std::to_string(size)));
  }
  CHECK_NOTHROW(loader_options_of({}, stage::validate, echo{limit - 1}, 1, 2));
  CHECK_THROWS_WITH(
      loader_options_of({}, stage::train, echo{10}, 2, std::numeric_limits<std::int64_t>::max()),
      Catch::Contains("give a smaller one"));
  CHECK_NOTHROW(loader_options_of({}, stage::train, echo{10}, 2, limit / 2));
}

TEST_CASE("sixteen loaders on few cores keep their order") {
  constexpr std::int64_t size = 600;
  const auto data = std::make_shared<echo>(size);
  const auto order = permutation(1, 0, size);
  std::vector<std::vector<std::int64_t>> seen(16);
  {
    std::vector<std::jthread> lanes;
    for (auto& mine : seen)
      lanes.emplace_back([&] {
        loader each{
            data,
            {.seed = 1, .shuffle = true, .layout = {size, 1, 2}, .num_workers = 3, .prefetch = 2}};
        each.begin(0, 0, 100);  // abandoned at once
        each.begin(0, 0, each.batches());
        for (std::int64_t i = 0; i < each.batches(); ++i)
          for (const auto sample : samples_of(each.next().batch)) mine.push_back(sample);
      });
  }
  for (const auto& mine : seen) CHECK(mine == order);
}

/// The last sample first.
struct backwards final : sampler {
  explicit backwards(std::int64_t size, std::int64_t last) : size_(size), last_(last) {}
  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> order(std::uint64_t, std::int64_t) const override {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < size_; ++i) all.push_back(last_ - i);
    return all;
  }

private:
  std::int64_t size_, last_;
};

TEST_CASE("an order counts, whatever shuffle says") {
  const auto data = std::make_shared<echo>(4);
  const auto read = [&](const data_loading& how) {
    loader one{data, loader_options_of(how, stage::train, *data, 1, 4)};
    one.begin(0, 0, 1);
    return one.next().batch;
  };
  const auto order = std::make_shared<backwards>(4, 3);
  const value expected{value_list{{3, 2, 1, 0}}};
  CHECK(read({.shuffle = false, .order = order}) == expected);
  CHECK(read({.order = order}) == expected);
  CHECK_THROWS_WITH(read({.order = std::make_shared<backwards>(4, 4)}),
                    Catch::Contains("an index that is no sample"));
}

TEST_CASE("a sampler that was made for another number of samples is refused") {
  const echo data{4};
  const auto of = [&](sampler_ptr order) {
    return loader_options_of({.order = std::move(order)}, stage::train, data, 1, 4).layout.size;
  };
  CHECK(of(bucketed_sampler({1, 2, 3, 4}, 2)) == 4);
  CHECK_THROWS_WITH(
      of(bucketed_sampler({1, 2, 3}, 2)),
      Catch::Contains("bucketed_sampler was given 3 lengths") && Catch::Contains("4 samples"));
  CHECK_THROWS_WITH(of(weighted_sampler({1, 2, 3}, 8)), Catch::Contains("3 weights"));
  CHECK(of(weighted_sampler({1, 2, 3, 4}, 8)) == 8);
}

}  // namespace
}  // namespace troupe
