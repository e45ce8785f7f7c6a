#include "backends/torch/resume_check.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "backends/torch/hook_changes.hpp"
#include "troupe/detail/optimizer_state.hpp"
#include "troupe/failure.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

using json = nlohmann::json;

constexpr const char* made_with = "made_with";

template <class T>
void check_same(const std::string& path, std::string_view what, const T& then, const T& now,
                const std::string& flag) {
  if (then == now) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("{} was made with {} {}, this run has {}: pass {} {}, or start a "
                               "fresh run",
                               path, what, then, now, flag, then));
}

template <class F>
void with_state(const snapshot& from, const std::string& path, F read) {
  try {
    read(from.state.empty() ? json::object() : json::parse(from.state));
  } catch (const json::exception& error) {
    throw user_error(errc::checkpoint,
                     fmt::format("{}: its state is not what this version writes ({}): take another "
                                 "checkpoint",
                                 path, error.what()));
  }
}

void check_recorded(const json& state, const fit_record& now, const std::string& path) {
  // Earlier versions recorded only the seed.
  const auto then = state.value(made_with, state);
  if (then.contains("seed"))
    check_same(path, "seed", then.at("seed").get<std::uint64_t>(), now.seed, "--seed");
  if (then.contains("data") && !now.data.empty())
    check_same(path, "data set", then.at("data").get<std::string>(), now.data, "--data");
  if (!then.contains("samples") || now.samples < 0) return;
  const auto samples = then.at("samples").get<std::int64_t>();
  if (samples != now.samples)
    throw user_error(errc::bad_configuration,
                     fmt::format("{} was made with {} samples of training data, this run has {}: "
                                 "give it the same data, or start a fresh run",
                                 path, samples, now.samples));
}

// Whether the saved optimizer has groups or parameters that this one lacks. A hook that runs before
// a rank loads the checkpoint may add them.
bool awaits_parameters(const torch::optim::Optimizer& here, const json& saved) {
  const auto groups = saved.value("groups", json::array());
  const auto& own = here.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (g >= own.size() || groups[g].at("parameters").size() > own[g].params().size()) return true;
  return false;
}

void check_taken(const json& state, const module& made, optimizers& configured,
                 const snapshot& from, const std::string& path) {
  const auto saved = state.value("optimizers", json::array());
  auto& all = configured.all();
  if (saved.size() != all.size())
    throw user_error(errc::checkpoint,
                     fmt::format("{} holds {} optimizers, the module configures {}: go on with the "
                                 "module that was saved",
                                 path, saved.size(), all.size()));
  const auto from_hooks = state.value("from_hooks", json::object());
  add_parameters(configured, made, from_hooks.value("parameters", json::array()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (awaits_parameters(*all[i].optimizer, saved[i].at("groups"))) continue;
    optimizer_state kept;
    kept.groups = saved[i].at("groups").dump();
    const auto prefix = fmt::format("{}.", i);
    for (const auto& blob : from.optimizer)
      if (blob.name.starts_with(prefix)) kept.tensors.push_back(blob);
    load_state(*all[i].optimizer, made, static_cast<std::int32_t>(i), kept);
  }
}

}  // namespace

std::string record_text(const fit_record& what) {
  json all{{"seed", what.seed}};
  if (!what.data.empty()) all["data"] = what.data;
  if (what.samples >= 0) all["samples"] = what.samples;
  try {
    return all.dump();
  } catch (const json::exception&) {
    throw user_error(errc::checkpoint,
                     "cannot write a checkpoint: the text that name() of the data returns is not "
                     "UTF-8");
  }
}

void check_record(const snapshot& from, const fit_record& now, const std::string& path) {
  with_state(from, path, [&](const json& state) { check_recorded(state, now, path); });
}

std::int64_t cursor_of(const snapshot& from, const data_layout& layout,
                       const trainer_options& options, const std::string& path) {
  const auto& loop = from.loop;
  auto cursor = loop.cursor;
  if (cursor < 0) {
    const auto epoch = apply_limit(options.limit_train_batches, layout.batches());
    const auto before = loop.epoch * layout.samples(0, epoch - 1);
    cursor = layout.samples(0, loop.batch - 1);
    if (from.ranks != layout.ranks || loop.samples != before + cursor)
      throw user_error(
          errc::checkpoint,
          fmt::format("{} is of an earlier version, which did not record how much of epoch {} was "
                      "done, and its {} samples do not fit {} ranks with batch_size {}: give the "
                      "ranks, batch size, limit and data that it was made with",
                      path, loop.epoch, loop.samples, layout.ranks, layout.batch_size));
  }
  if (cursor > layout.size)
    throw user_error(errc::checkpoint,
                     fmt::format("{} has done {} samples of epoch {}, but an epoch of this run has "
                                 "only {}: give it the same data and sampler; if it has drop_last, "
                                 "which cuts the epoch, leave that out, or give the ranks and the "
                                 "batch size that the checkpoint was made with",
                                 path, cursor, loop.epoch, layout.size));
  return cursor;
}

optimizers check_optimizers(module& made, const snapshot& from, const std::string& path) {
  auto all = made.configure_optimizers();
  with_state(from, path, [&](const json& state) { check_taken(state, made, all, from, path); });
  return all;
}

}  // namespace troupe
