#include "troupe/hyper_parameters.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/torch/learner_json.hpp"
#include "backends/torch/module_state.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

[[noreturn]] void refuse_field(const std::string& name, const value& from, std::string_view need) {
  throw user_error(errc::checkpoint,
                   fmt::format("the hyper-parameter \"{}\" of the checkpoint is {}, but {} is "
                               "needed: change the field's type, or take another checkpoint",
                               name, to_string(from), need));
}

}  // namespace

namespace detail {

bool bool_of(const std::string& name, const value& from) {
  if (const auto* x = from.get_if<bool>()) return *x;
  refuse_field(name, from, "true or false");
}

std::int64_t integer_of(const std::string& name, const value& from, std::int64_t least,
                        std::int64_t most) {
  if (const auto* x = from.get_if<std::int64_t>(); x && *x >= least && *x <= most) return *x;
  refuse_field(name, from, fmt::format("an integer from {} to {}", least, most));
}

double number_of(const std::string& name, const value& from) {
  if (const auto* x = from.get_if<double>()) return *x;
  if (const auto* x = from.get_if<std::int64_t>()) return static_cast<double>(*x);
  // JSON has no such numbers, so they are texts there.
  if (const auto* x = from.get_if<std::string>(); x && (*x == "nan" || *x == "inf" || *x == "-inf"))
    return learner_json::number_from(*x);
  refuse_field(name, from, "a number");
}

std::string text_of(const std::string& name, const value& from) {
  if (const auto* x = from.get_if<std::string>()) return *x;
  refuse_field(name, from, "a text");
}

const std::vector<value>& list_of(const std::string& name, const value& from) {
  if (const auto* x = from.get_if<value_list>()) return x->items;
  refuse_field(name, from, "a list");
}

}  // namespace detail

saved_module read_module(const std::string& path, const checkpoint_io* format) {
  const auto own = format ? nullptr : safetensors_checkpoints({});
  const auto& io = format ? *format : *own;
  saved_module from;
  const bool is_run = std::filesystem::exists(std::filesystem::path{path} / checkpoints_folder);
  from.path = is_run ? io.latest(path).path : path;
  from.state = io.read(from.path);
  from.hyper_parameters = learner_json::hyper_parameters_of_state(from.state.state);
  return from;
}

void load_into(module& made, const saved_module& from) {
  made.configure_model();
  load_state(made, from.state.model);
  const auto state = learner_json::parse_state(from.state.state);
  made.on_load_checkpoint(state.value("module", std::string{}));
  made.eval();
}

}  // namespace troupe
