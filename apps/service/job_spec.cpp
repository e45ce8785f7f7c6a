#include "apps/service/job_spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace service {

using nlohmann::json;

namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw troupe::user_error(troupe::errc::bad_usage, why);
}

// One object of a request. Each field that may be there is taken once; the rest is an error.
class fields {
public:
  fields(const json& of, std::string where) : of_(of), where_(std::move(where)) {
    if (!of.is_object()) refuse(fmt::format("{} is no JSON object", where_));
  }

  std::string text(const char* name, std::string otherwise) {
    const auto* found = find(name);
    if (!found) return otherwise;
    if (!found->is_string()) wrong(name, *found, "a text");
    return found->get<std::string>();
  }
  std::string one_of(const char* name, const std::vector<std::string>& all) {
    auto chosen = text(name, all.front());
    if (std::find(all.begin(), all.end(), chosen) == all.end())
      wrong(name, chosen, fmt::format("one of {}", fmt::join(all, ", ")));
    return chosen;
  }
  std::int64_t integer(const char* name, std::int64_t otherwise, std::int64_t least,
                       std::int64_t most) {
    const auto* found = find(name);
    if (!found) return otherwise;
    const bool fits = found->is_number_integer() && *found >= least && *found <= most;
    if (!fits) wrong(name, *found, fmt::format("an integer from {} to {}", least, most));
    return found->get<std::int64_t>();
  }
  double number(const char* name, double otherwise, double least, double most) {
    const auto* found = find(name);
    if (!found) return otherwise;
    const bool fits = found->is_number() && *found >= least && *found <= most;
    if (!fits) wrong(name, *found, fmt::format("a number from {} to {}", least, most));
    return found->get<double>();
  }
  const json* find(const char* name) {
    known_.emplace_back(name);
    const auto found = of_.find(name);
    return found == of_.end() ? nullptr : &*found;
  }
  void end() const {
    for (const auto& [name, value] : of_.items())
      if (std::find(known_.begin(), known_.end(), name) == known_.end())
        refuse(fmt::format("{} has no field \"{}\"; there are {}", where_, name,
                           fmt::join(known_, ", ")));
  }
  [[noreturn]] void wrong(const char* name, const json& value, const std::string& right) const {
    auto shown = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
    refuse(fmt::format("{}.{} is {}: give {}", where_, name, shown, right));
  }

private:
  const json& of_;
  const std::string where_;
  std::vector<std::string> known_;
};

constexpr std::int64_t many = std::int64_t{1} << 40;
constexpr std::int64_t largest_batch = (std::int64_t{1} << 31) - 1;  // as of --batch-size
const json no_fields = json::object();

const json& part(const json& request, const char* name) {
  const auto found = request.find(name);
  return found == request.end() ? no_fields : *found;
}

std::vector<std::int64_t> widths_of(fields& model) {
  const auto* found = model.find("hidden");
  if (!found) return {64};
  std::vector<std::int64_t> all;
  for (const auto& one : found->is_array() && found->size() <= 16 ? *found : json{"none"}) {
    if (!one.is_number_integer() || one < 1 || one > 65536)
      model.wrong("hidden", *found, "a list of at most 16 widths from 1 to 65536");
    all.push_back(one.get<std::int64_t>());
  }
  return all;
}

void read_options(const json& from, troupe::trainer_options& o) {
  fields f{from, "options"};
  o.ranks = static_cast<std::int32_t>(f.integer("ranks", 2, 1, 256));
  o.max_epochs = f.integer("max_epochs", 3, 1, many);
  if (const auto most = f.integer("max_steps", -1, 0, many); most >= 0) o.max_steps = most;
  o.batch_size = f.integer("batch_size", 64, 1, largest_batch);
  o.seed = static_cast<std::uint64_t>(f.integer("seed", 0, 0, many));
  o.log_every_n_steps = f.integer("log_every_n_steps", 10, 1, many);
  o.placement = troupe::placement_named(f.one_of("placement", {"processes", "threads"}));
  o.elastic.max_restarts = static_cast<std::int32_t>(f.integer("max_restarts", 3, 0, 1'000'000));
  using loss = troupe::elastic_options::loss;
  o.elastic.on_loss =
      f.one_of("on_loss", {"replace", "shrink"}) == "shrink" ? loss::shrink : loss::replace;
  o.elastic.spares = static_cast<std::int32_t>(f.integer("spares", 0, 0, 64));
  if (const auto n = f.integer("checkpoint_every_n_steps", 0, 1, many); n > 0)
    o.checkpoint.every_n_steps = n;
  o.checkpoint.keep_last = static_cast<std::int32_t>(f.integer("keep_last", 1, 1, 1000));
  f.end();
  if (o.elastic.max_restarts == 0 && o.elastic.spares > 0)
    refuse(
        "options.spares take the place of lost processes, but options.max_restarts is 0: leave "
        "spares out, or allow restarts");
  if (o.placement == troupe::placement_kind::threads && o.elastic.spares > 0)
    refuse(
        "options.spares are processes, but options.placement is \"threads\": leave one of the "
        "two out");
}

}  // namespace

learning learning_of(const json& request) {
  learning all;
  fields model{part(request, "model"), "model"};
  all.hidden = widths_of(model);
  all.learning_rate = model.number("learning_rate", 0.05, 0, 1000);
  all.momentum = model.number("momentum", 0.9, 0, 1);
  model.end();
  fields data{part(request, "data"), "data"};
  all.data = data.one_of("name", {"synthetic", "fashion_mnist", "csv"});
  all.path = data.text("path", "");
  all.samples = data.integer("samples", 2048, 1, 200'000);
  all.features = data.integer("features", 0, 0, 1'000'000);
  all.classes = data.integer("classes", 10, 2, 1'000'000);
  data.end();
  const auto only_for = [&](const char* name, std::initializer_list<std::string_view> sets) {
    if (data.find(name) && std::find(sets.begin(), sets.end(), all.data) == sets.end())
      refuse(
          fmt::format("data.{} is of {}, but data.name is \"{}\": leave {} out, or give the "
                      "name of its data set",
                      name, fmt::join(sets, " and "), all.data, name));
  };
  only_for("samples", {"synthetic"});
  only_for("path", {"csv"});
  only_for("features", {"csv"});
  only_for("classes", {"synthetic", "csv"});
  if (all.data == "csv" && (all.path.empty() || all.features == 0))
    refuse("data.name is \"csv\": give data.path and data.features as well");
  return all;
}

troupe::job job_of(const json& request) {
  fields top{request, "the request"};
  if (const auto name = top.text("name", "x"); !is_job_name(name))
    top.wrong("name", name, "at most 40 of a-z, 0-9, _ and -, the first a letter or a digit");
  for (const auto* name : {"model", "data", "options"}) top.find(name);
  top.end();
  troupe::job job;
  learning_of(request);
  read_options(part(request, "options"), job.options);
  job.recipe_text = request.dump();
  return job;
}

bool is_job_name(const std::string& name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 40 && plain(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return plain(c) || c == '_' || c == '-'; });
}

}  // namespace service
