// Goal: the collectives of a strategy, called directly, work on values, views and subgroups.
#include "backends/torch/single_device.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data_parallel.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

strategy_parts parts_of(std::int32_t rank, std::int32_t world) {
  strategy_parts parts;
  parts.about.rank = rank;
  parts.about.world = world;
  return parts;
}

/// Runs `body` with a data-parallel strategy on each rank. Returns the error of each rank, or
/// "nothing".
std::vector<std::string> with_strategies(
    std::int32_t world, const std::function<void(std::int32_t rank, data_parallel& how)>& body) {
  std::vector<std::string> said;
  for (const auto& error : on_ranks(world, [&](auto rank, const auto&group) {
         data_parallel how{parts_of(rank, world)};
         how.bind(group, generation_id{1});
         body(rank, how);
       }))
    said.push_back(text_of(error));
  return said;
}

void require_nothing(const std::vector<std::string>& said) {
  for (const auto& text : said) REQUIRE(text == "nothing");
}

value ramp(std::int32_t rank, at::ScalarType type = at::kFloat) {
  return boxed(torch::tensor({1.0, 2.0, 3.0}).mul(rank + 1).to(type));
}

bool equal(const value& v, const at::Tensor& t) {
  return unboxed(v).sizes() == t.sizes() && unboxed(v).scalar_type() == t.scalar_type() &&
         unboxed(v).equal(t);
}

}  // namespace

TEST_CASE("reduce supports all its operation names") {
  struct row {
    const char* operation;
    std::vector<double> becomes;
  };
  const auto one = GENERATE(row{"mean", {2, 4, 6}}, row{"avg", {2, 4, 6}}, row{"sum", {6, 12, 18}},
                            row{"SUM", {6, 12, 18}}, row{"min", {1, 2, 3}}, row{"max", {3, 6, 9}},
                            row{"product", {6, 48, 162}}, row{"prod", {6, 48, 162}});
  std::vector<value> reduced(3);
  require_nothing(with_strategies(3, [&](auto rank, auto& how) {
    const auto mine = ramp(rank);
    reduced[rank] = how.reduce(mine, one.operation, {});
    if (!equal(mine, unboxed(ramp(rank)))) throw std::runtime_error("the input was written to");
  }));
  for (const auto& r : reduced) CHECK(equal(r, torch::tensor(one.becomes).to(at::kFloat)));
}

TEST_CASE("reduce of one rank returns a tensor of its own, as that of several does") {
  const auto own = [](const value& mine, const value& reduced) {
    unboxed(reduced).add_(1);
    return unboxed(reduced).equal(unboxed(ramp(0)) + 1) && equal(mine, unboxed(ramp(0))) &&
           !unboxed(reduced).requires_grad();
  };
  const auto given = [] { return boxed(unboxed(ramp(0)).set_requires_grad(true)); };
  for (const std::int32_t world : {1, 2})
    require_nothing(with_strategies(world, [&](auto, auto& how) {
      const auto mine = given();
      expect(own(mine, how.reduce(mine, "mean", {})));
    }));
  const auto mine = given();
  CHECK(own(mine, single_device{parts_of(0, 1)}.reduce(mine)));
  regression outside;
  CHECK(own(mine, outside.reduce(mine)));
}

TEST_CASE("reduce truncates integer means and keeps other values and refuses unknown operations") {
  std::vector<value> whole(2);
  require_nothing(with_strategies(2, [&](auto rank, auto& how) {
    whole[rank] = how.reduce(ramp(rank, at::kLong), "mean", {});
    if (!(how.reduce(value{"text"}, "mean", {}) == value{"text"}) ||
        !(how.reduce(value{2.5}, "sum", {}) == value{2.5}))
      throw std::runtime_error("a value that is no tensor changed");
  }));
  CHECK(equal(whole[0], torch::tensor({1, 3, 4}).to(at::kLong)));
  const auto said =
      with_strategies(2, [&](auto rank, auto& how) { how.reduce(ramp(rank), "average", {}); });
  CHECK(said[0].find("\"average\": use mean, avg") != std::string::npos);
  CHECK_THROWS_AS((single_device{parts_of(0, 1)}.reduce(ramp(0), "median")), user_error);
}

TEST_CASE("collectives of a subgroup do not involve other ranks") {
  std::vector<value> summed(3), sent(3), gathered(3);
  const subgroup ends{{0, 2}};
  require_nothing(with_strategies(3, [&](auto rank, auto& how) {
    if (rank == 1) return;
    summed[rank] = how.reduce(ramp(rank), "sum", ends);
    sent[rank] = how.broadcast(value{rank * 10}, 2, ends);
    gathered[rank] = how.all_gather(ramp(rank), false, ends);
  }));
  for (const auto rank : {0, 2}) {
    CHECK(equal(summed[rank], torch::tensor({4.0, 8.0, 12.0}).to(at::kFloat)));
    CHECK(sent[rank] == value{20});
    CHECK(equal(gathered[rank], torch::tensor({{1., 2., 3.}, {3., 6., 9.}}).to(at::kFloat)));
  }
}

TEST_CASE("broadcast sends any value from any rank") {
  const auto source = GENERATE(0, 1, 2);
  const auto world = 3;
  std::vector<value> got(world);
  require_nothing(with_strategies(world, [&](auto rank, auto& how) {
    value_map sent;
    if (rank == source)
      sent.items = {{"who", rank},
                    {"what", value_tuple{{ramp(rank), "text", 0.5, true, value{}}}},
                    {"list", value_list{{1, 2}}}};
    got[rank] = how.broadcast(sent, source, {});
  }));
  for (const auto& v : got) {
    const auto& map = v.get_if<value_map>()->items;
    CHECK(map.at("who") == value{source});
    const auto& tuple = map.at("what").get_if<value_tuple>()->items;
    CHECK(equal(tuple[0], unboxed(ramp(source))));
    CHECK((tuple[1] == value{"text"} && tuple[3] == value{true} && tuple[4].empty()));
  }
}

TEST_CASE("all_gather stacks tensors and numbers and keeps containers") {
  for (const auto world : {1, 3}) {
    std::vector<value> got(world);
    require_nothing(with_strategies(world, [&](auto rank, auto& how) {
      got[rank] =
          how.all_gather(value_list{{ramp(rank), rank, value_tuple{{rank * 0.5}}}}, false, {});
    }));
    for (const auto& v : got) {
      const auto& items = v.get_if<value_list>()->items;
      CHECK(unboxed(items[0]).sizes() == at::IntArrayRef{world, 3});
      CHECK(equal(items[1], torch::arange(world)));
      CHECK(equal(items[2].get_if<value_tuple>()->items[0],
                  torch::arange(world).to(at::kDouble) * 0.5));
    }
  }
  const auto said = with_strategies(2, [](auto, auto& how) { how.all_gather("text", false, {}); });
  CHECK(said[0].find("cannot be stacked") != std::string::npos);
}

namespace {

struct odd_view {
  const char* name;
  at::Tensor tensor;
};

/// Tensors whose elements are not contiguous in memory, with different values on each rank.
std::vector<odd_view> odd_views(std::int32_t rank) {
  const auto row = torch::arange(24, at::kFloat).mul(rank + 1);
  const auto grid = row.view({4, 6});
  return {{"transposed", grid.t()},
          {"every other column", grid.slice(1, 0, 6, 2)},
          {"behind an offset", grid.slice(0, 1)},
          {"expanded rows", grid.select(0, 1).expand({3, 6})},
          {"one number expanded", row.narrow(0, 5, 1).expand({2, 2})},
          {"rows that overlap", row.as_strided({4, 6}, {2, 1})},
          {"permuted", row.view({2, 3, 4}).permute({2, 0, 1})},
          {"channels last", row.view({1, 2, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast)},
          {"a number", row.select(0, 7)},
          {"empty", grid.slice(0, 4)}};
}

}  // namespace

TEST_CASE("collectives keep the element order of views and do not write to their inputs") {
  constexpr auto world = 3;
  std::vector<std::vector<value>> summed(world), sent(world), gathered(world);
  require_nothing(with_strategies(world, [&](auto rank, auto& how) {
    for (const auto& view : odd_views(rank)) {
      const auto mine = boxed(view.tensor);
      summed[rank].push_back(how.reduce(mine, "sum", {}));
      sent[rank].push_back(how.broadcast(mine, 1, {}));
      gathered[rank].push_back(how.all_gather(mine, false, {}));
    }
    const auto base = torch::arange(24, at::kFloat).view({4, 6});
    how.reduce(boxed(base.t()), "sum", {});
    how.broadcast(boxed(base.t()), 1, {});
    if (!base.flatten().equal(torch::arange(24, at::kFloat)))
      throw std::runtime_error("the input was written to");
  }));
  const auto of = [](int rank, std::size_t i) { return odd_views(rank)[i].tensor.clone(); };
  for (int rank = 0; rank < world; ++rank)
    for (std::size_t i = 0; i < summed[rank].size(); ++i) {
      CAPTURE(rank, odd_views(rank)[i].name);
      CHECK(equal(summed[rank][i], of(0, i) + of(1, i) + of(2, i)));
      CHECK(equal(sent[rank][i], of(1, i)));
      CHECK(equal(gathered[rank][i], torch::stack({of(0, i), of(1, i), of(2, i)})));
    }
}

TEST_CASE("unequal shapes are an error that names each rank's shape") {
  const auto said = with_strategies(3, [](auto rank, auto& how) {
    how.all_gather(boxed(torch::zeros(rank == 2 ? std::vector<std::int64_t>{3, 2}
                                                : std::vector<std::int64_t>{2, 3})),
                   false, {});
  });
  for (const auto& text : said)
    CHECK(text.find("rank 0 has a tensor of shape (2, 3), rank 2 one of (3, 2)") !=
          std::string::npos);
}

TEST_CASE("the gradient of all_gather is the sum over ranks of the rank's slice") {
  constexpr auto world = 3;
  std::vector<at::Tensor> gradients(world);
  std::vector<at::Tensor> gathered(world);
  require_nothing(with_strategies(world, [&](auto rank, auto& how) {
    const auto x = torch::tensor({1.0, 2.0}).mul(rank + 1).requires_grad_();
    const auto all = unboxed(how.all_gather(boxed(x * 2), true, {}));
    gathered[rank] = all.detach();
    // Rank r weights slice s with (r + 1) * 10^s.
    const auto weight = torch::tensor({1.0, 10.0, 100.0}).mul(rank + 1).unsqueeze(1);
    (all * weight).sum().backward();
    gradients[rank] = x.grad();
  }));
  for (int rank = 0; rank < world; ++rank) {
    CHECK(gathered[rank].equal(torch::tensor({{2., 4.}, {4., 8.}, {6., 12.}})));
    const double total = (1 + 2 + 3) * std::pow(10, rank) * 2;
    CHECK(gradients[rank].equal(torch::tensor({total, total})));
  }
  // Without `gradients` the result needs no gradient.
  require_nothing(with_strategies(2, [&](auto, auto& how) {
    const auto x = torch::ones({2}).requires_grad_();
    if (unboxed(how.all_gather(boxed(x), false, {})).requires_grad())
      throw std::runtime_error("the result requires a gradient");
  }));
}

TEST_CASE("the gradient of all_gather reaches a transposed input and may arrive expanded") {
  std::vector<at::Tensor> gradients(2);
  require_nothing(with_strategies(2, [&](auto rank, auto& how) {
    const auto x = torch::ones({2, 3}).requires_grad_();
    const auto all = unboxed(how.all_gather(boxed(x.t()), true, {}));
    // On rank 0 all elements have equal weight, so the gradient arrives expanded; on rank 1 each
    // has its own.
    const auto weight = torch::arange(12, at::kFloat).view({2, 3, 2});
    (rank == 0 ? all.sum() : (all * weight).sum()).backward();
    gradients[rank] = x.grad();
  }));
  CHECK(gradients[0].equal(torch::tensor({{1.F, 3.F, 5.F}, {2.F, 4.F, 6.F}})));
  CHECK(gradients[1].equal(torch::tensor({{7.F, 9.F, 11.F}, {8.F, 10.F, 12.F}})));
}

TEST_CASE("reduce_boolean_decision computes AND or OR for every combination of votes") {
  for (int votes = 0; votes < 8; ++votes) {
    std::vector<int> all(3), any(3);
    require_nothing(with_strategies(3, [&](auto rank, auto& how) {
      const bool mine = votes >> rank & 1;
      all[rank] = how.reduce_boolean_decision(mine, decision::all, {});
      any[rank] = how.reduce_boolean_decision(mine, decision::any, {});
    }));
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(all[rank] == (votes == 7));
      CHECK(any[rank] == (votes != 0));
    }
  }
}

TEST_CASE("barriers with different labels are a mismatch that names both") {
  const auto said = with_strategies(
      2, [](auto rank, auto& how) { how.barrier(rank == 0 ? "one" : "two", {}, {}); });
  CHECK(said[0].find("one") != std::string::npos);
  CHECK(said[0].find("two") != std::string::npos);
}

TEST_CASE("with one rank no communicator is needed") {
  data_parallel how{parts_of(0, 1)};  // no communicator is bound
  CHECK(how.reduce(value{3}, "mean", {}) == value{3});
  CHECK(equal(how.all_gather(ramp(0), true, {}), unboxed(ramp(0)).unsqueeze(0)));
  CHECK(how.broadcast("x", 0, {}) == value{"x"});
  CHECK(how.reduce_boolean_decision(true, decision::all, {}));
  how.barrier("here", {}, {});
  data_parallel unbound{parts_of(0, 2)};
  CHECK_THROWS_AS(unbound.barrier("there", {}, {}), user_error);
}

TEST_CASE("batch_to_device keeps the batch's type and uses the movers of user types") {
  struct own {
    int moved = 0;
  };
  auto parts = parts_of(0, 1);
  parts.moves[typeid(own)] = [](const std::any& held, c10::Device) -> std::any {
    return own{std::any_cast<const own&>(held).moved + 1};
  };
  single_device how{std::move(parts)};
  const auto t = torch::ones({2});
  const value mine{value_user{std::make_shared<const std::any>(own{})}};
  const value strange{value_user{std::make_shared<const std::any>(std::string{"x"})}};
  const value sent = value_tuple{
      {boxed(t), value_list{{1, "two"}}, value_map{{{"a", boxed(t)}, {"mine", mine}}}, strange}};
  const auto got = how.batch_to_device(sent, c10::kCPU, 0);
  const auto& items = got.get_if<value_tuple>()->items;
  CHECK(unboxed(items[0]).is_same(t));
  CHECK(items[1] == value{value_list{{1, "two"}}});
  const auto& map = items[2].get_if<value_map>()->items;
  CHECK(std::any_cast<own>(*map.at("mine").get_if<value_user>()->held).moved == 1);
  CHECK(items[3] == strange);
}

TEST_CASE("strategies and precisions are found by name and unknown names list the known ones") {
  const auto known = default_strategies();
  CHECK(make_strategy(known, "auto", parts_of(0, 1))->name() == "single_device");
  CHECK(make_strategy(known, "auto", parts_of(0, 2))->name() == "data_parallel");
  CHECK_THROWS_WITH(make_strategy(known, "ddp", parts_of(0, 1)),
                    Catch::Contains("auto, data_parallel, single_device"));
  CHECK_THROWS_WITH(make_strategy(known, "single_device", parts_of(0, 2)),
                    Catch::Contains("data_parallel"));
  CHECK(make_precision(default_precisions(), "bf16-mixed")->name() == "bf16-mixed");
  CHECK_THROWS_WITH(make_precision(default_precisions(), "8-true"),
                    Catch::Contains("32-true, 64-true, bf16-mixed, bf16-true"));
}

TEST_CASE("the strategy gives access to the module") {
  const auto said = with_strategies(2, [](auto, auto& how) {
    auto module = std::make_shared<regression>();
    how.connect(module);
    if (how.bare_module() != module) throw std::runtime_error("bare_module is another module");
  });
  require_nothing(said);
}
