#include "backends/checkpoint/manifest.hpp"

#include "backends/checkpoint/bounded_json.hpp"
#include "backends/checkpoint/digest.hpp"
#include "troupe/detail/position.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace troupe {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view trailer_begin = ",\n \"hash\": \"";
constexpr std::string_view trailer_end = "\"\n}\n";
constexpr std::size_t hash_digits = 32;
constexpr int kept_stop_max = 2;  // stop_reason::early_stopping

std::string hash_of(std::string_view text) {
  content_hash hash;
  hash.add(std::as_bytes(std::span{text}));
  return hash.hex();
}

// --- writing -------------------------------------------------------------------------------------

ordered_json exact(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;  // printed with enough digits to read back the same double
}

ordered_json render(const loop_state& loop) {
  ordered_json last = ordered_json::object();
  for (const auto& [name, number] : loop.last) last[name] = exact(number);
  ordered_json stopping = ordered_json::array();
  for (const auto& one : loop.early_stopping)
    stopping.push_back({{"monitor", one.monitor},
                        {"maximize", one.maximize},
                        {"best", exact(one.best)},
                        {"has_best", one.has_best},
                        {"waited", one.waited}});
  ordered_json all = {{"epoch", loop.epoch},         {"batch", loop.batch},
                      {"cursor", loop.cursor},       {"steps", loop.steps},
                      {"samples", loop.samples},     {"earlier_batches", loop.earlier_batches},
                      {"validated", loop.validated}, {"pending_stop", loop.pending_stop},
                      {"last", std::move(last)},     {"early_stopping", std::move(stopping)}};
  if (!loop.of_validation.empty()) all["of_validation"] = loop.of_validation;
  if (loop.ended_by != 0) all["ended_by"] = loop.ended_by;
  if (const auto& at = loop.monitored; !at.monitor.empty())
    all["monitored"] = {{"monitor", at.monitor}, {"step", at.step}, {"epoch", at.epoch}};
  return all;
}

ordered_json render_body(const manifest& what) {
  ordered_json body = {{"schema", manifest_schema},      {"step", what.loop.steps},
                       {"epoch", what.loop.epoch},       {"batch", what.loop.batch},
                       {"samples", what.loop.samples},   {"ranks", what.ranks},
                       {"generation", what.generation},  {"weights_digest", what.weights_digest},
                       {"loop_state", render(what.loop)}};
  auto& files = body["files"] = ordered_json::array();
  for (const auto& file : what.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
  auto& tensors = body["tensors"] = ordered_json::array();
  for (const auto& tensor : what.tensors)
    tensors.push_back({{"file", tensor.file},
                       {"name", tensor.name},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape}});
  body["versions"] = what.versions;
  body["state"] = what.state;
  return body;
}

// --- reading -------------------------------------------------------------------------------------

const json& member(const json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (found == object.end()) refuse(fmt::format("has no member \"{}\"", name));
  return *found;
}

template <class Number>
Number number(const json& object, const char* name) {
  const auto& held = member(object, name);
  if (!held.is_number_unsigned() ||
      !std::in_range<Number>(held.get_ref<const json::number_unsigned_t&>()))
    refuse(fmt::format("\"{}\" is not a whole number from 0 to {}", name,
                       std::numeric_limits<Number>::max()));
  return static_cast<Number>(held.get<json::number_unsigned_t>());
}

std::string text(const json& object, const char* name) {
  const auto& held = member(object, name);
  if (!held.is_string()) refuse(fmt::format("\"{}\" is not a text", name));
  return held.get<std::string>();
}

bool truth(const json& object, const char* name) {
  const auto& held = member(object, name);
  if (!held.is_boolean()) refuse(fmt::format("\"{}\" is neither true nor false", name));
  return held.get<bool>();
}

const json& items(const json& object, const char* name, json::value_t kind) {
  const auto& held = member(object, name);
  if (held.type() != kind)
    refuse(fmt::format("\"{}\" is not {}", name,
                       kind == json::value_t::array ? "an array" : "an object"));
  return held;
}

double real(const json& held, const char* name) {
  if (held.is_number()) return held.get<double>();
  if (held == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (held == "inf") return std::numeric_limits<double>::infinity();
  if (held == "-inf") return -std::numeric_limits<double>::infinity();
  refuse(fmt::format("\"{}\" holds something that is not a number", name));
}

// Earlier versions wrote no cursor. It is 0 for an epoch that has not begun, and the number of
// samples in a run's first epoch. In later epochs it is unknown here.
std::int64_t read_cursor(const json& held, const loop_state& loop) {
  if (held.contains("cursor")) return number<std::int64_t>(held, "cursor");
  return loop.batch == 0 ? 0 : loop.epoch == 0 ? loop.samples : undefined;
}

// -1 or a number of steps or epochs.
std::int64_t place(const json& object, const char* name) {
  return member(object, name) == -1 ? undefined : number<std::int64_t>(object, name);
}

// The stop_reason of a stop that a checkpoint keeps; 0, where it says nothing.
std::uint8_t stop_of(const json& held, const char* member) {
  if (!held.contains(member)) return 0;
  const auto stop = number<std::uint8_t>(held, member);
  if (stop > kept_stop_max)
    refuse(fmt::format("\"{}\" is not a number from 0 to {}", member, kept_stop_max));
  return stop;
}

// Earlier versions wrote none of these members. Their runs counted no micro-batches across epochs,
// no stop waited, and what validations logged is not known.
void read_later_members(const json& held, loop_state& loop) {
  if (held.contains("monitored")) {
    const auto& at = items(held, "monitored", json::value_t::object);
    loop.monitored = {text(at, "monitor"), place(at, "step"), place(at, "epoch")};
  }
  if (held.contains("of_validation"))
    for (const auto& name : items(held, "of_validation", json::value_t::array)) {
      if (!name.is_string()) refuse("\"of_validation\" holds something that is not a text");
      loop.of_validation.insert(name.get<std::string>());
    }
  if (held.contains("earlier_batches"))
    loop.earlier_batches = number<std::int64_t>(held, "earlier_batches");
  loop.pending_stop = stop_of(held, "pending_stop");
  loop.ended_by = stop_of(held, "ended_by");
}

loop_state read_loop(const json& held) {
  loop_state loop;
  loop.epoch = number<std::int64_t>(held, "epoch");
  loop.batch = number<std::int64_t>(held, "batch");
  loop.steps = number<std::int64_t>(held, "steps");
  loop.samples = number<std::int64_t>(held, "samples");
  loop.cursor = read_cursor(held, loop);
  loop.validated = truth(held, "validated");
  read_later_members(held, loop);
  for (const auto& [name, value] : items(held, "last", json::value_t::object).items())
    loop.last[name] = real(value, "last");
  for (const auto& one : items(held, "early_stopping", json::value_t::array)) {
    auto& state = loop.early_stopping.emplace_back();
    state.best = real(member(one, "best"), "best");
    state.has_best = truth(one, "has_best");
    state.waited = number<std::int32_t>(one, "waited");
    if (!one.contains("monitor")) continue;  // of an earlier version
    state.monitor = text(one, "monitor");
    state.maximize = truth(one, "maximize");
  }
  return loop;
}

manifest_file read_file(const json& held) {
  manifest_file file{text(held, "name"), number<std::uint64_t>(held, "bytes"), text(held, "hash")};
  if (!is_plain_name(file.name) || file.name == manifest_name)
    refuse(fmt::format("names the file \"{:.120}\", which cannot be one of its own", file.name));
  return file;
}

manifest_tensor read_tensor(const json& held) {
  manifest_tensor tensor{text(held, "file"), text(held, "name"), text(held, "dtype"), {}};
  for (const auto& extent : items(held, "shape", json::value_t::array)) {
    if (!extent.is_number_unsigned() ||
        !std::in_range<std::int64_t>(extent.get_ref<const json::number_unsigned_t&>()))
      refuse("\"shape\" holds something that is not a dimension");
    tensor.shape.push_back(extent.get<std::int64_t>());
  }
  return tensor;
}

// The text without its last member, whose hash of the rest has been checked.
void check_trailer(std::string_view whole) {
  constexpr auto trailer = trailer_begin.size() + hash_digits + trailer_end.size();
  if (whole.size() < trailer) refuse("is too short for a manifest: truncated or half-written");
  const auto body = whole.substr(0, whole.size() - trailer);
  auto rest = whole.substr(body.size());
  if (!rest.starts_with(trailer_begin) || !rest.ends_with(trailer_end))
    refuse("does not end with its hash: truncated, half-written or changed");
  rest = rest.substr(trailer_begin.size(), hash_digits);
  if (const auto hash = hash_of(body); hash != rest)
    refuse(fmt::format("its hash differs ({:.32} written, {} found): it was changed or damaged",
                       rest, hash));
}

manifest read_manifest(std::string_view whole) {
  if (whole.size() > manifest_limit)
    refuse(fmt::format("has {} bytes, more than the {} allowed", whole.size(), manifest_limit));
  check_trailer(whole);
  const auto body = parse_bounded_json(whole);
  if (const auto schema = text(body, "schema"); schema != manifest_schema)
    refuse(
        fmt::format("has schema \"{:.40}\", this version reads \"{}\"", schema, manifest_schema));
  manifest result;
  result.loop = read_loop(items(body, "loop_state", json::value_t::object));
  const auto& loop = result.loop;
  if (std::tuple{number<std::int64_t>(body, "step"), number<std::int64_t>(body, "epoch"),
                 number<std::int64_t>(body, "batch"), number<std::int64_t>(body, "samples")} !=
      std::tuple{loop.steps, loop.epoch, loop.batch, loop.samples})
    refuse("contradicts itself: step, epoch, batch and samples differ from loop_state");
  result.ranks = number<std::int32_t>(body, "ranks");
  result.generation = number<std::uint64_t>(body, "generation");
  result.weights_digest = text(body, "weights_digest");
  for (const auto& file : items(body, "files", json::value_t::array))
    result.files.push_back(read_file(file));
  for (const auto& tensor : items(body, "tensors", json::value_t::array))
    result.tensors.push_back(read_tensor(tensor));
  for (const auto& [name, version] : items(body, "versions", json::value_t::object).items()) {
    if (!version.is_string()) refuse("\"versions\" holds something that is not a text");
    result.versions[name] = version.get<std::string>();
  }
  result.state = text(body, "state");
  return result;
}

}  // namespace

std::string render_manifest(const manifest& what) {
  std::string whole;
  try {
    whole = render_body(what).dump(1);
  } catch (const json::exception&) {
    throw user_error(errc::checkpoint,
                     "cannot write a checkpoint: a metric's name, a tensor's name or the state "
                     "added in on_save_checkpoint is not UTF-8");
  }
  whole.resize(whole.size() - std::string_view{"\n}"}.size());
  const auto hash = hash_of(whole);
  whole.append(trailer_begin).append(hash).append(trailer_end);
  if (whole.size() > manifest_limit)
    throw user_error(errc::checkpoint,
                     fmt::format("cannot write a checkpoint: its manifest has {} bytes, {} are "
                                 "allowed; keep what on_save_checkpoint adds small",
                                 whole.size(), manifest_limit));
  return whole;
}

manifest parse_manifest(std::span<const std::byte> text, const std::string& origin) {
  try {
    return read_manifest({reinterpret_cast<const char*>(text.data()), text.size()});
  } catch (const std::runtime_error& e) {
    throw user_error(errc::checkpoint, fmt::format("{}: {}", origin, e.what()));
  }
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         name.find_first_of(std::string_view{"/\\\0", 3}) == std::string_view::npos;
}

}  // namespace troupe
