// Goal: a run with real files does not depend on the order in which the file system lists a folder.
// Method: this program replaces readdir and reverses or shuffles its results; the storage port of a
// simulated run uses real files, and each operation is part of the run's hashes.
#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "apps/testing/simulated_job.hpp"
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/local/file_operations.hpp"
#include "tests/support/integer_learner.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/detail/stable_hash.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

enum class order { as_it_is, turned, shuffled };
order order_now = order::as_it_is;

struct listing {
  std::vector<dirent> entries;
  std::size_t next = 0;
};
std::map<DIR*, listing>& listings() {
  static std::map<DIR*, listing> all;
  return all;
}
std::uint64_t listings_changed = 0;

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void read_all(DIR* folder, listing& into) {
  while (const auto* one = real<dirent*(DIR*)>("readdir")(folder)) into.entries.push_back(*one);
  if (order_now == order::turned) std::ranges::reverse(into.entries);
  if (order_now == order::shuffled) {
    std::mt19937 draw{static_cast<unsigned>(into.entries.size())};
    std::ranges::shuffle(into.entries, draw);
  }
  if (into.entries.size() > 3) ++listings_changed;
}

}  // namespace

// Replaces the C library's function in this whole program.
extern "C" dirent* readdir(DIR* folder) {
  if (order_now == order::as_it_is) return real<dirent*(DIR*)>("readdir")(folder);
  auto& all = listings()[folder];
  if (all.next == 0) read_all(folder, all);
  if (all.next < all.entries.size()) return &all.entries[all.next++];
  return nullptr;
}
extern "C" int closedir(DIR* folder) {
  listings().erase(folder);
  return real<int(DIR*)>("closedir")(folder);
}

namespace {

// The storage port on real files, in virtual time. Operations and listings are part of the state
// hash.
class files_in_a_simulation final : public storage {
public:
  files_in_a_simulation(simulation& in, std::filesystem::path root)
      : simulation_(in), root_(std::move(root)) {}

  void submit(storage_op op, std::function<void(storage_result)> done) override {
    simulation_.at(0, std::chrono::microseconds{200},
                   [this, op = std::move(op), done = std::move(done)] {
                     auto result = perform(root_, op);
                     stable_hasher hash;
                     hash.add(op.index()).add(bool{result.error}).add(result.names.size());
                     for (const auto& name : result.names) hash.add(name);
                     std::visit(
                         [&](const auto& x) {
                           if constexpr (requires { x.path; }) hash.add(x.path);
                         },
                         op);
                     simulation_.state_is(hash.digest());
                     done(std::move(result));
                   });
  }

private:
  simulation& simulation_;
  std::filesystem::path root_;
};

job job_in(const std::string& resume) {
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  what.options.max_epochs = 100;
  what.options.max_steps = 12;
  what.options.checkpoint.every_n_steps = 1;
  what.options.checkpoint.keep_last = 1'000'000;
  integer_options options;
  options.load = [](const std::string& path) { return safetensors_checkpoints({})->read(path); };
  what.recipe = std::make_shared<integer_recipe>(options);
  what.run_folder = "run";
  if (!resume.empty()) what.resume = resume;
  return what;
}

struct facts {
  trace_hashes hashes;
  std::uint64_t events = 0;
  std::string digest;
  std::int64_t resumed = 0;
  friend bool operator==(const facts&, const facts&) = default;
};

// A run whose program is killed with many folders, half of them hidden; then one that resumes from
// an earlier step than the newest.
facts run_with(order how) {
  const temporary_folder folder;
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  order_now = how;
  facts all;
  {
    simulation in{choices::of_seed(3), {}};
    simulated_job sim_job{in, {.ranks_per_host = 0}};
    const auto checkpoints = safetensors_checkpoints({});
    sim_job.use({std::make_shared<files_in_a_simulation>(in, folder.path()), checkpoints});
    std::int64_t written = 0;
    sim_job.listen([&](const seen::lifecycle& what) {
      if (what.event == lifecycle_kind::checkpoint_written) written = what.step;
    });
    sim_job.begin(job_in({}));
    while (written < 9 && in.step()) continue;
    sim_job.crash_program();
    for (const auto step : {70, 71, 72, 73, 74, 75})
      std::filesystem::create_directories(folder.path() / "run/checkpoints" /
                                          ("." + checkpoint_folder_name(step) + ".tmp"));
    std::filesystem::remove(folder.path() / "run/checkpoints/latest");
    std::filesystem::remove(folder.path() / "run/checkpoints" / checkpoint_folder_name(9) /
                            "manifest.json");
    const auto found = checkpoints->latest("run");
    const auto from = checkpoints->read(found.path);
    all.resumed = from.loop.steps;
    sim_job.begin(job_in(found.path));
    while (in.step()) continue;
    REQUIRE(sim_job.ended());
    REQUIRE(sim_job.outcome()->ok());
    all.hashes = in.hashes();
    all.events = in.events();
    all.digest = sim_job.outcome()->weights->weights_digest;
  }
  order_now = order::as_it_is;
  std::filesystem::current_path(here);
  return all;
}

}  // namespace

TEST_CASE("a run with real files does not depend on the order of folder listings",
          "[simulated][checkpoint]") {
  const auto once = run_with(order::as_it_is);
  CHECK(once.resumed == 8);
  CHECK(once == run_with(order::as_it_is));
  for (const auto how : {order::turned, order::shuffled}) {
    listings_changed = 0;
    const auto other = run_with(how);
    CHECK(listings_changed > 1);  // else the test proves nothing
    CHECK(other.hashes == once.hashes);
    CHECK(other == once);
  }
}
