// Goal: data modules from tensors, functions, streams, torch::data and files return what was put
// in, each sample once per epoch. The snippets of docs/data.md compile and do what the page says.
#include <ATen/Functions.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "backends/checkpoint/safetensors.hpp"
#include "backends/torch/data_catalog.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/data.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

namespace {

// The snippets of docs/data.md.

troupe::data_ptr in_memory(const at::Tensor& inputs, const at::Tensor& labels) {
  return troupe::make_data({.name = "in memory",
                            .train = troupe::tensor_dataset({inputs, labels}),
                            .train_loading = {.batch_size = 32, .drop_last = true}});
}

troupe::dataset_ptr noisy(troupe::dataset_ptr plain) {
  return troupe::transformed(std::move(plain), [](troupe::value sample, std::uint64_t) {
    return troupe::map_tensors(sample, [](const at::Tensor& x) {
      return x.is_floating_point() ? x + 0.1 * at::randn(x.sizes()) : x;
    });
  });
}

troupe::dataset_ptr squares() {
  return troupe::stream_dataset(1000, [](std::int64_t) {
    return [next = std::int64_t{0}]() mutable -> std::optional<troupe::value> {
      const auto i = next++;
      return troupe::value_tuple{{static_cast<double>(i), static_cast<double>(i * i)}};
    };
  });
}

troupe::data_ptr half_labelled(const at::Tensor& inputs, const at::Tensor& labels,
                               const at::Tensor& more_inputs) {
  return troupe::make_data(
      {.name = "half labelled",
       .train = troupe::combined_dataset(
           {{.name = "labelled", .data = troupe::tensor_dataset({inputs, labels})},
            {.name = "unlabelled", .data = troupe::tensor_dataset({more_inputs}), .samples = 4}})});
}

}  // namespace

namespace troupe {
namespace {

using Catch::Matchers::Contains;

const at::Tensor& item(const value& batch, std::size_t i) {
  return unboxed(batch.get_if<value_tuple>()->items.at(i));
}

std::vector<std::int64_t> numbers(const at::Tensor& tensor) {
  const auto whole = tensor.to(at::kLong).contiguous();
  const auto* first = whole.const_data_ptr<std::int64_t>();
  return {first, first + whole.numel()};
}

template <class F>
std::string refusal(F&& what) {
  try {
    what();
  } catch (const user_error& error) {
    return error.what();
  }
  return "nothing";
}

/// What the loaders of all ranks return in one epoch, batch by batch.
std::vector<std::vector<std::int64_t>> epoch_of(const dataset_ptr& data, const data_loading& how,
                                                std::int64_t ranks, std::int64_t epoch) {
  std::vector<std::vector<std::int64_t>> batches;
  std::vector<std::unique_ptr<loader>> loaders;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    auto options = loader_options_of(how, stage::train, *data, ranks, 4);
    options.seed = 5;
    options.rank = rank;
    loaders.push_back(std::make_unique<loader>(data, options));
    loaders.back()->begin(epoch, 0, loaders.back()->batches(epoch));
  }
  for (std::int64_t b = 0; b < loaders[0]->batches(epoch); ++b) {
    auto& batch = batches.emplace_back();
    for (auto& each : loaders) {
      const auto got = each->next();
      if (got.samples == 0) continue;
      const auto mine = numbers(item(got.batch, 0));
      CHECK(static_cast<std::int64_t>(mine.size()) == got.samples);
      batch.insert(batch.end(), mine.begin(), mine.end());
    }
  }
  return batches;
}

std::vector<std::int64_t> joined(const std::vector<std::vector<std::int64_t>>& batches) {
  std::vector<std::int64_t> all;
  for (const auto& one : batches) all.insert(all.end(), one.begin(), one.end());
  return all;
}

dataset_ptr counting(std::int64_t size) {
  return tensor_dataset({at::arange(size, at::kLong), at::arange(size, at::kFloat)});
}

TEST_CASE("drop_last: every micro-batch is full, and no sample comes twice", "[own_data]") {
  const auto ranks = GENERATE(1, 2, 3);
  const auto data = counting(41);
  const auto whole = joined(epoch_of(data, {}, ranks, 1));
  CHECK(whole == permutation(5, 1, 41));
  const auto kept = epoch_of(data, {.drop_last = true}, ranks, 1);
  CHECK(kept.size() == static_cast<std::size_t>(41 / (4 * ranks)));
  for (const auto& batch : kept) CHECK(batch.size() == static_cast<std::size_t>(4 * ranks));
  const auto seen = joined(kept);
  CHECK(std::equal(seen.begin(), seen.end(), whole.begin()));
  CHECK(seen != joined(epoch_of(data, {.drop_last = true}, ranks, 2)));
}

TEST_CASE("batch size and order of a loader apply to it alone", "[own_data]") {
  const auto data = counting(10);
  const auto batches = epoch_of(data, {.batch_size = 3, .shuffle = false}, 2, 4);
  CHECK(batches == std::vector<std::vector<std::int64_t>>{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9}});
  const auto evaluated =
      loader_options_of({.shuffle = true, .drop_last = true}, stage::test, *data, 3, 4);
  CHECK_FALSE(evaluated.shuffle);
  CHECK(evaluated.layout.size == 10);
  CHECK_THAT(refusal([&] { loader_options_of({.batch_size = 0}, stage::train, *data, 1, 4); }),
             Contains("batch_size must be 1 or more"));
}

TEST_CASE("a weighted order draws in proportion, keyed by seed and epoch", "[own_data]") {
  const auto order = weighted_sampler({1, 0, 3, 0}, 20000);
  const auto drawn = order->order(7, 0);
  CHECK(drawn.size() == 20000);
  std::map<std::int64_t, double> counts;
  for (const auto i : drawn) ++counts[i];
  CHECK(counts.size() == 2);
  CHECK(counts[2] / counts[0] == Approx(3).epsilon(0.05));
  CHECK(drawn == order->order(7, 0));
  CHECK(drawn != order->order(8, 0));
  CHECK(drawn != order->order(7, 1));
  // An epoch has as many entries as asked for, on any number of ranks.
  const auto one = epoch_of(counting(4), {.order = weighted_sampler({1, 0, 3, 0}, 10)}, 1, 2);
  const auto two = epoch_of(counting(4), {.order = weighted_sampler({1, 0, 3, 0}, 10)}, 2, 2);
  CHECK(joined(one).size() == 10);
  CHECK(joined(one) == joined(two));
  CHECK_THAT(refusal([] { weighted_sampler({0, 0}, 3); }), Contains("a weight above 0"));
  CHECK_THAT(refusal([] { weighted_sampler({1, -1}, 3); }), Contains("0 or more"));
  CHECK_THAT(refusal([] {
               epoch_of(counting(2), {.order = weighted_sampler({0, 0, 1}, 4)}, 1, 0);
             }),
             Contains("weighted_sampler was given 3 weights, and the dataset has 2 samples"));
}

TEST_CASE("a bucketed order has each sample once, and similar lengths together", "[own_data]") {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 100; ++i) lengths.push_back(i * 37 % 50);
  const auto order = bucketed_sampler(lengths, 40)->order(3, 1);
  CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 100);
  for (std::size_t i = 1; i < order.size(); ++i)
    if (i % 40 != 0) CHECK(lengths[order[i - 1]] <= lengths[order[i]]);
  CHECK(order != bucketed_sampler(lengths, 40)->order(3, 2));
}

TEST_CASE("samples are collated as PyTorch does it", "[own_data]") {
  const auto sample = [](std::int64_t i) -> value {
    return value_map{{{"x", boxed(at::full({2}, i))},
                      {"pair", value_tuple{{i, 0.5 * static_cast<double>(i)}}},
                      {"even", i % 2 == 0},
                      {"name", std::to_string(i)}}};
  };
  const auto batch = function_dataset(5, sample)->get(std::vector<std::int64_t>{1, 4});
  const auto& map = batch.get_if<value_map>()->items;
  CHECK(unboxed(map.at("x")).equal(at::tensor({1, 1, 4, 4}).view({2, 2})));
  CHECK(item(map.at("pair"), 0).equal(at::tensor({1, 4}, at::kLong)));
  CHECK(item(map.at("pair"), 1).equal(at::tensor({0.5, 2.0}, at::kDouble)));
  CHECK(unboxed(map.at("even")).equal(at::tensor({0, 1}).to(at::kBool)));
  CHECK(map.at("name") == value{value_list{{value{"1"}, value{"4"}}}});
  CHECK_THAT(refusal([] { collate({value{1.0}, value{"a"}}); }), Contains("samples of one kind"));
  CHECK_THAT(refusal([] {
               collate({boxed(at::zeros({2})), boxed(at::zeros({3}))});
             }),
             Contains("differ in shape"));
  CHECK_THAT(refusal([] {
               tensor_dataset({at::zeros({2}), at::zeros({3})});
             }),
             Contains("different numbers of rows"));
}

TEST_CASE("a transform draws by seed, epoch and sample, on any rank", "[own_data]") {
  const auto data = noisy(tensor_dataset({at::zeros({12, 3})}));
  const auto noise = [&](std::int64_t epoch, std::vector<std::int64_t> which) {
    return item(data->get_keyed(which, {.seed = 2, .epoch = epoch}), 0);
  };
  const auto all = noise(1, {0, 1, 2, 3});
  CHECK(all.abs().min().item<double>() > 0);
  CHECK(noise(1, {3, 1}).equal(at::stack({all[3], all[1]})));
  CHECK_FALSE(noise(2, {0}).equal(all.narrow(0, 0, 1)));
  CHECK_FALSE(all[0].equal(all[1]));
}

TEST_CASE("a stream gives each rank its samples in order, in every epoch", "[own_data]") {
  const auto ranks = GENERATE(1, 3);
  const auto opened = std::make_shared<std::atomic<int>>(0);
  const auto data = stream_dataset(30, [opened](std::int64_t epoch) -> sample_stream {
    ++*opened;
    return [epoch, next = 0]() mutable -> std::optional<value> {
      return value_tuple{{boxed(at::full({}, 100 * epoch + next++, at::kLong))}};
    };
  });
  for (const std::int64_t epoch : {0, 1}) {
    const auto seen = joined(epoch_of(data, {.shuffle = false}, ranks, epoch));
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < 30; ++i) expected.push_back(100 * epoch + i);
    CHECK(seen == expected);
  }
  CHECK(*opened <= 2 * ranks);
  const std::vector<std::int64_t> three{3};
  CHECK(numbers(item(data->get(three), 0)) == three);
  const auto values = squares()->get(std::vector<std::int64_t>{2, 5});
  CHECK(item(values, 1).equal(at::tensor({4.0, 25.0}, at::kDouble)));
  const auto few = stream_dataset(9, [](std::int64_t) -> sample_stream {
    return [next = 0]() mutable { return next++ < 4 ? std::optional<value>{1.0} : std::nullopt; };
  });
  CHECK_THAT(refusal([&] { few->get(std::vector<std::int64_t>{7}); }),
             Contains("ended after 4 of 9 samples"));
}

TEST_CASE("torch_dataset makes a Troupe dataset of a dataset of torch::data", "[own_data]") {
  struct pairs : torch::data::datasets::Dataset<pairs> {
    torch::data::Example<> get(std::size_t i) override {
      return {at::full({2}, static_cast<double>(i)), at::full({}, static_cast<double>(i))};
    }
    std::optional<std::size_t> size() const override { return 6; }
  };
  const std::vector<std::int64_t> which{5, 2};
  const auto plain = torch_dataset(pairs{});
  CHECK(plain->size() == 6);
  const auto batch = plain->get(which);
  CHECK(item(batch, 0).equal(at::tensor({5., 5., 2., 2.}).view({2, 2})));
  CHECK(item(batch, 1).equal(at::tensor({5., 2.})));
  const auto stacked = torch_dataset(pairs{}.map(torch::data::transforms::Stack<>()))->get(which);
  CHECK(item(stacked, 0).equal(item(batch, 0)));
  const auto rows = torch_dataset(torch::data::datasets::TensorDataset(at::arange(6)))->get(which);
  CHECK(unboxed(rows).equal(at::tensor({5, 2}, at::kLong)));
}

/// What the members of a combined dataset gave in one epoch: the samples of member m in batch b are
/// [m][b].
using parts_read = std::vector<std::vector<std::vector<std::int64_t>>>;
parts_read parts_of_epoch(const dataset_ptr& data, const data_loading& how, std::int64_t ranks,
                          std::int64_t epoch, stage purpose = stage::train,
                          std::int64_t first = 0) {
  parts_read all(2);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    auto options = loader_options_of(how, purpose, *data, ranks, 2);
    options.seed = 5;
    options.rank = rank;
    loader reads{data, options};
    if (first > 0) reads.resume(epoch, 1, first);
    const auto begin = std::min<std::int64_t>(first, 1), end = reads.batches(epoch);
    reads.begin(epoch, begin, end);
    for (auto& one : all) one.resize(static_cast<std::size_t>(end - begin));
    for (auto b = begin; b < end; ++b) {
      const auto got = reads.next();
      if (got.samples == 0) continue;
      for (std::size_t m = 0; m < all.size(); ++m) {
        const auto part = part_of(batch{got.batch, got.samples}, m);
        if (part.empty()) continue;
        const auto mine = numbers(part[0]);
        CHECK(static_cast<std::int64_t>(mine.size()) == part.samples());
        auto& into = all[m][static_cast<std::size_t>(b - begin)];
        into.insert(into.end(), mine.begin(), mine.end());
      }
    }
  }
  return all;
}

std::vector<std::int64_t> counted_up(std::int64_t size) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> all) {
  std::ranges::sort(all);
  return all;
}

TEST_CASE("combined: a shorter member begins anew, with each sample once per pass", "[own_data]") {
  const auto data = combined_dataset({counting(11), counting(4)});
  CHECK(data->size() == 11);
  const auto one = parts_of_epoch(data, {}, 1, 3);
  const auto a = joined(one[0]), b = joined(one[1]);
  CHECK(sorted(a) == counted_up(11));
  CHECK(a != counted_up(11));
  const std::vector<std::int64_t> first(b.begin(), b.begin() + 4),
      second(b.begin() + 4, b.begin() + 8);
  CHECK(sorted(first) == counted_up(4));
  CHECK(sorted(second) == counted_up(4));
  CHECK(first != second);
  CHECK(std::set<std::int64_t>(b.begin() + 8, b.end()).size() == 3);
  for (const std::int64_t ranks : {2, 3}) {
    const auto same = parts_of_epoch(data, {}, ranks, 3);
    CHECK(joined(same[0]) == a);
    CHECK(joined(same[1]) == b);
  }
  CHECK(joined(parts_of_epoch(data, {}, 2, 4)[0]) != a);
  CHECK(joined(parts_of_epoch(data, {.drop_last = true}, 2, 3)[0]) ==
        std::vector<std::int64_t>(a.begin(), a.begin() + 8));
}

TEST_CASE("combined: the mode decides how long an epoch is and which members are missing",
          "[own_data]") {
  const std::vector<dataset_ptr> members{counting(5), counting(3)};
  const auto read = [&](combined_mode mode, const data_loading& how = {.shuffle = false}) {
    return parts_of_epoch(combined_dataset(members, mode), how, 1, 0);
  };
  using batches = std::vector<std::vector<std::int64_t>>;
  CHECK(read(combined_mode::max_size_cycle) ==
        parts_read{batches{{0, 1}, {2, 3}, {4}}, batches{{0, 1}, {2, 0}, {1}}});
  CHECK(read(combined_mode::min_size) == parts_read{batches{{0, 1}, {2}}, batches{{0, 1}, {2}}});
  CHECK(read(combined_mode::max_size) ==
        parts_read{batches{{0, 1}, {2, 3}, {4}}, batches{{0, 1}, {2}, {}}});
  CHECK(read(combined_mode::sequential) ==
        parts_read{batches{{0, 1}, {2, 3}, {4}, {}}, batches{{}, {}, {0}, {1, 2}}});
  for (const auto mode : {combined_mode::max_size, combined_mode::sequential}) {
    const auto shuffled = read(mode, {});
    CHECK(sorted(joined(shuffled[0])) == counted_up(5));
    CHECK(sorted(joined(shuffled[1])) == counted_up(3));
  }
  // A longer member has other samples in each epoch.
  std::set<std::int64_t> seen;
  for (std::int64_t epoch = 0; epoch < 9; ++epoch) {
    const auto few = combined_dataset(members, combined_mode::min_size);
    const auto some = joined(parts_of_epoch(few, {}, 1, epoch)[0]);
    CHECK(std::set<std::int64_t>(some.begin(), some.end()).size() == 3);
    seen.insert(some.begin(), some.end());
  }
  CHECK(seen.size() == 5);
  // Evaluation goes from first to last, whatever data_loading says.
  CHECK(parts_of_epoch(combined_dataset(members, combined_mode::sequential), {}, 1, 0,
                       stage::validate) == read(combined_mode::sequential));
}

TEST_CASE("combined: members by name, with several samples per entry", "[own_data]") {
  const auto data = half_labelled(at::arange(6), at::zeros({6}), at::arange(10));
  const auto train = data->train();
  CHECK(train->size() == 6);
  const std::vector<std::int64_t> places{1, 2, 3};
  const batch read{train->get(places), 3};
  CHECK(numbers(part_of(read, "labelled")[0]) == std::vector<std::int64_t>{1, 2, 3});
  CHECK(part_of(read, "labelled").samples() == 3);
  // Entries 0 and 1 have four samples, entry 2 the last two; entry 3 begins anew.
  CHECK(numbers(part_of(read, "unlabelled")[0]) ==
        std::vector<std::int64_t>{4, 5, 6, 7, 8, 9, 0, 1, 2, 3});
  CHECK(part_of(read, "unlabelled").samples() == 10);
  CHECK_THROWS_WITH(part_of(read, "other"),
                    Contains("no part \"other\"; it has labelled, unlabelled"));
  CHECK_THROWS_WITH(part_of(read, 0), Contains("no part 0"));
  const auto noise = function_dataset(4, [](std::int64_t) { return boxed(at::zeros({2})); });
  const auto drawn = transformed(noise, [](value, std::uint64_t) { return boxed(at::randn({2})); });
  const auto twice = combined_dataset({drawn, drawn});
  const sample_keys keys{.seed = 1, .epoch = 2};
  const batch pair{twice->get_keyed(places, keys), 3};
  CHECK_FALSE(part_of(pair, 0)[0].equal(part_of(pair, 1)[0]));
}

TEST_CASE("a dataset that is null, or whose function is empty, is refused", "[own_data]") {
  const auto same = [](value sample, std::uint64_t) { return sample; };
  CHECK_THROWS_WITH(transformed(nullptr, same), Contains("transformed: the dataset, the"));
  CHECK_THROWS_WITH(transformed(counting(3), {}), Contains("transformed: the dataset, the"));
  CHECK_THROWS_WITH(transformed(counting(3), same, {}), Contains("transformed: the dataset, the"));
  const auto plain = [](std::int64_t) { return boxed(at::zeros({2})); };
  CHECK_THROWS_WITH(function_dataset(3, {}), Contains("function_dataset: the function or"));
  CHECK_THROWS_WITH(function_dataset(3, plain, {}), Contains("function_dataset: the function or"));
  CHECK_THROWS_WITH(stream_dataset(3, {}), Contains("stream_dataset: the function or"));
  const auto closed = stream_dataset(3, [](std::int64_t) { return sample_stream{}; });
  const std::vector<std::int64_t> first_one{0};
  CHECK_THROWS_WITH(closed->get(first_one), Contains("returned no stream for epoch"));
}

TEST_CASE("transforms: a sample has its own text, number and list of texts", "[own_data]") {
  const auto plain = function_dataset(3, [](std::int64_t i) -> value {
    const auto text = std::string(1, static_cast<char>('a' + i));
    return value_map{{{"x", boxed(at::full({2}, i))},
                      {"n", i},
                      {"text", text},
                      {"texts", value_list{{text, text + text, text + "!"}}}}};
  });
  const auto seen = transformed(plain, [](value sample, std::uint64_t) -> value {
    auto& items = sample.get_if<value_map>()->items;
    const auto x = items.at("x").get_if<tensor_ptr>()->get()->tensor;
    return std::string{to_string(items.at("text")) + to_string(items.at("texts")) +
                       std::to_string(unboxed(items.at("n")).item<std::int64_t>()) +
                       std::to_string(x.sum().item<std::int64_t>())};
  });
  const auto batch = seen->get(std::vector<std::int64_t>{0, 2, 1});
  CHECK(to_string(batch) == R"([""a"["a", "aa", "a!"]00", ""c"["c", "cc", "c!"]24", )"
                            R"(""b"["b", "bb", "b!"]12"])");
}

TEST_CASE("combined: an epoch is resumed with other ranks and a batch size", "[own_data]") {
  const auto data = combined_dataset({counting(23), counting(9)});
  const auto whole = parts_of_epoch(data, {.batch_size = 3}, 2, 1);
  for (const std::int64_t ranks : {1, 2, 3}) {
    const auto rest = parts_of_epoch(data, {.batch_size = 4}, ranks, 1, stage::train, 6);
    for (std::size_t m = 0; m < 2; ++m) {
      auto expected = joined(whole[m]);
      expected.erase(expected.begin(), expected.begin() + 6);
      CHECK(joined(rest[m]) == expected);
    }
  }
}

TEST_CASE("combined: members that cannot be combined are refused", "[own_data]") {
  const auto said = [](std::vector<combined_member> members) {
    return refusal([&] { combined_dataset(members); });
  };
  const auto some = counting(3);
  CHECK_THAT(said({}), Contains("at least one dataset"));
  CHECK_THAT(said({{.data = some}, {.data = nullptr}}), Contains("member 1 has no samples"));
  CHECK_THAT(said({{.data = some, .samples = 0}}), Contains("samples must be 1 or more"));
  CHECK_THAT(said({{.name = "a", .data = some}, {.data = some}}), Contains("name all of them"));
  CHECK_THAT(said({{.name = "a", .data = some}, {.name = "a", .data = some}}),
             Contains("two members have the name \"a\""));
  const auto both = combined_dataset({some, some});
  CHECK_THAT(said({{.data = both}}), Contains("give its members"));
  CHECK_THAT(refusal([&] { noisy(both); }), Contains("transform its members"));
  CHECK_THAT(
      refusal([&] {
        loader_options_of({.order = weighted_sampler({1, 1, 1}, 3)}, stage::train, *both, 1, 1);
      }),
      Contains("leave out `order`"));
}

TEST_CASE("make_data passes on its parts", "[own_data]") {
  const auto data = in_memory(at::rand({70, 4}), at::zeros({70}, at::kLong));
  CHECK(data->name() == "in memory");
  CHECK(data->train()->size() == 70);
  CHECK(data->loading(stage::train, 0).drop_last);
  CHECK(data->loading(stage::train, 0).batch_size == 32);
  CHECK_FALSE(data->loading(stage::validate, 0).drop_last);
  const auto tested = make_data({.test = {counting(3)}});
  CHECK(tested->predict() == tested->test());
}

// --- files ---------------------------------------------------------------------------------------

class file_folder {
public:
  std::string path(const std::string& name = {}) const { return (folder_.path() / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    testing::write_text(path(name), text);
  }
  void write(const std::string& name, const std::vector<tensor_blob>& tensors) const {
    std::string bytes;
    for (const auto& piece : encode_safetensors(tensors))
      bytes.append(reinterpret_cast<const char*>(piece->data()), piece->size());
    write(name, bytes);
  }

private:
  testing::temporary_folder folder_;
};

const std::vector<std::int64_t> both{0, 1};
const std::vector<std::int64_t> first_one{0};

TEST_CASE("csv: a folder's files, labels and a target column by name", "[own_data]") {
  const file_folder files;
  files.write("train.csv", "a, \"kind\",b\r\n1,2,-3.5\r\n\r\n4e1,0,6\r\n");
  files.write("test.csv", "a,kind,b\n7,1,8\n");
  const auto data = csv_data(files.path(), "kind");
  data->setup(stage::train);
  const auto batch = data->train()->get(both);
  CHECK(item(batch, 0).equal(at::tensor({1., -3.5, 40., 6.}, at::kFloat).view({2, 2})));
  CHECK(item(batch, 1).equal(at::tensor({2, 0}, at::kLong)));
  CHECK(data->validation().at(0)->size() == 1);
  CHECK(data->validation() == data->test());
  const auto sizes = sizes_of(*data);
  CHECK(sizes.features == 2);
  CHECK(sizes.classes == 3);
  // The last column, whose numbers are no labels.
  const auto numeric = csv_data(files.path());
  CHECK(item(numeric->train()->get(both), 1).equal(at::tensor({-3.5, 6.}).view({2, 1})));
  CHECK(item(numeric->test().at(0)->get(std::vector<std::int64_t>{0}), 1).item<float>() == 8);
  CHECK_THAT(refusal([&] { sizes_of(*numeric); }), Contains("no labels"));
  files.write("train.csv", "\"a, or \"\"b\"\"\", kind\n\"1\",0\n");
  CHECK(csv_data(files.path(), "kind")->train()->size() == 1);
  CHECK_THAT(refusal([&] { csv_data(files.path(), "c")->train(); }),
             Contains("no column \"c\"; there are a, or \"b\", kind"));
}

TEST_CASE("csv: columns are found by their names, also after a byte order mark", "[own_data]") {
  const file_folder files;
  files.write("train.csv", "\xEF\xBB\xBFkind,a,b\n1,2,3\n");
  files.write("test.csv", "b,kind,a\n6,0,5\n");
  const auto data = csv_data(files.path(), "kind");
  data->setup(stage::train);
  CHECK(item(data->train()->get(first_one), 0).equal(at::tensor({2.F, 3.F}).view({1, 2})));
  const auto tested = data->test().at(0)->get(first_one);
  CHECK(item(tested, 0).equal(at::tensor({5.F, 6.F}).view({1, 2})));
  CHECK(item(tested, 1).equal(at::tensor({0}, at::kLong)));
  for (const auto& [header, said] : std::initializer_list<std::pair<const char*, const char*>>{
           {"a,kind,c", "test.csv: there is no column \"b\"; there are a, kind, c"},
           {"a,b,kind,c", "test.csv: the columns \"c\" are not those of"},
           {"a,b,kind,a", "test.csv: several columns are called \"a\": rename"}}) {
    files.write("test.csv", std::string{header} + "\n");
    const auto other = csv_data(files.path(), "kind");
    CHECK_THAT(refusal([&] { other->test(); }), Contains(said));
  }
}

TEST_CASE("csv: a single file is trained, or evaluated", "[own_data]") {
  const file_folder files;
  files.write("all.csv", "x,y\n1,0\n2,1\n");
  const auto data = csv_data(files.path("all.csv"));
  data->setup(stage::train);
  CHECK(data->train()->size() == 2);
  CHECK(data->validation().empty());
  data->setup(stage::test);
  CHECK(data->test().at(0)->size() == 2);
}

TEST_CASE("csv: damaged files are refused by line and column", "[own_data]") {
  const file_folder files;
  const auto said = [&](const std::string& text, const std::string& target = {}) {
    files.write("train.csv", text);
    const auto data = csv_data(files.path(), target);
    data->setup(stage::train);
    return refusal([&] { data->train(); });
  };
  CHECK_THAT(said("a,b\n1,2\n1,x2\n"),
             Contains("train.csv") && Contains("line 3, column \"b\": \"x2\" is no finite"));
  CHECK_THAT(said("a,b\n1,nan\n"), Contains("line 2, column \"b\""));
  CHECK_THAT(said("a,b\n1e39,2\n"), Contains("\"1e39\" is no finite number of 32 bits"));
  CHECK_THAT(said("a,b\n1,\n"), Contains("\"\" is no finite number"));
  CHECK_THAT(said("a,b\n1,2,3\n"), Contains("line 2 has 3 values, the header 2"));
  CHECK_THAT(said("a\n1\n"), Contains("two columns or more"));
  CHECK_THAT(said("a,b\r1,2\r"), Contains("line 1 has carriage returns") && Contains("line ends"));
  CHECK_THAT(said("a,b\n"), Contains("no samples"));
  CHECK_THAT(said("a,b\n1,2\n", "c"), Contains("no column \"c\"; there are a, b"));
  CHECK_THAT(refusal([] { csv_data("")->prepare_data(); }), Contains("--data-dir"));
  CHECK_THAT(refusal([] { csv_data("/no/such/file")->prepare_data(); }),
             Contains("/no/such/file: there is no such"));
}

TEST_CASE("tensors: inputs and targets in safetensors files", "[own_data]") {
  const file_folder files;
  files.write("train.safetensors", {blob_of("inputs", at::rand({4, 1, 3})),
                                    blob_of("targets", at::tensor({0, 2, 1, 0}).to(at::kInt))});
  const auto data = tensor_file_data(files.path());
  data->setup(stage::train);
  const auto batch = data->train()->get(both);
  CHECK(item(batch, 0).sizes() == at::IntArrayRef({2, 1, 3}));
  CHECK(item(batch, 1).equal(at::tensor({0, 2}, at::kLong)));
  CHECK(sizes_of(*data).classes == 3);
  CHECK_THAT(refusal([&] { check_images(*data, "cnn"); }),
             Contains("shape (1, 3)") && Contains("use --model mlp"));
  const auto waves = at::complex(at::rand({4}), at::rand({4}));
  files.write("train.safetensors",
              {blob_of("inputs", at::rand({4, 3})), blob_of("targets", waves)});
  CHECK(item(tensor_file_data(files.path())->train()->get(both), 1).equal(waves.slice(0, 0, 2)));
  const auto of_targets = [&](std::int64_t one) {
    files.write("train.safetensors", {blob_of("inputs", at::rand({2, 3})),
                                      blob_of("targets", at::tensor({std::int64_t{0}, one}))});
    return refusal([&] { sizes_of(*tensor_file_data(files.path())); });
  };
  CHECK_THAT(of_targets(-1), Contains("data tensors: a target is -1"));
  for (const auto large : {std::int64_t{1} << 20, INT64_MAX})
    CHECK_THAT(of_targets(large),
               Contains("a target is " + std::to_string(large)) && Contains("data.target"));
  files.write("train.safetensors",
              {blob_of("inputs", at::rand({2, 3})), blob_of("targets", at::zeros({3}))});
  CHECK_THAT(refusal([&] { tensor_file_data(files.path())->train(); }),
             Contains("train.safetensors: it has 2 samples in \"inputs\" and 3 in \"targets\""));
  files.write("train.safetensors", {blob_of("x", at::rand({4}))});
  CHECK_THAT(refusal([&] { tensor_file_data(files.path())->train(); }),
             Contains("no tensor \"inputs\"; it has x"));
}

}  // namespace
}  // namespace troupe
