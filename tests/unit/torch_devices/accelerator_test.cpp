// Goal: options become devices, one per local rank, or an error that names the fix before a rank
// starts.
#include "troupe/accelerator.hpp"
#include "actors/job_check.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

/// Some devices without any function.
class some_devices : public accelerator {
public:
  some_devices(std::int32_t count, int preference, std::string why_not = {},
               std::string name = "some")
      : count_(count),
        preference_(preference),
        why_not_(std::move(why_not)),
        name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  c10::DeviceType type() const override { return c10::kMeta; }
  std::string unusable() const override { return why_not_; }
  std::int32_t count() const override { return count_; }
  int preference() const override { return preference_; }

private:
  std::int32_t count_;
  int preference_;
  std::string why_not_;
  std::string name_;
};

accelerator_table with(std::int32_t count, int preference, const std::string& why_not = {}) {
  auto table = default_accelerators();
  table["cuda"] = [] { return std::make_shared<some_devices>(0, 10, "no driver", "cuda"); };
  table["some"] = [=] { return std::make_shared<some_devices>(count, preference, why_not); };
  return table;
}

std::vector<int> indices(const std::vector<c10::Device>& devices) {
  std::vector<int> all;
  for (const auto device : devices) all.push_back(device.index());
  return all;
}

std::string refusal(const device_choice& which, std::int32_t ranks, std::int32_t there = 3) {
  try {
    some_devices{there, 0}.parse(which, ranks);
  } catch (const user_error& error) {
    CHECK(error.code() == errc::device);
    return error.what();
  }
  return "accepted";
}

trainer_options on(std::string accelerator, device_choice devices = {}) {
  trainer_options options;
  options.accelerator = own_name{std::move(accelerator)};
  options.devices = std::move(devices);
  return options;
}

strategy_parts parts_of(std::shared_ptr<cluster_environment> where, std::int32_t world) {
  strategy_parts parts;
  parts.about.world = world;
  parts.environment = std::move(where);
  parts.place.kind = std::make_shared<some_devices>(3, 0);
  parts.place.devices = parts.place.kind->parse({.indices = {0, 2}}, 0);
  return parts;
}

/// The second of two ranks that a launcher has started on this host; or the third.
class launched : public local_environment {
public:
  using local_environment::local_environment;
  bool has_processes() const override { return true; }
};

}  // namespace

TEST_CASE("devices: a count, a list or neither gives each local rank its own", "[accelerator]") {
  const some_devices three{3, 0};
  CHECK(indices(three.parse({}, 2)) == std::vector{0, 1});
  CHECK(indices(three.parse({}, 0)) == std::vector{0, 1, 2});
  CHECK(indices(three.parse({.count = 2}, 2)) == std::vector{0, 1});
  CHECK(indices(three.parse({.indices = {2, 0}}, 2)) == std::vector{2, 0});
  CHECK(indices(three.parse({.indices = {1}}, 0)) == std::vector{1});
}

TEST_CASE("devices that are missing or shared are refused with the fix", "[accelerator]") {
  CHECK_THAT(refusal({}, 4),
             Catch::Contains("3 devices of some") && Catch::Contains("--ranks 3, or"));
  CHECK_THAT(refusal({.count = 4}, 4), Catch::Contains("use --devices 3"));
  CHECK_THAT(refusal({.count = 2}, 3), Catch::Contains("use --ranks 2, or name 3 devices"));
  CHECK_THAT(refusal({.indices = {0, 1}}, 3), Catch::Contains("devices = [0, 1] and ranks = 3"));
  CHECK_THAT(refusal({.indices = {0, 3}}, 2), Catch::Contains("numbered 0 to 2"));
  CHECK_THAT(refusal({.indices = {-1}}, 1), Catch::Contains("numbered 0 to 2"));
  CHECK_THAT(refusal({.indices = {1, 1}}, 2), Catch::Contains("names 1 twice"));
  for (const auto none : {0, -1})
    CHECK(refusal({}, 2, none) ==
          "accelerator = some: this host has 0 devices of some; use --accelerator cpu");
}

TEST_CASE("auto takes the accelerator that has a device for each rank", "[accelerator]") {
  CHECK(choose_devices(with(3, 5), on("auto"), 2).kind->name() == "some");
  CHECK(choose_devices(with(3, 5), on("auto"), 4).kind->name() == "cpu");
  CHECK(choose_devices(with(3, 5, "broken"), on("auto"), 2).kind->name() == "cpu");
  CHECK(choose_devices(with(3, -1), on("auto"), 2).kind->name() == "cpu");
  const auto listed = choose_devices(with(3, 5), on("auto", {.indices = {2}}), 1);
  CHECK(indices(listed.devices) == std::vector{2});
}

TEST_CASE("an accelerator of the program's own that cannot be meant: the error says how",
          "[accelerator]") {
  struct no_device : some_devices {
    using some_devices::some_devices;
    std::vector<c10::Device> parse(const device_choice&, std::int32_t) const override { return {}; }
  };
  const auto refused = [](accelerator_factory make, const std::string& chosen) -> std::string {
    auto table = default_accelerators();
    table["mine"] = std::move(make);
    try {
      choose_devices(table, on(chosen), 2);
    } catch (const user_error& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const std::string chosen : {"mine", "auto"}) {
    CAPTURE(chosen);
    CHECK_THAT(refused([] { return accelerator_ptr{}; }, chosen),
               Catch::Contains("the factory of accelerator \"mine\" made none"));
    CHECK_THAT(refused({}, chosen),
               Catch::Contains("the factory of accelerator \"mine\" made none"));
    CHECK_THAT(refused([] { return std::make_shared<some_devices>(2, 99, "", "cpu"); }, chosen),
               Catch::Contains("the accelerator \"mine\" says that its name is \"cpu\""));
    CHECK_THAT(refused([] { return std::make_shared<no_device>(2, 99, "", "mine"); }, chosen),
               Catch::Contains("its parse returned no device"));
  }
}

TEST_CASE("an accelerator that is unknown or unusable: the error says so", "[accelerator]") {
  CHECK_THROWS_WITH(choose_devices(with(3, 5), on("sum"), 1),
                    Catch::Contains("use one of auto, cpu, cuda, lazy, some"));
  CHECK_THROWS_WITH(choose_devices(with(3, 5, "no cooling"), on("some"), 1),
                    Catch::Contains("accelerator = \"some\" cannot be used here: no cooling"));
}

TEST_CASE("mixed precision on devices without autocast is refused, by each of its names",
          "[accelerator]") {
  const auto with_precision = [](trainer_options options, const char* name) {
    options.precision = own_name{name};
    return std::string{choose_devices(with(3, 5), options, 1).kind->name()};
  };
  for (const auto* name : {"16-mixed", "16", "bf16-mixed", "bf16"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(with_precision(on("some"), name),
                      Catch::Contains("no rules for devices of the accelerator some"));
    CHECK_THROWS_WITH(with_precision(on("lazy"), name),
                      Catch::Contains("lazy has no mixed precision"));
    CHECK(with_precision(on("cpu"), name) == "cpu");
  }
  CHECK(with_precision(on("some"), "16-true") == "some");
}

TEST_CASE("a kind of device that no plug-in has brought to LibTorch is refused", "[accelerator]") {
  struct of_xla : some_devices {
    of_xla() : some_devices(1, 0, {}, "xla") {}
    c10::DeviceType type() const override { return c10::DeviceType::XLA; }
    std::string unusable() const override { return accelerator::unusable(); }
  };
  auto table = default_accelerators();
  table["xla"] = [] { return std::make_shared<of_xla>(); };
  CHECK_THROWS_WITH(choose_devices(table, on("xla"), 1),
                    Catch::Contains("LibTorch knows no device guard of xla"));
}

TEST_CASE("the cpu is one device that all ranks share", "[accelerator]") {
  const auto table = default_accelerators();
  CHECK(choose_devices(table, on("cpu"), 8).devices.size() == 1);
  CHECK_NOTHROW(choose_devices(table, on("cpu", {.indices = {0}}), 2));
  CHECK_THROWS_WITH(choose_devices(table, on("cpu", {.count = 2}), 2),
                    Catch::Contains("devices = 2: the cpu is one device"));
  CHECK_THROWS_WITH(choose_devices(table, on("cpu", {.indices = {0, 1}}), 2),
                    Catch::Contains("devices = [0, 1]"));
}

TEST_CASE("a recipe writes the devices of a job into its options", "[accelerator]") {
  torch_plugins plugins;
  plugins.accelerators = with(3, 5);
  const auto recipe = make_recipe({}, nullptr, plugins);
  auto options = on("auto");
  recipe->settle_devices(options, 2);
  CHECK(options.accelerator.name == "some");
  CHECK(options.devices == device_choice{.indices = {0, 1}});
  options = on("some", {.count = 2});
  CHECK_THROWS_WITH(recipe->settle_devices(options, 3), Catch::Contains("use --ranks 2"));
  // A launcher's ranks may be on several hosts.
  options = on("auto");
  recipe->settle_devices(options, 0);
  CHECK(options.accelerator.name == "some");
  CHECK(options.devices == device_choice{});
}

namespace {

/// A stand-in for GPUs.
class named_cuda : public some_devices {
public:
  named_cuda() : some_devices(2, 10) {}
  std::string_view name() const override { return "cuda"; }
};

/// A stand-in for NCCL that no rank opens.
class named_nccl : public communicator_backend {
public:
  std::string_view name() const override { return "nccl"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description&) override { return nullptr; }
};

/// "accepted", or why a job of two ranks over nccl is refused before its ranks start.
std::string verdict_on_nccl(const std::string& accelerator, device_choice devices,
                            placement_kind where = placement_kind::threads,
                            stage purpose = stage::validate) {
  torch_plugins plugins;
  plugins.accelerators["cuda"] = [] { return std::make_shared<named_cuda>(); };
  job what;
  what.purpose = purpose;
  what.recipe = make_recipe({}, nullptr, plugins);
  what.options = on(accelerator, std::move(devices));
  what.options.ranks = 2;
  what.options.placement = where;
  what.options.communicator = communicator_kind::nccl;
  auto world = local_ports();
  world.communicators = {std::make_shared<named_nccl>()};
  try {
    check_job(what, world);
  } catch (const user_error& error) {
    CHECK(error.code() == errc::device);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("nccl is accepted for threads on the GPUs 0, 1 and so on, else refused with the reason",
          "[accelerator]") {
  CHECK(verdict_on_nccl("cuda", {.indices = {0, 1}}) == "accepted");
  CHECK(verdict_on_nccl("cuda", {}) == "accepted");
  CHECK(verdict_on_nccl("auto", {.count = 2}) == "accepted");
  CHECK_THAT(verdict_on_nccl("cuda", {.indices = {1, 0}}),
             Catch::Contains("it gives rank r the GPU r; leave out --devices"));
  CHECK_THAT(verdict_on_nccl("cpu", {}), Catch::Contains("this job computes on the cpu") &&
                                             Catch::Contains("--accelerator cuda"));
  CHECK_THAT(verdict_on_nccl("cuda", {.indices = {0, 1}}, placement_kind::processes),
             Catch::Contains("there is no communicator \"nccl\" between processes"));
  // Functions that are called on ranks bring memory of their own.
  CHECK(verdict_on_nccl("cpu", {}, placement_kind::threads, stage::call) == "accepted");
}

TEST_CASE("root_device is the local rank's, and shards share devices", "[accelerator]") {
  const auto make = [](strategy_parts parts) {
    return make_strategy(default_strategies(), "data_parallel", std::move(parts));
  };
  const auto local = [](std::int32_t rank, std::int32_t world) {
    return std::make_shared<local_environment>(rank, world);
  };
  CHECK(make(parts_of(local(0, 2), 2))->root_device().index() == 0);
  CHECK(make(parts_of(local(1, 2), 2))->root_device().index() == 2);
  const auto devices = some_devices{3, 0}.parse({.indices = {0, 2}}, 0);
  std::vector<int> of_shards;
  for (std::int32_t shard = 0; shard < 5; ++shard)
    of_shards.push_back(device_of(devices, shard, 5).index());
  CHECK(of_shards == std::vector{0, 0, 0, 2, 2});
  // Each process of a launcher has a device of its own, also where other hosts have more ranks.
  CHECK(make(parts_of(std::make_shared<launched>(0, 4), 4))->root_device().index() == 0);
  CHECK(make(parts_of(std::make_shared<launched>(1, 4), 4))->root_device().index() == 2);
  CHECK_THROWS_WITH(make(parts_of(std::make_shared<launched>(2, 3), 3))->root_device(),
                    Catch::Contains("local rank 2 has no device"));
}
