// Goal: copies of a module compute chunks of a batch, gradients reach the original, callbacks are
// called as documented, and no copy waits for ever.
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/modules.h>
#include <torch/utils.h>

#include <mutex>

#include "tests/support/rank_threads.hpp"
#include "tests/unit/torch_replicated/norm_models.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/replicated.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

std::vector<c10::Device> cpus(std::size_t copies) { return std::vector<c10::Device>(copies, cpu); }

/// The calls of on_replicate, in order.
struct journal {
  struct call {
    std::string path;
    std::int64_t copy;
    std::shared_ptr<replication_context> context;
  };
  std::vector<call> calls;
  std::vector<std::string> texts() const {
    std::vector<std::string> all;
    for (const auto& one : calls) all.push_back(one.path + ":" + std::to_string(one.copy));
    return all;
  }
};

/// A layer that keeps a journal, and runs `body` in forward.
struct probe : torch::nn::Cloneable<probe>, replication_aware {
  using function = std::function<at::Tensor(probe&, const at::Tensor&)>;
  explicit probe(std::shared_ptr<journal> notes, function what = {})
      : book(std::move(notes)), body(std::move(what)) {
    probe::reset();
  }
  void reset() override {
    weight = register_parameter("weight", torch::ones({1}));
    calls = register_buffer("calls", torch::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& x) {
    calls.add_(1);
    return body ? body(*this, x) : x * weight;
  }
  void on_replicate(const std::shared_ptr<replication_context>& context,
                    std::int64_t copy_id) override {
    book->calls.push_back({context->path(), copy_id, context});
    here = context;
    copy = copy_id;
  }

  std::shared_ptr<journal> book;
  function body;
  std::shared_ptr<replication_context> here;
  std::int64_t copy = -1;
  at::Tensor weight, calls;
};
TORCH_MODULE_IMPL(probe_layer, probe);

/// Two probes, one of them under two names.
struct pair_net : torch::nn::Cloneable<pair_net>, replication_aware {
  pair_net(std::shared_ptr<journal> notes, probe::function one, probe::function two)
      : book(std::move(notes)), first_does(std::move(one)), second_does(std::move(two)) {
    pair_net::reset();
  }
  explicit pair_net(std::shared_ptr<journal> notes) : pair_net(std::move(notes), {}, {}) {}
  void reset() override {
    first = register_module("first", probe_layer(book, first_does));
    second = register_module("second", probe_layer(book, second_does));
    register_module("again", first);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x)); }
  void on_replicate(const std::shared_ptr<replication_context>& context,
                    std::int64_t copy_id) override {
    book->calls.push_back({context->path(), copy_id, context});
    if (copy_id == refuses) throw std::runtime_error("refused");
  }

  std::int64_t refuses = -1;
  std::shared_ptr<journal> book;
  probe::function first_does, second_does;
  probe_layer first{nullptr}, second{nullptr};
};

struct mixed : torch::nn::Cloneable<mixed> {
  mixed() { mixed::reset(); }
  void reset() override {
    used = register_module("used", torch::nn::Linear(3, 2));
    by_first = register_parameter("by_first", torch::full({2}, 0.5));
    frozen = register_parameter("frozen", torch::full({2}, 2.0), /*requires_grad=*/false);
  }
  /// Only a chunk of three rows uses `by_first`.
  at::Tensor forward(const at::Tensor& x, const value& options) {
    auto y = used->forward(x) * frozen;
    if (x.size(0) == 3) y = y * by_first;
    return y + unboxed(options.get_if<value_map>()->items.at("shift"));
  }
  torch::nn::Linear used{nullptr};
  at::Tensor by_first, frozen;
};

std::string text_of_call(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("scatter divides nested tensors and copies other objects") {
  const auto x = torch::arange(10).view({5, 2});
  const auto token = std::make_shared<int>(7);
  const value nested = value_map{{{"x", boxed(x)}, {"list", value_list{{boxed(x), "text", 3}}}}};
  const auto chunks =
      scatter(cpus(4), 0, x, nested, std::make_tuple(x, token), std::optional<at::Tensor>{});
  REQUIRE(chunks.size() == 3);  // ceil(5 / 4) = 2 rows each
  for (std::size_t i = 0; i < 3; ++i) {
    const auto rows = x.slice(0, 2 * i, std::min<std::size_t>(2 * i + 2, 5));
    const auto& [plain, map, tuple, none] = chunks[i];
    CHECK(plain.equal(rows));
    const auto& items = map.get_if<value_map>()->items;
    CHECK(unboxed(items.at("x")).equal(rows));
    CHECK(unboxed(items.at("list").get_if<value_list>()->items[0]).equal(rows));
    CHECK(items.at("list").get_if<value_list>()->items[1] == value{"text"});
    CHECK(std::get<0>(tuple).equal(rows));
    CHECK(std::get<1>(tuple) == token);
    CHECK_FALSE(none.has_value());
  }
  CHECK(std::get<0>(scatter(cpus(2), 1, x)[1]).equal(x.narrow(1, 1, 1)));
  CHECK(scatter(cpus(3), 0, 5).size() == 3);
  CHECK(scatter(cpus(3), 0).size() == 1);
}

TEST_CASE("scatter refuses tensors that give different numbers of chunks") {
  const auto two = torch::zeros({2}), six = torch::zeros({6});
  CHECK_THROWS_AS(scatter(cpus(4), 0, six, two), user_error);
  CHECK_THROWS_AS(scatter(cpus(2), 0, torch::tensor(1.0)), user_error);
  CHECK_THROWS_AS(scatter(cpus(2), 1, six), user_error);
}

TEST_CASE("gather joins tensors, scalars and containers, and refuses different ones") {
  const auto a = torch::ones({2, 3}), b = torch::zeros({1, 3});
  CHECK(gather<at::Tensor>({a, b}, cpu).equal(torch::cat({a, b})));
  CHECK(gather<at::Tensor>({torch::tensor(1.), torch::tensor(2.)}, cpu)
            .equal(torch::tensor({1., 2.})));
  using pair = std::pair<at::Tensor, std::map<std::string, at::Tensor>>;
  const auto joined = gather<pair>({{a, {{"k", b}}}, {b, {{"k", a}}}}, cpu);
  CHECK(joined.first.equal(torch::cat({a, b})));
  CHECK(joined.second.at("k").equal(torch::cat({b, a})));
  const value map_a = value_map{{{"k", boxed(a)}}}, map_b = value_map{{{"k", boxed(b)}}};
  const auto both = gather<value>({map_a, map_b}, cpu);
  CHECK(unboxed(both.get_if<value_map>()->items.at("k")).equal(torch::cat({a, b})));
  CHECK(gather<value>({value{}, value{}}, cpu).empty());
  CHECK_FALSE(gather<std::optional<at::Tensor>>({std::nullopt, std::nullopt}, cpu).has_value());

  using map = std::map<std::string, at::Tensor>;
  CHECK_THROWS_AS(gather<map>({map{{"k", a}}, map{{"other", a}}}, cpu), user_error);
  CHECK_THROWS_AS(gather<value>({map_a, value{}}, cpu), user_error);
  CHECK_THROWS_AS(gather<value>({value{1}, value{2}}, cpu), user_error);
  CHECK_THROWS_AS(gather<std::optional<at::Tensor>>({a, std::nullopt}, cpu), user_error);
  CHECK_THROWS_AS(gather<std::vector<at::Tensor>>({{a}, {a, b}}, cpu), user_error);
}

TEST_CASE("forward and gradients of copies equal those of the module itself") {
  torch::manual_seed(3);
  const auto module = std::make_shared<mixed>();
  const auto rows = GENERATE(1, 2, 5, 6);
  const auto copies = GENERATE(1, 2, 3);
  auto x = torch::randn({rows, 3}).requires_grad_();
  const value shift = value_map{{{"shift", boxed(torch::randn({rows, 2}))}}};
  replicated<mixed> parallel{module, {.device_ids = cpus(copies)}};
  const auto y = parallel(x, shift);
  auto expected = module->used->forward(x) * module->frozen;
  std::vector<at::Tensor> parts;
  for (const auto& part : expected.chunk(copies)) {
    const bool scaled = part.size(0) == 3;
    parts.push_back((scaled ? part * module->by_first : part));
  }
  expected = torch::cat(parts) + unboxed(shift.get_if<value_map>()->items.at("shift"));
  CHECK(y.allclose(expected));
  const auto weights = torch::arange(rows * 2).view({rows, 2});
  (y * weights).sum().backward();
  const auto got = std::vector{
      x.grad().clone(), module->used->weight.grad().clone(), module->used->bias.grad().clone(),
      module->by_first.grad().defined() ? module->by_first.grad().clone() : torch::zeros({2})};
  CHECK_FALSE(module->frozen.grad().defined());
  x.mutable_grad() = at::Tensor{};
  module->zero_grad();
  (expected * weights).sum().backward();
  CHECK(got[0].allclose(x.grad()));
  CHECK(got[1].allclose(module->used->weight.grad()));
  CHECK(got[2].allclose(module->used->bias.grad()));
  CHECK(got[3].allclose(module->by_first.grad().defined() ? module->by_first.grad()
                                                          : torch::zeros({2})));
}

TEST_CASE("callbacks run copy by copy, parents first, each sub-module once, with fresh contexts") {
  const auto book = std::make_shared<journal>();
  const auto net = std::make_shared<pair_net>(book);
  replicated<pair_net> parallel{net, {.device_ids = cpus(3)}};
  parallel(torch::ones({6, 1}));
  // The root has no path.
  CHECK(book->texts() == std::vector<std::string>{":0", "first:0", "second:0",  //
                                                  ":1", "first:1", "second:1",  //
                                                  ":2", "first:2", "second:2"});
  const auto before = book->calls;
  book->calls.clear();
  parallel(torch::ones({6, 1}));
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(before[i].context == before[i + 3].context);
    CHECK(before[i].context == before[i + 6].context);
    CHECK(before[i].context != before[(i + 1) % 3].context);
    CHECK(before[i].context->copies() == 3);
    CHECK(book->calls[i].context != before[i].context);
  }
}

TEST_CASE("callbacks: none with one device, copy 0 only with one chunk") {
  const auto book = std::make_shared<journal>();
  const auto net = std::make_shared<pair_net>(book);
  replicated<pair_net>{net, {.device_ids = cpus(1)}}.forward(torch::ones({6, 1}));
  replicated<pair_net>{net}.forward(torch::ones({6, 1}));
  net->forward(torch::ones({6, 1}));
  CHECK(book->calls.empty());
  replicated<pair_net>{net, {.device_ids = cpus(3)}}.forward(torch::ones({1, 1}));
  CHECK(book->texts() == std::vector<std::string>{":0", "first:0", "second:0"});
  CHECK(book->calls[0].context->copies() == 1);
}

TEST_CASE("replicated: updates of copy 0's buffers persist, those of the others do not") {
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>());
  replicated<pair_net> parallel{net, {.device_ids = cpus(2)}};
  for (int i = 0; i < 3; ++i) parallel(torch::ones({4, 1}));
  CHECK(net->first->calls.item<double>() == 3);
  CHECK(net->first->copy == -1);
}

TEST_CASE("copies have modes, autocast and random numbers of their own") {
  std::mutex lock;
  std::map<std::int64_t, std::vector<bool>> modes;
  std::map<std::int64_t, at::Tensor> drawn;
  const auto body = [&](probe& self, const at::Tensor& x) {
    const auto numbers = torch::rand({8});
    const std::lock_guard held{lock};
    modes[self.copy] = {self.is_training(), at::GradMode::is_enabled(),
                        at::autocast::is_autocast_enabled(at::kCPU)};
    drawn[self.copy] = numbers;
    at::GradMode::set_enabled(true);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return x;
  };
  const auto book = std::make_shared<journal>();
  const auto net = std::make_shared<pair_net>(book, body, probe::function{});
  replicated<pair_net> parallel{net, {.device_ids = cpus(3)}};
  net->eval();
  torch::manual_seed(11);
  {
    const torch::NoGradGuard no_grad;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    parallel(torch::ones({3, 1}));
    CHECK_FALSE(at::GradMode::is_enabled());
    CHECK(at::autocast::is_autocast_enabled(at::kCPU));
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  REQUIRE(modes.size() == 3);
  for (const auto& [copy, seen] : modes) CHECK(seen == std::vector<bool>{false, false, true});
  const auto first = drawn;
  CHECK_FALSE(first.at(0).equal(first.at(1)));
  CHECK_FALSE(first.at(1).equal(first.at(2)));
  parallel(torch::ones({3, 1}));
  CHECK_FALSE(drawn.at(1).equal(first.at(1)));
  torch::manual_seed(11);
  parallel(torch::ones({3, 1}));
  for (const auto& [copy, numbers] : first) CHECK(drawn.at(copy).equal(numbers));
}

TEST_CASE("copies compute in the caller's inference mode") {
  std::mutex lock;
  std::map<std::int64_t, bool> modes;
  const auto body = [&](probe& self, const at::Tensor& x) {
    const std::lock_guard held{lock};
    modes[self.copy] = c10::InferenceMode::is_enabled();
    return x * self.weight;
  };
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>(), body, body);
  replicated<pair_net> parallel{net, {.device_ids = cpus(3)}};
  const bool inference = GENERATE(true, false);
  const c10::InferenceMode mode{inference};
  const auto y = parallel(torch::ones({6, 1}));
  CHECK(y.is_inference() == inference);
  CHECK(y.requires_grad() != inference);
  CHECK(y.equal(torch::ones({6, 1})));
  CHECK(modes == std::map<std::int64_t, bool>{{0, inference}, {1, inference}, {2, inference}});
}

namespace {

std::vector<at::Tensor> doubled(std::vector<at::Tensor> all) {
  for (auto& one : all) one = one * 2;
  return all;
}

at::Tensor meet(probe& self, const at::Tensor& x) {
  return self.here->exchange<at::Tensor>(self.copy, x, doubled);
}

}  // namespace

TEST_CASE("a copy that throws: the others stop waiting, and its error names the copy") {
  const auto culprit = GENERATE(0, 1, 2);
  const auto body = [culprit](probe& self, const at::Tensor& x) {
    if (self.copy == culprit) throw std::out_of_range("no such row");
    return meet(self, x);
  };
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>(), body, probe::function{});
  replicated<pair_net> parallel{net, {.device_ids = cpus(3)}};
  try {
    parallel(torch::ones({3, 1}));
    FAIL("no exception");
  } catch (const copy_failed& e) {
    CHECK(e.copy() == culprit);
    CHECK(e.what() == "copy " + std::to_string(culprit) + " of 3 on cpu: no such row");
    CHECK_THROWS_AS(e.rethrow_nested(), std::out_of_range);
  }
}

TEST_CASE("a callback that throws ends the forward before a copy runs") {
  bool ran = false;
  const auto body = [&](probe&, const at::Tensor& x) {
    ran = true;
    return x;
  };
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>(), body, body);
  net->refuses = 1;
  replicated<pair_net> parallel{net, {.device_ids = cpus(2)}};
  CHECK(text_of_call([&] { parallel(torch::ones({2, 1})); }) == "refused");
  CHECK_FALSE(ran);
}

TEST_CASE("copies with other sub-modules than copy 0 are refused") {
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>());
  replicated<pair_net> parallel{net, {.device_ids = cpus(2)}, [](const auto& m, const auto& d) {
                                  auto copies = replicate(m, d);
                                  copies[1]->unregister_module("second");
                                  return copies;
                                }};
  CHECK(text_of_call([&] {
          parallel(torch::ones({2, 1}));
        }).find("a copy has 2 sub-modules") != std::string::npos);
}

TEST_CASE("copies that call an exchange differently often or in another order get an error") {
  const auto order = GENERATE(0, 1, 2);
  const auto once = [order](probe& self, const at::Tensor& x) {
    auto y = x;
    if (order != 1 || self.copy == 0) y = meet(self, y);
    if (order == 0 && self.copy == 1) y = meet(self, y);
    return y;
  };
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>(), once, meet);
  replicated<pair_net> parallel{net, {.device_ids = cpus(2)}};
  if (order == 2) {
    // Copy 1 begins with the second layer.
    const auto swap = [](probe& self, const at::Tensor& x) { return meet(self, x); };
    net->first_does = swap;
    replicated<pair_net> crossing{net, {.device_ids = cpus(2)}, [](const auto& m, const auto& d) {
                                    auto copies = replicate(m, d);
                                    std::swap(copies[1]->first, copies[1]->second);
                                    return copies;
                                  }};
    const auto text = text_of_call([&] { crossing(torch::ones({2, 1})); });
    CHECK(text.find("wait for each other") != std::string::npos);
    CHECK(text.find("copy 0 waits in call 1 of `first`, copy 1 waits in call 1 of `second`") !=
          std::string::npos);
    return;
  }
  const auto text = text_of_call([&] { parallel(torch::ones({2, 1})); });
  CHECK(text.find("wait for each other") != std::string::npos);
}

TEST_CASE("a program's own replication gets the replication callbacks, each once") {
  const auto book = std::make_shared<journal>();
  const auto net = std::make_shared<pair_net>(book);
  const auto attached = with_replication_callbacks(
      [](const std::shared_ptr<pair_net>& m, const std::vector<c10::Device>& devices) {
        std::vector<std::shared_ptr<pair_net>> copies;
        for (const auto device : devices)
          copies.push_back(std::dynamic_pointer_cast<pair_net>(m->clone(device)));
        return copies;
      });
  const auto copies = with_replication_callbacks(attached)(net, cpus(2));
  CHECK(book->texts() == std::vector<std::string>{":0", "first:0", "second:0",  //
                                                  ":1", "first:1", "second:1"});
  for (const auto& copy : copies) copy->forward(torch::ones({1, 1}));
  CHECK(net->first->calls.item<double>() == 1);
  book->calls.clear();
  replicated<pair_net> parallel{net, {.device_ids = cpus(2)}, attached};
  parallel(torch::ones({2, 1}));
  CHECK(book->calls.size() == 6);
}

TEST_CASE("copies that do not run at the same time: the wait ends at the deadline") {
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>(), meet, meet);
  auto copies = replicate(net, cpus(2));
  const auto round = call_on_replicate(as_modules(copies), 1ms);
  const auto text = text_of_call([&] { copies[0]->forward(torch::ones({1, 1})); });
  CHECK(text.find("did not arrive within 1 ms") != std::string::npos);
  CHECK(text.find("copy 1 computes") != std::string::npos);
  const auto other = call_on_replicate(as_modules(copies), 10min);
  other->end(1);
  CHECK(text_of_call([&] {
          copies[0]->forward(torch::ones({1, 1}));
        }).find("has ended") != std::string::npos);
}

TEST_CASE("a parameter on another device than the first: the error names it") {
  const auto net = std::make_shared<pair_net>(std::make_shared<journal>());
  replicated<pair_net> parallel{net, {.device_ids = {c10::Device{c10::kMeta}, cpu}}};
  CHECK(text_of_call([&] {
          parallel(torch::ones({2, 1}));
        }).find("first.weight is on cpu") != std::string::npos);
}
