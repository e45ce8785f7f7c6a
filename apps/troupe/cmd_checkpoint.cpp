#include "actors/deciders.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/troupe/checkpoint_reader.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/job_parts.hpp"
#include "apps/troupe/output_file.hpp"
#include "apps/troupe/run_folder.hpp"
#include "apps/troupe/run_plan.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "backends/checkpoint/safetensors.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

std::string dumped(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json manifest_json(const manifest& what, const std::string& path) {
  ordered_json tensors = ordered_json::array();
  for (const auto& t : what.tensors)
    tensors.push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}, {"file", t.file}});
  ordered_json files = ordered_json::array();
  for (const auto& f : what.files)
    files.push_back({{"name", f.name}, {"bytes", f.bytes}, {"hash", f.hash}});
  return {{"schema", "troupe.checkpoint_facts/1"},
          {"path", path},
          {"step", what.loop.steps},
          {"epoch", what.loop.epoch},
          {"batch", what.loop.batch},
          {"samples", what.loop.samples},
          {"ranks", what.ranks},
          {"generation", what.generation},
          {"weights_digest", what.weights_digest},
          {"metrics", what.loop.last},
          {"versions", what.versions},
          {"tensors", tensors},
          {"files", files}};
}

void print_facts(const manifest& what, console& screen) {
  screen.result(fmt::format("step {}, epoch {}, {} ranks, generation {}", what.loop.steps,
                            what.loop.epoch, what.ranks, what.generation));
  screen.result(fmt::format("weights_digest {}", what.weights_digest));
  for (const auto& file : what.files)
    screen.result(fmt::format("{:<28} {:>12} bytes  {}", file.name, file.bytes, file.hash));
  for (const auto& tensor : what.tensors)
    screen.result(fmt::format("{:<28} {:<5} [{}]  {}", tensor.file, tensor.dtype,
                              fmt::join(tensor.shape, ", "), tensor.name));
}

checkpoint_reader reader_of(const context& around) {
  return checkpoint_reader{around.learning.checkpoints()};
}

// Whether `path` is the folder of a run, not of a checkpoint.
bool names_run(const std::string& path) {
  return !std::filesystem::exists(std::filesystem::path{path} / manifest_name) &&
         std::filesystem::is_directory(std::filesystem::path{path} / checkpoints_folder);
}

}  // namespace

std::string checkpoint_at(const std::string& path, const context& around) {
  if (!names_run(path)) return path;
  const auto found = reader_of(around).latest(path);
  for (const auto& note : passed_over(found)) around.screen.note(note);
  return found.path;
}

namespace {

program_end inspect(const std::string& path, bool json, const context& around) {
  auto& screen = around.screen;
  const auto at = checkpoint_at(path, around);
  const auto what = reader_of(around).inspect(at);
  if (json) {
    screen.result(dumped(manifest_json(what, at)));
  } else {
    print_facts(what, screen);
  }
  return {};
}

// Of a run the newest one counts: an older good one in its place would hide the damage.
program_end verify(const std::string& path, bool json, const context& around) {
  auto& screen = around.screen;
  const auto checkpoints = reader_of(around);
  auto at = path;
  const auto answer = [&](bool good, const std::string& why, const snapshot& what) {
    if (!json) return;
    screen.result(dumped(
        {{"schema", "troupe.checkpoint_verification/1"},
         {"path", at},
         {"good", good},
         {"why", good ? ordered_json(nullptr) : ordered_json(why)},
         {"weights_digest", good ? ordered_json(what.weights_digest) : ordered_json(nullptr)}}));
  };
  try {
    if (names_run(path)) {
      const auto found = checkpoints.latest(path);
      at = found.refused.empty() ? found.path : found.refused.front().path;
      if (!found.refused.empty())
        throw user_error(errc::checkpoint, fmt::format("{}; the newest good one is {}",
                                                       found.refused.front().why, found.path));
    }
    const auto what = checkpoints.read(at);
    answer(true, {}, what);
    if (!json)
      screen.result(fmt::format("{}: good, step {}, weights_digest {}", at, what.loop.steps,
                                what.weights_digest));
  } catch (const user_error& error) {
    answer(false, error.what(), {});
    throw;
  }
  return {};
}

// What the run compares its checkpoints by, as its config.toml says, callbacks included; no monitor
// if that is not there.
checkpoint_policy policy_of(const std::string& run, const schema& known, const context& around) {
  checkpoint_policy policy;
  policy.monitor.clear();
  const auto file = std::filesystem::path{run} / config_file;
  if (!std::filesystem::exists(file)) return policy;
  try {
    given of_run;
    of_run.files = {file.string()};
    const auto read = join(known, of_run).settings;
    auto options = options_of(read);
    around.learning.configure(learning_of(read), options);
    policy.monitor = options.checkpoint.monitor;
    policy.maximize = options.checkpoint.maximize;
  } catch (const user_error& error) {
    around.screen.note(fmt::format("note: the best checkpoint is not marked: {}", error.what()));
  }
  return policy;
}

std::optional<double> monitored(const listed_checkpoint& one, const checkpoint_policy& policy) {
  if (!one.damage.empty()) return {};
  return monitored_by(policy.monitor, one.what.loop);
}

std::optional<std::int64_t> best_step(const std::vector<listed_checkpoint>& all,
                                      const checkpoint_policy& policy) {
  std::vector<kept_checkpoint> kept;
  for (const auto& one : all)
    if (const auto number = monitored(one, policy))
      kept.push_back({one.step, one.path, true, *number});
  const auto* best = best_checkpoint(kept, policy);
  return best ? std::optional{best->step} : std::nullopt;
}

program_end list(const std::string& run, bool json, const schema& known, const context& around) {
  auto& screen = around.screen;
  const auto all = reader_of(around).list(run);
  if (all.empty()) screen.note(fmt::format("note: {} holds no checkpoint", run));
  const auto policy = policy_of(run, known, around);
  const auto best = best_step(all, policy);
  for (const auto& one : all) {
    const bool good = one.damage.empty();
    const auto number = monitored(one, policy);
    const bool is_best = number && one.step == best;
    if (json) {
      screen.result(
          dumped({{"schema", "troupe.checkpoint_entry/1"},
                  {"path", one.path},
                  {"step", one.step},
                  {"epoch", good ? ordered_json(one.what.loop.epoch) : nullptr},
                  {"weights_digest", good ? ordered_json(one.what.weights_digest) : nullptr},
                  {"latest", one.latest},
                  {"monitor", number ? ordered_json(policy.monitor) : nullptr},
                  {"value", number ? ordered_json(*number) : nullptr},
                  {"best", is_best},
                  {"damage", good ? ordered_json(nullptr) : ordered_json(one.damage)}}));
    } else {
      screen.result(
          fmt::format("{}{}{}{}", one.path,
                      is_best ? fmt::format("  best: {} {:.4g}", policy.monitor, *number) : "",
                      one.latest ? "  latest" : "", good ? "" : "  damaged: " + one.damage));
    }
  }
  return {};
}

struct export_question {
  std::string path, format = "torch", output;
  bool force = false;
};

program_end export_to(const export_question& what, const context& around) {
  check_output(what.output, what.force);  // before minutes of reading
  const auto taken = reader_of(around).read(checkpoint_at(what.path, around));
  const auto pieces = what.format == "torch" ? around.learning.torch_checkpoint(taken)
                                             : encode_safetensors(taken.model);
  std::vector<std::string_view> views;
  for (const auto& piece : pieces)
    views.emplace_back(reinterpret_cast<const char*>(piece->data()), piece->size());
  write_output(what.output, views, what.force);
  around.screen.result(what.output);
  return {};
}

}  // namespace

void add_checkpoint(const command& app, const schema& all, const context& around,
                    const choose& chosen) {
  const auto checkpoint = app.add_command("checkpoint", "looks into checkpoints").require_command();
  const auto reading = [&](const char* name, const char* about, const char* of, auto act) {
    auto path = std::make_shared<std::string>();
    auto json = std::make_shared<bool>(false);
    const auto command = checkpoint.add_command(name, about);
    const bool of_run = std::string_view{of} == "RUN_DIR";
    command
        .add(of, *path,
             of_run ? "the run's folder" : "a checkpoint's folder, or a run's for its latest")
        .required();
    command.add_flag("--json", *json, "objects instead of text");
    command.on_chosen([=, &around] { chosen([=, &around] { return act(*path, *json, around); }); });
  };
  reading("inspect", "what a checkpoint's manifest says", "PATH", inspect);
  reading("verify", "reads every byte and compares the hashes", "PATH", verify);
  reading("list", "the checkpoints of a run, the best and the latest named", "RUN_DIR",
          [&all](const std::string& run, bool json, const context& of) {
            return list(run, json, all, of);
          });

  auto what = std::make_shared<export_question>();
  const auto command = checkpoint.add_command("export", "writes a checkpoint for Python");
  command.add("PATH", what->path, "a checkpoint's folder, or a run's for its latest").required();
  command.add("--format", what->format, "torch: torch.load(FILE, weights_only=True)")
      .check([](const std::string& x) {
        return x == "torch" || x == "safetensors" ? "" : "one of torch, safetensors";
      })
      .type_name("torch|safetensors");
  command.add("--output", what->output, "the file to write; it must not be there yet")
      .required()
      .type_name("FILE");
  command.add_flag("--force", what->force, "replace the file of --output if it is there");
  command.on_chosen([=, &around] { chosen([=, &around] { return export_to(*what, around); }); });
}

}  // namespace troupe::program
