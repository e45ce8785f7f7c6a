#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"

#include "apps/troupe/build_facts.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <boost/version.hpp>
#include <caf/config.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

// Any processor of the last ten years is faster with a BLAS library that is built for it.
constexpr double slow_matrix_speed = 5.0;

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

ordered_json versions(const catalog& learning) {
  ordered_json all{
      {"troupe", build_facts::version},
      {"compiler", fmt::format("{} {}", build_facts::compiler, __VERSION__)},
      {"build", build_facts::build_type},
      {"caf", fmt::format("{}.{}.{}", CAF_MAJOR_VERSION, CAF_MINOR_VERSION, CAF_PATCH_VERSION)},
      {"boost", fmt::format("{}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
                            BOOST_VERSION % 100)}};
  for (const auto& [name, version] : learning.versions()) all[name] = version;
  return all;
}

ordered_json communicator_facts(std::string_view name, const std::string& why_not,
                                const std::string& why) {
  const bool available = why_not.empty();
  return {{"name", name}, {"available", available}, {"why", available ? why : why_not}};
}

// mpirun places the ranks of mpi, whatever --placement says.
bool of_mpirun(std::string_view name) { return name == "mpi"; }

// `auto` takes the first usable one of the placement; with a launcher, the one of the launcher.
ordered_json communicators(const context& around) {
  const auto world = around.world();
  const auto& by = around.place;
  ordered_json all = ordered_json::array();
  const bool under_mpirun = by && by->over == communicator_kind::mpi;
  std::vector<std::string> known{"inproc", "shm", "tcp", "hier", "nccl", "mpi"};
  const auto add = [&](const auto& kinds, const std::string& placement, const auto& about) {
    bool first = !by;
    for (const auto& one : kinds) {
      if (of_mpirun(one->name())) continue;
      std::erase(known, std::string{one->name()});
      const auto why_not = one->unusable();
      const bool of_launcher = by && placement == "processes" && one->name() == to_string(by->over);
      const bool chosen = why_not.empty() && (of_launcher || std::exchange(first, false));
      all.push_back(
          communicator_facts(one->name(), why_not,
                             fmt::format("for --placement {}{}{}", placement,
                                         chosen ? ", what auto takes there" : "", about(*one))));
    }
  };
  if (!by) add(world.communicators, "threads", [](const auto&) { return std::string{}; });
  add(world.rendezvous_kinds, "processes", [](const rendezvous_kind& one) {
    const auto about = one.about();
    return about.empty() ? about : ": " + about;
  });
  for (const auto& one : world.communicators)
    if (of_mpirun(one->name())) {
      std::erase(known, std::string{one->name()});
      all.push_back(communicator_facts(
          one->name(), one->unusable(),
          under_mpirun
              ? by->by + "'s processes are the ranks, what auto takes here"
              : fmt::format("for one rank; mpirun -n RANKS {} fit for several", around.name)));
    }
  for (const auto& name : known)
    all.push_back(communicator_facts(
        name,
        by ? fmt::format("not for ranks that {} started", by->by) : "not part of this program",
        ""));
  return all;
}

ordered_json devices(const catalog& learning) {
  ordered_json all = ordered_json::array();
  for (const auto& one : learning.devices())
    all.push_back({{"name", one.name}, {"available", one.available}, {"about", one.about}});
  return all;
}

ordered_json environment_of(const context& around) {
  try {
    const auto found = detect_environment(around.cluster);
    if (!found.which) return {{"name", "local"}, {"why", found.why}};
    return {{"name", found.which->name()},
            {"why", found.why},
            {"rank", found.which->rank()},
            {"world", found.which->world()},
            {"local_rank", found.which->local_rank()},
            {"node_rank", found.which->node_rank()}};
  } catch (const user_error& error) {
    return {{"name", "local"}, {"why", error.what()}};
  }
}

std::vector<std::string> problems(const context& around, int cores) {
  std::vector<std::string> found;
  try {
    detect_environment(around.cluster);
  } catch (const user_error& error) {
    found.emplace_back(error.what());
  }
  for (const auto& data : around.learning.data_sets())
    if (!data.folder.empty() && !std::filesystem::exists(data.folder))
      found.push_back(
          fmt::format("data set {}: {} is not there; install its Debian package or "
                      "name its folder with --data-dir",
                      data.name, data.folder));
  if (cores < 2) found.emplace_back("one core: two ranks share it, so two are no faster than one");
  const auto speed = around.learning.matrix_speed();
  if (speed < slow_matrix_speed)
    found.push_back(
        fmt::format("a matrix product runs at {:.1f} GFLOP/s on one thread: a slow "
                    "BLAS, or a busy machine",
                    speed));
  return found;
}

void print(const ordered_json& all, console& screen) {
  for (const auto& [name, version] : all["versions"].items())
    screen.result(fmt::format("{:<12} {}", name, version.get<std::string>()));
  screen.result(fmt::format("{:<12} {}", "cores", all["cores"].get<int>()));
  for (const auto* kind : {"communicators", "devices"}) {
    screen.result(fmt::format("\n{}", kind));
    for (const auto& one : all[kind])
      screen.result(fmt::format("  {:<10} {}  {}", one["name"].get<std::string>(),
                                one["available"].get<bool>() ? "yes" : "no ",
                                one.value("why", one.value("about", ""))));
  }
  const auto& place = all["cluster_environment"];
  screen.result(fmt::format("\ncluster environment\n  {:<10} {}", place["name"].get<std::string>(),
                            place["why"].get<std::string>()));
  screen.result(all["problems"].empty() ? "\nno problems found" : "\nproblems");
  for (const auto& problem : all["problems"]) screen.result("  " + problem.get<std::string>());
}

program_end doctor(bool json, const context& around) {
  const auto cores = usable_cores();
  const ordered_json all{{"schema", "troupe.doctor/1"},
                         {"versions", versions(around.learning)},
                         {"cores", cores},
                         {"communicators", communicators(around)},
                         {"devices", devices(around.learning)},
                         {"cluster_environment", environment_of(around)},
                         {"problems", problems(around, cores)}};
  if (json) {
    around.screen.result(all.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    print(all, around.screen);
  }
  return {};
}

}  // namespace

void add_doctor(const command& app, const context& around, const choose& chosen) {
  const auto command = app.add_command(
      "doctor", "versions, communicators and devices of this machine, and problems");
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "one object");
  command.on_chosen([=, &around] { chosen([=, &around] { return doctor(*json, around); }); });
}

}  // namespace troupe::program
