#include "actors/job_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "actors/time_knob.hpp"
#include "backends/checkpoint_facts.hpp"
#include "backends/launcher.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

namespace fs = std::filesystem;

fs::path without_slash(const std::string& path) {
  const auto normal = fs::path{path}.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

std::string found_in(const checkpoint_io& io, const std::string& run) {
  return io.latest(run).path;
}

// The run whose newest checkpoint `resume` means; empty if `resume` can only be a checkpoint.
std::string run_meant(const job& what, const std::string& resume) {
  if (resume == latest_link) {
    if (what.run_folder.empty())
      throw user_error(errc::bad_usage,
                       "resume is \"latest\", which means the newest checkpoint of run_folder, but "
                       "that is empty: set run_folder, or give a checkpoint's path");
    return what.run_folder;
  }
  const auto path = without_slash(resume);
  if (path.filename() == latest_link && path.parent_path().filename() == checkpoints_folder)
    return path.parent_path().parent_path().string();
  return {};
}

std::string checkpoint_meant(const job& what, const checkpoint_io& io) {
  const auto& resume = *what.resume;
  if (const auto run = run_meant(what, resume); !run.empty()) return found_in(io, run);
  if (step_of_checkpoint_folder(without_slash(resume).filename().string()) >= 0) return resume;
  // A checkpoint's folder may have any name: a folder without checkpoints is taken for one.
  try {
    return found_in(io, resume);
  } catch (const user_error&) {
    std::error_code ignored;
    if (fs::exists(fs::path{resume} / checkpoints_folder, ignored)) throw;
    return resume;
  }
}

// The adapter called `wanted`, or for `auto` the first usable one. `between` completes the error.
template <class Adapter, class Reason>
std::shared_ptr<Adapter> choose(const std::vector<std::shared_ptr<Adapter>>& all,
                                const std::string& wanted, std::string_view between,
                                const Reason& why_unusable) {
  const bool any = wanted == to_string(communicator_kind::automatic);
  std::string known{to_string(communicator_kind::automatic)};
  std::string unusable;
  for (const auto& one : all) {
    const auto why_not = why_unusable(*one);
    if (any ? why_not.empty() : one->name() == wanted) {
      if (why_not.empty()) return one;
      throw user_error(errc::device,
                       fmt::format("communicator \"{}\" cannot be used here: {}", wanted, why_not));
    }
    known += fmt::format(", {}", one->name());
    unusable += fmt::format("; {}: {}", one->name(), why_not);
  }
  if (any)
    throw user_error(errc::device,
                     fmt::format("no communicator{} can be used here{}", between,
                                 all.empty() ? ", because the ports have none" : unusable));
  throw user_error(errc::device, fmt::format("there is no communicator \"{}\"{}; there are: {}",
                                             wanted, between, known));
}

// A new run in the folder of another one would move that one's `latest`.
void refuse_other_run(const job& what, const checkpoint_io& io) {
  std::string other;
  try {
    other = found_in(io, what.run_folder);
  } catch (const user_error&) {
    return;
  }
  throw user_error(errc::bad_configuration,
                   fmt::format("run_folder {} holds checkpoints of another run ({}): set resume to "
                               "\"latest\" to continue it, or choose another run_folder",
                               what.run_folder, other));
}

// As paths, and with links resolved.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  const auto below = [](const fs::path& a, const fs::path& b) {
    return std::ranges::mismatch(b, a).in1 == b.end();
  };
  std::error_code ignored;
  return below(without_slash(fs::absolute(inner, ignored).string()),
               without_slash(fs::absolute(outer, ignored).string())) ||
         below(fs::weakly_canonical(inner, ignored), fs::weakly_canonical(outer, ignored));
}

// The checkpointer knows the run's own checkpoints by their names below `run`, without links.
std::string spelled_in(const std::string& run, const std::string& path) {
  const auto folder = fs::path{run} / checkpoints_folder;
  std::error_code ignored;
  const auto real =
      fs::weakly_canonical(without_slash(fs::absolute(path, ignored).string()), ignored);
  const bool own =
      step_of_checkpoint_folder(real.filename().string()) >= 0 &&
      real.parent_path() == fs::weakly_canonical(fs::absolute(folder, ignored), ignored);
  return own ? (folder / real.filename()).string() : path;
}

// A fit that goes on from elsewhere would remove the checkpoints of the run in its folder.
void refuse_foreign_checkpoint(const job& what, const checkpoint_io& io) {
  if (lies_in(*what.resume, what.run_folder)) return;
  try {
    found_in(io, what.run_folder);
  } catch (const user_error&) {
    return;
  }
  throw user_error(errc::bad_configuration,
                   fmt::format("run_folder {} holds checkpoints of another run than resume, {}: "
                               "choose a new run_folder, or the checkpoint's own",
                               what.run_folder, *what.resume));
}

}  // namespace

bool writes_checkpoints(const job& what) {
  return what.purpose == stage::train && !what.run_folder.empty() &&
         what.options.checkpoint.enabled && what.options.fast_dev_run == 0;
}

void check_ports(const ports& world) {
  const auto require = [](bool there, std::string_view what) {
    if (!there)
      throw user_error(
          errc::bad_usage,
          fmt::format("{}: begin with troupe::local_ports(), and change single members "
                      "of it",
                      what));
  };
  const auto there = [](const auto& one) { return one != nullptr; };
  require(world.random != nullptr, "ports::random is null");
  require(world.lanes != nullptr, "ports::lanes is null");
  require(static_cast<bool>(world.now), "ports::now is empty");
  require(std::ranges::all_of(world.communicators, there), "ports::communicators has a null entry");
  require(std::ranges::all_of(world.rendezvous_kinds, there),
          "ports::rendezvous_kinds has a null entry");
}

std::shared_ptr<const checkpoint_io> checkpoint_format(const job& what, const ports& world) {
  auto own = what.recipe ? what.recipe->checkpoints() : nullptr;
  return own ? own : world.checkpoints;
}

job with_checkpoint_found(job what, const ports& world) {
  if (what.resume && what.resume->empty())
    throw user_error(errc::bad_usage,
                     "resume is an empty path: give a checkpoint's folder, a run's folder or "
                     "\"latest\"; leave it unset to start from the module's own weights");
  const auto io = checkpoint_format(what, world);
  if (!io || what.purpose == stage::call) return what;
  if (!world.files && writes_checkpoints(what))
    throw user_error(
        errc::bad_usage,
        "ports::files is null, and this job writes checkpoints: set it to a storage, or "
        "set checkpoint.enabled to false");
  if (what.resume) what.resume = checkpoint_meant(what, *io);
  if (!writes_checkpoints(what)) return what;
  if (!what.resume) return refuse_other_run(what, *io), what;
  refuse_foreign_checkpoint(what, *io);
  what.resume = spelled_in(what.run_folder, *what.resume);
  return what;
}

std::shared_ptr<communicator_backend> choose_communicator(const ports& world,
                                                          const std::string& wanted) {
  return choose(world.communicators, wanted, "",
                [](const communicator_backend& one) { return one.unusable(); });
}

std::shared_ptr<rendezvous_kind> choose_rendezvous(const ports& world, const std::string& wanted,
                                                   std::int32_t ranks) {
  return choose(world.rendezvous_kinds, wanted, " between processes",
                [ranks](const rendezvous_kind& one) {
                  if (ranks <= one.most_ranks()) return one.unusable();
                  return fmt::format(
                      "it carries {} ranks (shards) at most, and the job has {}; "
                      "use --communicator tcp",
                      one.most_ranks(), ranks);
                });
}

loop_state loop_resumed_at(const job& what, const ports& world) {
  const auto io = checkpoint_format(what, world);
  if (what.purpose != stage::train || !what.resume || !io) return {};
  const auto of = facts_at(*io, *what.resume);
  return of ? of->loop : loop_state{};
}

namespace {

// As on the command line. A shard is a thread or several: 40,000 used up a machine's process ids.
constexpr std::int32_t most_shards = 4096;

}  // namespace

bool by_launcher(const job& what, const ports& world) {
  const auto& options = what.options;
  if (options.communicator.name == to_string(communicator_kind::mpi)) return true;
  return options.placement == placement_kind::processes && world.children &&
         world.children->placed();
}

namespace {

// A rank's process computes one shard: MPI and NCCL know a process by one number.
bool one_shard_each(const job& what, const ports& world) {
  const auto& by = what.options.communicator.name;
  if (by == to_string(communicator_kind::mpi) || by == to_string(communicator_kind::nccl))
    return true;
  return by_launcher(what, world) && !world.children->placed()->outlive_loss;
}

// The shards of the checkpoint from which a fit resumes, where they are more than its ranks and the
// options do not say how many it has. A checkpoint that cannot be read is reported where it is read
// as a whole.
std::optional<std::int32_t> shards_resumed(const job& what, const ports& world) {
  const auto io = checkpoint_format(what, world);
  if (what.purpose != stage::train || what.options.elastic.shards || !what.resume || !io) return {};
  const auto of = facts_at(*io, *what.resume);
  return of && of->ranks > what.options.ranks ? std::optional{of->ranks} : std::nullopt;
}

}  // namespace

std::int32_t shards_of(const job& what, const ports& world) {
  const auto& options = what.options;
  const auto& e = options.elastic;
  const auto refuse = [](std::string what) {
    throw user_error(errc::bad_configuration, std::move(what));
  };
  const auto resumed = shards_resumed(what, world);
  const auto shards = resumed.value_or(e.shards.value_or(options.ranks));
  const auto said = resumed ? fmt::format("the checkpoint {} has {} shards", *what.resume, shards)
                            : fmt::format("elastic.shards is {}", shards);
  const auto fix = resumed ? fmt::format("; set elastic.shards to {}", options.ranks) : "";
  const bool placed = by_launcher(what, world);
  const bool one_each = one_shard_each(what, world);
  if (options.ranks < 1)
    refuse(fmt::format("ranks is {}: a world has at least one", options.ranks));
  if (shards < options.ranks)
    refuse(
        fmt::format("elastic.shards is {} and ranks is {}: a rank computes at least one shard; "
                    "raise elastic.shards, or use {} rank{}",
                    shards, options.ranks, shards, shards == 1 ? "" : "s"));
  if (shards > options.ranks && one_each)
    refuse(fmt::format("{} and ranks is {}: with communicator \"{}\"{} a rank computes one shard{}",
                       said, options.ranks, options.communicator.name,
                       placed ? " in processes of a launcher" : "", fix));
  if (shards > most_shards && !placed)
    refuse(
        fmt::format("ranks is {} and {}: a session runs at most {}, each with threads of its own; "
                    "use fewer, or a simulation{}",
                    options.ranks, said, most_shards, fix));
  if (e.min_ranks < 1 || e.min_ranks > options.ranks)
    refuse(fmt::format("elastic.min_ranks is {}: it lies between 1 and ranks ({})", e.min_ranks,
                       options.ranks));
  if (e.spares < 0) refuse(fmt::format("elastic.spares is {}: it is at least 0", e.spares));
  if (e.spares > 0 && (options.placement == placement_kind::threads || (placed && one_each)))
    refuse(
        fmt::format("elastic.spares is {}: a spare is a process, and the ranks of this job are "
                    "{}; leave it out{}",
                    e.spares, placed ? "processes of MPI, which cannot be replaced" : "threads",
                    placed ? "" : ", or set placement to processes"));
  if (e.max_restarts < 0)
    refuse(
        fmt::format("elastic.max_restarts is {}: it is at least 0, with which the first failure "
                    "ends the job",
                    e.max_restarts));
  if (e.spares > 0 && !e.enabled())
    refuse(
        fmt::format("elastic.spares is {} and elastic.max_restarts is 0: only a job that "
                    "restarts uses spares; raise elastic.max_restarts, or leave spares out",
                    e.spares));
  if (e.window.count() < 0 || e.wait.count() < 0)
    refuse("elastic.window_seconds and elastic.wait_seconds are at least 0");
  return shards;
}

fit_plan checked_plan(const job& what) {
  if (!what.recipe)
    throw user_error(errc::bad_usage,
                     "the job has no recipe: give one that recipe_for, make_recipe or call_recipe "
                     "has made");
  if (what.options.ranks < 1)
    throw user_error(errc::bad_configuration,
                     fmt::format("ranks is {}: a world has at least one", what.options.ranks));
  if (what.purpose == stage::start || what.purpose == stage::sanity)
    throw user_error(errc::bad_usage,
                     fmt::format("the job's purpose is \"{}\", which is a stage within a job: set "
                                 "train, validate, test, predict or call",
                                 to_string(what.purpose)));
  return make_plan(what.options, what.purpose, what.resume.value_or(""));
}

namespace {

// Functions that are called on ranks bring memory of their own.
void refuse_without_gpus(const trainer_options& options) {
  const auto& on = options.accelerator.name;
  const auto refuse = [](const std::string& why) {
    throw user_error(errc::device, "communicator = \"nccl\": " + why);
  };
  if (on != to_string(accelerator_kind::cuda))
    refuse(
        fmt::format("it carries tensors of GPUs, and this job computes on the {}; use "
                    "--accelerator {}, or --communicator auto",
                    on, to_string(accelerator_kind::cuda)));
  std::int32_t next = 0;
  for (const auto index : options.devices.indices)
    if (index != next++)
      refuse("it gives rank r the GPU r; leave out --devices, or use --communicator auto");
}

}  // namespace

void configure(job& what) {
  if (what.recipe) what.recipe->configure(what.options);
}

namespace {

// A launcher's ranks may be on several hosts: each of them looks for its own device.
void settle_devices(job& what, const ports& world) {
  if (!what.recipe) return;
  const auto& by = what.options.communicator.name;
  const bool placed = by_launcher(what, world);
  what.recipe->settle_devices(what.options, placed ? 0 : what.options.ranks);
  if (by == to_string(communicator_kind::nccl) && what.purpose != stage::call)
    refuse_without_gpus(what.options);
}

void settle_shards(job& what, const ports& world) {
  const auto resumed = shards_resumed(what, world);
  what.options.ranks = shards_of(what, world);
  if (!what.recipe || what.purpose != stage::train) return;
  try {
    what.recipe->check_options(what.options);
  } catch (const user_error& error) {
    if (!resumed) throw;
    throw user_error(error.code(), fmt::format("{}; the job has {} shards as its checkpoint {}: "
                                               "elastic.shards sets another number",
                                               error.what(), *resumed, *what.resume));
  }
}

}  // namespace

void settle_options(job& what, const ports& world) {
  settle_devices(what, world);
  settle_shards(what, world);
}

void check_options(job what, const ports& world) {
  configure(what);
  settle_shards(what, world);
  checked_plan(what);
  check(what.options.time);
}

void check_job(const job& what, const ports& world) {
  auto asked = what;
  configure(asked);
  auto found = with_checkpoint_found(std::move(asked), world);
  settle_options(found, world);
  const auto plan = checked_plan(found);
  check(found.options.time);
  if (found.options.placement == placement_kind::threads)
    choose_communicator(world, found.options.communicator.name);
  else
    choose_rendezvous(world, found.options.communicator.name, found.options.ranks);
  if (found.purpose != stage::train) return;
  const auto path = found.resume.value_or("");
  const auto io = checkpoint_format(found, world);
  if (path.empty() || !io) return found.recipe->check_fit(found.options, nullptr, path);
  const auto from = io->read(path);
  check_finished(plan, from.loop);
  found.recipe->check_fit(found.options, &from, path);
}

}  // namespace troupe
