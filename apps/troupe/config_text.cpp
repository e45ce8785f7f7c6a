#include "apps/troupe/config_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

std::string table_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == std::string::npos ? std::string{} : key.substr(0, dot);
}
std::string name_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }

ordered_json value_json(const setting_value& value) {
  return std::visit(
      [](const auto& x) -> ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(x)>, std::monostate>) {
          return nullptr;
        } else {
          return x;
        }
      },
      value);
}

// Writes `keep`'s settings table by table; the schema's order has each table in one piece.
template <class Keep>
std::string tables(const settings& values, const Keep& keep, bool origins) {
  std::string text;
  std::string open;
  for (const auto& one : values.all()) {
    if (!keep(one)) continue;
    if (table_of(one.key) != open) {
      open = table_of(one.key);
      text += fmt::format("\n[{}]\n", open);
    }
    const auto& [value, from] = values.at(one.key);
    const bool set = values.is_set(one.key);
    auto line = set ? fmt::format("{} = {}", name_of(one.key), toml_text(value))
                    : fmt::format("# {} =", name_of(one.key));
    text += origins ? fmt::format("{:<40} # {}\n", line, from.text()) : line + "\n";
  }
  return text;
}

void bound(ordered_json& type, const setting& one) {
  const bool whole = one.kind == kind::integer || one.kind == kind::integers;
  const auto number = [&](double x) -> ordered_json {
    if (whole) return static_cast<std::int64_t>(x);
    return x;
  };
  if (std::isfinite(one.low))
    type[one.low_excluded ? "exclusiveMinimum" : "minimum"] = number(one.low);
  if (std::isfinite(one.high)) type["maximum"] = number(one.high);
}

// A choice that is true or false may be written as TOML's boolean.
ordered_json choice_type(const setting& one) {
  ordered_json type;
  auto words = ordered_json(one.choices);
  const bool has_true = std::ranges::find(one.choices, "true") != one.choices.end();
  if (has_true) {
    type["type"] = {"string", "boolean"};
    words.push_back(true);
    words.push_back(false);
  } else {
    type["type"] = "string";
  }
  type["enum"] = words;
  return type;
}

ordered_json type_of(const setting& one) {
  ordered_json type;
  switch (one.kind) {
    case kind::boolean: type["type"] = "boolean"; break;
    case kind::integer:
      type["type"] = "integer";
      bound(type, one);
      break;
    case kind::number:
      type["type"] = "number";
      bound(type, one);
      break;
    case kind::text:
      type["type"] = "string";
      type["minLength"] = 1;
      break;
    case kind::choice: type = choice_type(one); break;
    case kind::limit:
      type["anyOf"] = {{{"type", "integer"}, {"minimum", 0}},
                       {{"type", "number"}, {"minimum", 0}, {"maximum", 1}}};
      break;
    case kind::integers: {
      ordered_json item{{"type", "integer"}};
      bound(item, one);
      type["type"] = "array";
      type["items"] = item;
      break;
    }
    case kind::texts:
      type["type"] = "array";
      type["items"] = {{"type", "string"}};
      break;
    case kind::words:
      type["type"] = {"array", "string"};
      type["items"] = {{"type", "string"}, {"enum", one.choices}};
      break;
    case kind::devices:
      type["anyOf"] = {{{"const", "auto"}},
                       {{"type", "integer"}, {"minimum", 1}},
                       {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}}};
      break;
  }
  return type;
}

ordered_json property(const setting& one) {
  auto type = type_of(one);
  type["description"] = one.help;
  if (!std::holds_alternative<std::monostate>(one.fallback))
    type["default"] = value_json(one.fallback);
  type["x-values"] = describe(one.kind);
  if (!one.shape.empty()) type["x-shape"] = one.shape;
  if (!one.elsewhere.empty()) type["x-other-builds"] = one.elsewhere;
  if (!one.flag.empty()) {
    type["x-flag"] = one.flags().front();
    type["x-flags"] = one.flags();
  }
  if (!one.bare.empty() && one.kind != kind::boolean) type["x-bare"] = one.bare;
  type["x-variable"] = one.variable();
  if (!one.saved) type["x-saved"] = false;
  return type;
}

// Settings of several models or data sets may have one key: each is possible.
void add_property(ordered_json& among, const setting& one) {
  const auto name = name_of(one.key);
  if (!among.contains(name)) {
    among[name] = property(one);
    return;
  }
  auto& there = among[name];
  if (there.contains("x-variable")) {
    auto first = std::move(there);
    there = {{"anyOf", ordered_json::array()}};
    there["anyOf"].push_back(std::move(first));
  }
  there["anyOf"].push_back(property(one));
}

// A key of earlier versions, which a file may still have.
ordered_json former_property(const setting& one) {
  auto type = type_of(one);
  type["description"] = fmt::format("the former name of {}", one.key);
  type["deprecated"] = true;
  return type;
}

}  // namespace

std::string printed(const settings& values, bool origins) {
  return tables(
      values, [&](const setting& one) { return origins || values.is_set(one.key); }, origins);
}

std::string saved_configuration(const settings& values) {
  return tables(
      values, [&](const setting& one) { return one.saved && values.is_set(one.key); }, false);
}

std::string printed_json(const settings& values) {
  ordered_json all;
  for (const auto& one : values.all()) {
    const auto& [value, from] = values.at(one.key);
    all[one.key] = {{"value", value_json(value)}, {"from", from.text()}};
  }
  return ordered_json{{"schema", "troupe.config/1"}, {"settings", all}}.dump(
      -1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string json_schema(const schema& all) {
  ordered_json properties;
  for (const auto& one : all) {
    const auto table = table_of(one.key);
    if (!one.former.empty()) properties[one.former] = former_property(one);
    if (table.empty()) {
      properties[one.key] = property(one);
      continue;
    }
    auto* within = &properties;
    for (std::size_t begin = 0; begin <= table.size();) {
      const auto end = std::min(table.find('.', begin), table.size());
      auto& inner = (*within)[table.substr(begin, end - begin)];
      if (!inner.contains("type")) inner["type"] = "object";
      inner["additionalProperties"] = false;
      within = &inner["properties"];
      begin = end + 1;
    }
    add_property(*within, one);
    // `model = "cnn"` is `model.name`.
    if (name_of(one.key) == "name" && table.find('.') == std::string::npos) {
      auto& named = properties[table];
      named["type"] = {"object", "string"};
      named["anyOf"] = {{{"type", "object"}}, type_of(one)};
    }
  }
  ordered_json document{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                        {"title", "troupe configuration"},
                        {"schema", "troupe.config_schema/1"},
                        {"type", "object"},
                        {"additionalProperties", false},
                        {"properties", properties}};
  return document.dump(2);
}

}  // namespace troupe::program
