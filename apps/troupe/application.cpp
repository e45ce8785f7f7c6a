// A program as its main calls it. Only this file decides what affects the whole process.
#include "actors/rank_process.hpp"
#include "apps/command_line/descriptors.hpp"
#include "apps/troupe/launched.hpp"
#include "apps/troupe/process.hpp"
#include "apps/troupe/program.hpp"
#include "apps/troupe/recipe_text.hpp"
#include "apps/troupe/torch_catalog.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/mpi/mpi.hpp"
#include "backends/processes/arguments.hpp"
#include "backends/processes/rendezvous_kinds.hpp"
#include "backends/torch/tcp_store.hpp"
#include "troupe/failure.hpp"
#include "troupe/main.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

namespace {

// This process among those of its launcher, if it has one: how they become the ranks of one job.
class placed_process {
public:
  explicit placed_process(const cluster_facts& from)
      : by_(program::launched_by(from)), mpi_(std::make_shared<mpi_backend>(of_mpirun(from))) {
    if (!by_) return;
    const bool over_mpi = by_->over == communicator_kind::mpi;
    ranks_ = placed_launcher({.world = by_->place.world,
                              .one_host = by_->one_host(),
                              .outlive_loss = !over_mpi,
                              .keep = over_mpi ? by_->pmi_descriptor : std::nullopt});
    if (over_mpi) return;
    store_ = tcp_store(place_of_store());
  }

  ~placed_process() { end_call(); }
  placed_process(const placed_process&) = delete;
  placed_process& operator=(const placed_process&) = delete;

  const std::optional<program::launched>& by() const { return by_; }

  // MPI can be started once in a process: one backend for all calls.
  void provide(ports& world) const {
    world.use(mpi_);
    if (!by_) return;
    world.children = ranks_;
    world.rendezvous_kinds.clear();
    if (store_ && by_->one_host()) world.use(named_shm_rendezvous());
    if (!store_) return world.use(placed_rendezvous(mpi_));
    world.use(stored_rendezvous(store_, by_->one_host()));
    world.use(stored_hier_rendezvous(store_, by_->one_host()));
  }

  // The process that the launcher started as rank 0 runs the jobs. It has a child for rank 0.
  void lead() {
    if (!store_) return;
    if (!by_->store_is_served) store_ = served();
    count_call();
    leads_ = true;
  }

  // A process that starts late would wait for a store that has ended, or call at a launcher that
  // has. So it learns that no job follows, and the store stays until each process has read what it
  // waits for. torchrun's stays anyway.
  void end_call() noexcept {
    if (!std::exchange(leads_, false)) return;
    try {
      store_->set(joining(), "");
      if (by_->store_is_served) return;
      const auto until = std::chrono::steady_clock::now() + leave_limit;
      for (std::int32_t rank = 1; rank < by_->place.world; ++rank)
        store_->wait(read_by(rank), std::chrono::duration_cast<milliseconds>(
                                        until - std::chrono::steady_clock::now()));
    } catch (const user_error&) {  // they have a limit, too
    }
  }

  // In the child for rank 0, where the descriptor of PMI has another number. MPI reads it when it
  // starts.
  void be_child() const {
    if (by_ && by_->pmi_descriptor) ::setenv("PMI_FD", std::to_string(kept_descriptor).c_str(), 1);
  }

  // Runs this process as a rank. `join_info`: of rank 0's process, which passes it on.
  int be_rank(const std::string& join_info, const rank_process_options& home) {
    const auto join_text = shared(join_info);
    if (join_text.empty()) return 0;
    const auto code = run_placed_rank(by_->place.rank, join_text, home);
    if (code == 0 && !store_) mpi_->close();
    return code;
  }

  // If MPI is unusable, only the first process reports it.
  bool usable() const { return store_ || mpi_->unusable().empty(); }

private:
  using milliseconds = std::chrono::milliseconds;
  static constexpr std::chrono::minutes join_limit{5};
  static constexpr std::chrono::seconds leave_limit{30};
  static constexpr int join_tries = 4;

  static std::string read_by(std::int32_t rank) { return fmt::format("rank {} has read", rank); }

  static std::optional<placed_rank> of_mpirun(const cluster_facts& from) {
    const auto by = program::by_mpirun(from);
    return by ? std::optional{by->place} : std::nullopt;
  }

  store_place place_of_store() const {
    return {.host = by_->store_host,
            .port = by_->store_port,
            .prefix = by_->store_prefix,
            .launcher = by_->by};
  }

  // This process serves the store, for as long as the object lives.
  std::shared_ptr<launcher_store> served() {
    auto where = place_of_store();
    where.serves = true;
    auto own = tcp_store(std::move(where));
    try {
      own->find(calls_of(0));
    } catch (const user_error&) {
      send_others_away();
      throw;
    }
    return own;
  }

  // What has the port may be the store of another step with the same MASTER_PORT. The other
  // processes of this step then wait there.
  void send_others_away() noexcept {
    try {
      auto where = place_of_store();
      where.patience = std::chrono::seconds{2};
      store_ = tcp_store(std::move(where));
      count_call();
      store_->set(joining(), "");
    } catch (const user_error&) {  // it is another program, and they have a limit
    }
  }

  // A launcher's processes may be shells that call the program several times. A store may outlive
  // a call, so each process counts its own calls there.
  static std::string calls_of(std::int32_t rank) { return fmt::format("calls of rank {}", rank); }
  std::string joining() const { return fmt::format("join {}", call_); }
  int counted(std::int32_t rank) const {
    return std::stoi(store_->find(calls_of(rank)).value_or("0"));
  }
  void count_call() {
    const auto rank = by_->place.rank;
    call_ = counted(rank) + 1;
    store_->set(calls_of(rank), std::to_string(call_));
  }

  std::string shared(const std::string& join_info) {
    if (!store_) return mpi_->share(join_info);
    if (join_info.empty()) return awaited();
    call_ = counted(0);
    if (!store_->find(joining())) store_->set(joining(), join_info);  // else the call is ending
    return join_info;
  }

  // An earlier call's store, which rank 0 served, ends with that call. So this process may meet it
  // while it ends, and then connects again.
  std::string awaited() {
    using clock = std::chrono::steady_clock;
    const auto until = clock::now() + join_limit;
    const auto left = [until] { return std::chrono::ceil<milliseconds>(until - clock::now()); };
    for (int tries = 1;; ++tries) {
      call_ = 0;
      try {
        count_call();
        auto text = store_->wait(joining(), left());
        store_->set(read_by(by_->place.rank), "");
        return text;
      } catch (const user_error&) {
        const bool of_this_call = by_->store_is_served || call_ == 1;
        if (of_this_call || tries == join_tries || left() <= milliseconds{0}) throw;
      }
      auto where = place_of_store();
      where.patience = std::max(left(), milliseconds{1});
      store_ = tcp_store(std::move(where));
    }
  }

  const std::optional<program::launched> by_;
  const std::shared_ptr<mpi_backend> mpi_;
  std::shared_ptr<rank_launcher> ranks_;
  std::shared_ptr<launcher_store> store_;
  int call_ = 0;  // of this rank, in the store; from 1
  bool leads_ = false;
};

// The first process reports how the ranks ended. This one reports why it could not join.
int end_as_rank(placed_process& others, const std::string& join_info,
                const rank_process_options& home) {
  try {
    return others.be_rank(join_info, home);
  } catch (const user_error& error) {
    program::standard_error()(fmt::format("error: {}\n", error.what()));
    return static_cast<int>(error.code());
  }
}

// What users call the program.
std::string name_of(const application::facts& about, int count, const char* const* arguments) {
  if (!about.name.empty()) return about.name;
  const auto file = std::filesystem::path{count > 0 ? arguments[0] : ""}.filename().string();
  return file.empty() ? "program" : file;
}

int run_parts(const application::facts& about, const detail::own_parts& parts, int count,
              const char* const* arguments, program::console& screen) {
  using namespace troupe::program;
  raise_descriptor_limit();
  const auto cluster = cluster_facts_of_process();
  const auto others = std::make_shared<placed_process>(cluster);
  const auto learning = torch_catalog(parts, [others, cluster](const learner_context& of) {
    return place_of_rank(others->by(), cluster, of.rank, of.world, of.options.elastic.spares);
  });
  // Manifests say which LibTorch wrote them.
  const auto world = [checkpoints = safetensors_checkpoints(learning->versions()), others] {
    auto ports = local_ports();
    ports.checkpoints = checkpoints;
    others->provide(ports);
    return ports;
  };
  const auto recipe = [&learning](const std::string& text) {
    return learning->recipe(read_recipe_text(text));
  };
  // A rank's process, of --placement processes: it ends with its rank, without destructors.
  if (const auto code = run_rank_if_child(count, arguments, {recipe, world})) ::_exit(*code);
  if (const auto join_info = placed_child(count, arguments)) {
    others->be_child();
    ::_exit(end_as_rank(*others, *join_info, {recipe, world}));
  }
  const context around{.screen = screen,
                       .learning = *learning,
                       .world = world,
                       .variables = troupe_variables(),
                       .wall = [] { return std::chrono::system_clock::now(); },
                       .age = process_age,
                       .place = others->by(),
                       .cluster = cluster,
                       .take_rank = [&]() -> std::optional<program_end> {
                         if (!others->by()) return std::nullopt;
                         if (others->by()->place.rank > 0) {
                           if (!others->usable()) return program_end{};
                           return program_end{end_as_rank(*others, {}, {recipe, world}), true};
                         }
                         others->lead();
                         return std::nullopt;
                       },
                       .name = name_of(about, count, arguments),
                       .about = about.about,
                       .version = about.version};
  const auto end = run_program({arguments + std::min(1, count), arguments + count}, around);
  // Destructors after main would wait for a lane that is stuck in user code. All output is already
  // written: none of it is buffered.
  if (end.survivors) {
    others->end_call();
    ::_exit(end.code);
  }
  return end.code;
}

}  // namespace

application& application::model(std::string name, std::string summary,
                                std::function<std::shared_ptr<module>()> make) {
  std::function<std::shared_ptr<module>(const value_map&)> of_settings;
  if (make) of_settings = [make = std::move(make)](const value_map&) { return make(); };
  parts_.models.push_back({std::move(name), std::move(summary), {}, std::move(of_settings)});
  return *this;
}

application& application::data(std::string name, std::string summary,
                               std::function<std::shared_ptr<data_module>()> make) {
  std::function<std::shared_ptr<data_module>(const value_map&)> of_settings;
  if (make) of_settings = [make = std::move(make)](const value_map&) { return make(); };
  parts_.data.push_back({std::move(name), std::move(summary), {}, std::move(of_settings)});
  return *this;
}

application& application::plugins(std::function<void(torch_plugins&)> change) {
  parts_.change_plugins = std::move(change);
  return *this;
}

int application::run(int count, const char* const* arguments) const {
  program::console screen{program::standard_output(), program::standard_error(),
                          program::terminal_of_standard_error()};
  try {
    return run_parts(about_, parts_, count, arguments, screen);
  } catch (const user_error& error) {  // the parts have impossible names
    screen.error(error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace troupe
