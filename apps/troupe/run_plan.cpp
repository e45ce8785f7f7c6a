#include "apps/troupe/run_plan.hpp"

#include "backends/checkpoint/run_checkpoints.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace troupe::program {

namespace {

namespace fs = std::filesystem;

constexpr const char* latest_word = "latest";

std::string newest_run() {
  const auto found = latest_run(runs_folder);
  if (found) return *found;
  throw user_error(errc::checkpoint,
                   fmt::format("there is no run in {}/ to go on with; name one with --run-dir, or "
                               "a checkpoint's path with --resume",
                               runs_folder));
}

// The newest good checkpoint of a run.
void take_latest(run_plan& plan, const std::string& run, const checkpoint_reader& checkpoints) {
  auto found = checkpoints.latest(run);
  for (auto& note : passed_over(found)) plan.notes.push_back(std::move(note));
  plan.checkpoint = std::move(found.path);
  plan.step = checkpoints.inspect(plan.checkpoint).loop.steps;
}

// Whether `path` is the folder of a run, not of a checkpoint.
bool holds_checkpoints(const std::string& path) {
  return holds_run(path) && !list_checkpoints(path).empty();
}

// A checkpoint, or of a run its newest good one.
void take_path(run_plan& plan, const std::string& path, const checkpoint_reader& checkpoints) {
  if (holds_checkpoints(path)) return take_latest(plan, path, checkpoints);
  plan.step = checkpoints.read(path).loop.steps;
  plan.checkpoint = path;
}

// The run that `resume`, a path, names or lies in. Empty for a checkpoint outside of runs.
std::string run_named(const std::string& resume) {
  return holds_checkpoints(resume) ? resume : run_of_checkpoint(resume).value_or("");
}

// The folder that a call names. Empty when it names none.
std::string folder_of(const settings& first) {
  if (first.is_set("run_dir")) return first.text("run_dir");
  if (!first.is_set("resume")) return {};
  const auto resume = first.text("resume");
  return resume == latest_word ? newest_run() : run_named(resume);
}

// The run whose settings a call goes on with: that of its folder, or of the checkpoint that begins
// a new one.
std::string run_of_settings(const settings& first, const std::string& folder) {
  if (holds_run(folder) || !first.is_set("resume")) return folder;
  const auto resume = first.text("resume");
  return resume == latest_word ? folder : run_named(resume);
}

// Reads the settings. Without a configuration file, the config.toml of `run` is read first, and all
// other sources override it.
void read_settings(run_plan& plan, const schema& all, given what, const std::string& run) {
  const auto saved = fs::path{run} / config_file;
  if (!run.empty() && what.files.empty() && fs::exists(saved)) {
    what.files.push_back(saved.string());
    if (run != plan.folder) plan.notes.push_back(fmt::format("settings of {}", saved.string()));
  }
  auto result = join(all, what);
  plan.notes.insert(plan.notes.end(), result.notes.begin(), result.notes.end());
  plan.settings = settled(std::move(result));
}

void resume(run_plan& plan, const std::string& from, const checkpoint_reader& checkpoints) {
  if (from != latest_word) {
    take_path(plan, from, checkpoints);
  } else if (!holds_run(plan.folder)) {
    throw user_error(
        errc::checkpoint,
        fmt::format("{} holds no run to go on with; leave out --resume to begin one", plan.folder));
  } else if (list_checkpoints(plan.folder).empty()) {
    plan.notes.push_back(fmt::format("{} has no checkpoint yet: the run begins anew", plan.folder));
  } else {
    take_latest(plan, plan.folder, checkpoints);
  }
}

// The optimizers take their options from the checkpoint, and their schedules go on. What the call
// leaves out is as in the checkpoint's run: another configuration file need not repeat it. Refuses
// another value that the call gives: of an option it would change nothing but config.toml, which
// would then be wrong; of a schedule it would mix two curves. The curves of the built-in schedules
// end with max_epochs: the next rate of one that has ended is 0, whatever its new length.
void keep_options(run_plan& plan, const schema& all) {
  const auto run = run_of_checkpoint(plan.checkpoint);
  if (!run || !fs::exists(fs::path{*run} / config_file)) return;
  given of_run;
  of_run.files = {(fs::path{*run} / config_file).string()};
  const auto before = join(all, of_run).settings;
  std::vector<const char*> keys{"optimizer.learning_rate", "optimizer.momentum",
                                "optimizer.weight_decay", "optimizer.scheduler",
                                "optimizer.warmup_epochs"};
  const auto* curve = find_setting(before.all(), "optimizer.scheduler");
  if (curve && before.text("optimizer.scheduler") != "none") keys.push_back("max_epochs");
  for (const auto* key : keys) {
    // A user's module has optimizers of its own.
    if (!find_setting(plan.settings.all(), key) || !find_setting(before.all(), key)) continue;
    const auto& now = plan.settings.at(key);
    const auto& then = before.at(key);
    if (now.value == then.value) continue;
    if (now.origin.from != source::fallback)
      throw user_error(
          errc::bad_configuration,
          fmt::format("{} = {} ({}): {} is of a run with {}, and a resumed fit keeps the options "
                      "and the schedule of the checkpoint's optimizer: leave this one out, or "
                      "begin a fresh run from the weights with --init-weights {}",
                      key, toml_text(now.value), now.origin.text(), plan.checkpoint,
                      toml_text(then.value),
                      (fs::path{plan.checkpoint} / std::string{model_file}).string()));
    plan.settings.set(key, then.value, then.origin);
  }
}

// Whether a checkpoint is one of this run. Either may be named through a link.
bool is_of_run(const fs::path& checkpoint, const fs::path& run) {
  std::error_code ignored;
  const auto whole = fs::absolute(checkpoint / ".", ignored).lexically_normal().parent_path();
  const auto all = run / checkpoints_folder;
  return fs::equivalent(whole.parent_path(), all, ignored) ||
         fs::equivalent(fs::canonical(whole, ignored).parent_path(), all, ignored);
}

// A fit would replace the files and remove the checkpoints of the run that the folder holds.
void refuse_other_run(const run_plan& plan) {
  if (plan.checkpoint.empty() || !holds_run(plan.folder)) return;
  if (is_of_run(plan.checkpoint, plan.folder)) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("{} holds another run than the checkpoint {}: leave out --run-dir, "
                               "or name a new folder",
                               plan.folder, plan.checkpoint));
}

// An evaluation has the settings of the run that it names: another one's, or the defaults, would
// give figures of something else.
void refuse_folder_without(const run_plan& plan) {
  if (is_of_run(plan.checkpoint, plan.folder)) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("run_dir = {} ({}) is no run with the checkpoint {}: leave it out, "
                               "and the settings are those of the checkpoint's own run, or give "
                               "others with --config",
                               toml_text(plan.folder), plan.settings.at("run_dir").origin.text(),
                               plan.checkpoint));
}

// Of two that a call names one would have no effect. A run's own file may name the weights that the
// run began with.
void refuse_two_weights(const run_plan& plan) {
  if (plan.checkpoint.empty() || !plan.settings.is_set("init_weights")) return;
  const auto& given = plan.settings.at("init_weights").origin;
  if (given.from == source::file) return;
  throw user_error(
      errc::bad_usage,
      fmt::format("init_weights ({}) and the checkpoint {} both name weights: leave one "
                  "of them out",
                  given.text(), plan.checkpoint));
}

}  // namespace

std::vector<std::string> passed_over(const found_checkpoint& found) {
  std::vector<std::string> notes;
  for (const auto& bad : found.refused)
    notes.push_back(
        fmt::format("passed over a damaged checkpoint: {}; took {}", bad.why, found.path));
  return notes;
}

run_plan plan_fit(const schema& all, given what, const checkpoint_reader& checkpoints,
                  const std::function<std::string(const std::string& model)>& fresh) {
  run_plan plan;
  // What else is given is checked below, with the model of the run's own file.
  const auto first = join(all, what).settings;
  const bool resuming = first.is_set("resume");
  plan.folder = folder_of(first);
  // Held before a checkpoint is chosen: a run that is ending may write another one.
  if (resuming && holds_run(plan.folder)) plan.held = std::make_shared<run_folder>(plan.folder);
  if (!resuming && !plan.folder.empty() && holds_run(plan.folder))
    throw user_error(
        errc::bad_configuration,
        fmt::format("{} holds a run; go on with it by --resume latest, or choose another --run-dir",
                    plan.folder));
  read_settings(plan, all, std::move(what), run_of_settings(first, plan.folder));
  if (resuming) resume(plan, first.text("resume"), checkpoints);
  refuse_other_run(plan);
  refuse_two_weights(plan);
  if (!plan.checkpoint.empty()) keep_options(plan, all);
  if (plan.folder.empty()) plan.folder = fresh(plan.settings.text("model.name"));
  plan.resumes = resuming && holds_run(plan.folder);
  return plan;
}

run_plan plan_evaluation(const schema& all, given what, const checkpoint_reader& checkpoints,
                         const std::string& command) {
  run_plan plan;
  // What else is given is checked below, with the model of the run's own file.
  const auto first = join(all, what).settings;
  plan.folder = folder_of(first);
  read_settings(plan, all, std::move(what), plan.folder);
  const auto from = first.is_set("resume") ? first.text("resume") : "";
  if (!from.empty() && from != latest_word) {
    take_path(plan, from, checkpoints);
    if (first.is_set("run_dir")) refuse_folder_without(plan);
  } else if (!plan.folder.empty()) {
    take_latest(plan, plan.folder, checkpoints);
  } else if (!plan.settings.is_set("init_weights")) {
    throw user_error(errc::bad_usage,
                     fmt::format("{} needs weights: name a run with --run-dir, a checkpoint with "
                                 "--checkpoint, or a safetensors file with --init-weights",
                                 command));
  }
  refuse_two_weights(plan);
  return plan;
}

}  // namespace troupe::program
