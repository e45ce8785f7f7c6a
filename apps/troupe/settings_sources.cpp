#include "apps/troupe/settings_sources.hpp"

#include "apps/command_line/suggestion.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

namespace troupe::program {

namespace {

// Empty when TOML's value is none that a setting can have (a date, a table, a mixed list).
template <class T>
std::optional<std::vector<T>> list_of(const toml::array& array) {
  std::vector<T> items;
  for (const auto& node : array) {
    const auto item = node.template value_exact<T>();
    if (!item) return std::nullopt;
    items.push_back(*item);
  }
  return items;
}

std::optional<setting_value> as_setting(const toml::node& node) {
  if (const auto x = node.value_exact<bool>()) return *x;
  if (const auto x = node.value_exact<std::int64_t>()) return *x;
  if (const auto x = node.value_exact<double>()) return *x;
  if (const auto x = node.value_exact<std::string>()) return *x;
  if (const auto* array = node.as_array()) {
    if (auto items = list_of<std::int64_t>(*array)) return *std::move(items);
    if (auto items = list_of<std::string>(*array)) return *std::move(items);
  }
  return std::nullopt;
}

class reader {
public:
  explicit reader(resolution& into)
      : into_(into.settings), complaints_(into.complaints), notes_(into.notes) {}

  void keep(std::optional<complaint> one) {
    if (one) complaints_.push_back(*std::move(one));
  }

  void table(const toml::table& nodes, const std::string& prefix, const std::string& file) {
    for (const auto& [name, node] : nodes) {
      const auto key = prefix + std::string{name.str()};
      const origin from{source::file, fmt::format("{}:{}", file, name.source().begin.line)};
      const auto* inner = node.as_table();
      if (inner && !find_setting_exact(key)) {
        table(*inner, key + ".", file);
      } else if (const auto* other = into_.left_out(key)) {
        note_left_out(*other, node, from);
      } else {
        value(key, node, from);
      }
    }
  }

  void value(const std::string& key, const toml::node& node, const origin& from) {
    if (auto x = as_setting(node)) {
      keep(into_.set(key, *x, from));
      return;
    }
    const auto* what = find_setting(into_.all(), key);
    if (!what) {
      keep(into_.set(key, {}, from));
      return;
    }
    keep(complaint{fmt::format("{} ({}): {} is needed", key, from.text(), describe(what->kind)),
                   true, from.from});
  }

private:
  bool find_setting_exact(const std::string& key) const {
    return std::any_of(into_.all().begin(), into_.all().end(),
                       [&](const setting& s) { return s.key == key; });
  }

  // A file may serve several models: a run's own one does, where a call chooses other data. It may
  // have the defaults, too, which need no note.
  void note_left_out(const setting& other, const toml::node& node, const origin& from) {
    if (as_setting(node) != other.fallback)
      notes_.push_back(
          fmt::format("{} ({}) has no effect: {}", other.key, from.text(), into_.lack_of(other)));
  }

  settings& into_;
  std::vector<complaint>& complaints_;
  std::vector<std::string>& notes_;
};

toml::table parsed(const std::string& file) {
  // A folder opens as a file does and reads as an empty one; a pipe can be read only once.
  std::error_code ignored;
  const auto kind = std::filesystem::status(file, ignored);
  const auto refuse = [&](const std::string& why) {
    throw user_error(errc::bad_configuration,
                     fmt::format("cannot read the configuration {}: {}", file, why));
  };
  if (std::filesystem::is_directory(kind))
    refuse("it is a folder; name a TOML file, as " +
           (std::filesystem::path{file} / "config.toml").string());
  if (std::filesystem::exists(kind) && !std::filesystem::is_regular_file(kind))
    refuse("it is no regular file; name a TOML file");
  try {
    return toml::parse_file(file);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    if (line == 0)
      refuse(fmt::format("{}; check its name, or print one with the command `config print`",
                         error.description()));
    throw user_error(errc::bad_configuration,
                     fmt::format("{}:{}: not TOML: {}", file, line, error.description()));
  }
}

const setting* of_variable(const schema& all, const std::string& name) {
  const auto found = std::ranges::find_if(all, [&](const setting& one) {
    return one.variable() == name || one.former_variable() == name;
  });
  return found == all.end() ? nullptr : &*found;
}

// Variables last for many calls, so one that this call has no use for is no error. `others`: the
// settings of models and data sets that are not chosen.
void read_variables(reader& into, settings& values, const schema& others, const given& what,
                    std::vector<std::string>& notes) {
  std::vector<std::string> known;
  for (const auto& one : values.all()) known.push_back(one.variable());
  for (const auto& [name, text] : what.variables) {
    if (const auto* one = of_variable(values.all(), name)) {
      into.keep(values.set_text(one->key, text, {source::variable, name}));
    } else if (const auto* other = of_variable(others, name)) {
      notes.push_back(
          fmt::format("the variable {} has no effect: {}", name, values.lack_of(*other)));
    } else if (!belongs_to_setup(name)) {
      notes.push_back(fmt::format("the variable {} names no setting{}", name, hint(name, known)));
    }
  }
}

// A value that is written without quotes, as 2024, 1e3, true or 2026-11-21.
bool is_word(const toml::node& node) { return node.is_value() && !node.is_string(); }

void read_assignment(reader& into, settings& values, const std::string& text) {
  const origin from{source::assignment, "--set"};
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    into.keep(
        complaint{fmt::format("--set {}: KEY=VALUE is needed, as --set model.dropout=0.2", text),
                  true, source::flag});
    return;
  }
  const auto key = text.substr(0, equals);
  const auto value = text.substr(equals + 1);
  try {
    const auto table = toml::parse("value = " + value);
    const auto* what = find_setting(values.all(), key);
    const bool wants_text = what && what->kind == kind::text;
    const auto& node = *table.get("value");
    // More than one value: the text held a line of its own, which is no value. The number of a
    // setting that is a text is meant as its digits.
    if (table.size() == 1 && !(wants_text && is_word(node))) {
      into.value(key, node, from);
      return;
    }
  } catch (const toml::parse_error&) {
    // No TOML: a bare word.
  }
  into.keep(values.set(key, value, from));
}

void read_flag(reader& into, settings& values, const given::flag_value& one) {
  const origin from{source::flag, one.flag};
  const auto* what = find_setting(values.all(), one.key);
  if (what && what->kind == kind::texts) {
    into.keep(values.set(one.key, one.texts, from));
    return;
  }
  for (const auto& text : one.texts) into.keep(values.set_text(one.key, text, from));
}

}  // namespace

// Declared in settings.hpp. It is here because no other source includes toml++.
std::string toml_text(const setting_value& value) {
  struct writer {
    std::string operator()(std::monostate) const { return {}; }
    std::string operator()(bool x) const { return x ? "true" : "false"; }
    std::string operator()(std::int64_t x) const { return fmt::format("{}", x); }
    // A float of TOML has a fraction or an exponent, and a digit after the point: not 1.e+30. Or it
    // is nan or inf.
    std::string operator()(double x) const {
      auto text = fmt::format("{}", x);
      if (text.find_first_of(".en") == std::string::npos) text += ".0";
      return text;
    }
    std::string operator()(const std::string& x) const {
      std::ostringstream out;
      out << toml::toml_formatter{toml::value<std::string>{x}, {}};
      return out.str();
    }
    std::string operator()(const std::vector<std::int64_t>& x) const {
      return fmt::format("[{}]", fmt::join(x, ", "));
    }
    std::string operator()(const std::vector<std::string>& x) const {
      std::vector<std::string> quoted;
      for (const auto& word : x) quoted.push_back((*this)(word));
      return fmt::format("[{}]", fmt::join(quoted, ", "));
    }
  };
  return std::visit(writer{}, value);
}

namespace {

void add_texts(const toml::table& nodes, const std::string& prefix,
               std::vector<std::pair<std::string, std::string>>& into) {
  for (const auto& [name, node] : nodes) {
    if (node.is_table()) continue;
    const auto value = as_setting(node);
    into.emplace_back(prefix + std::string{name.str()}, value ? toml_text(*value) : "?");
  }
  for (const auto& [name, node] : nodes)
    if (const auto* inner = node.as_table())
      add_texts(*inner, prefix + std::string{name.str()} + ".", into);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> settings_texts(const std::string& file) {
  std::vector<std::pair<std::string, std::string>> all;
  add_texts(parsed(file), {}, all);
  return all;
}

bool belongs_to_setup(const std::string& variable) { return variable == "TROUPE_TORCH"; }

namespace {

// `table`: what may be set; `others`: what the choices leave out.
resolution joined(schema table, const schema& others, const given& what,
                  std::map<std::string, std::string, std::less<>> choices) {
  resolution result{settings{std::move(table), others, std::move(choices)}, {}, {}};
  reader into{result};
  for (const auto& file : what.files) into.table(parsed(file), "", file);
  read_variables(into, result.settings, others, what, result.notes);
  for (const auto& text : what.assignments) read_assignment(into, result.settings, text);
  for (const auto& one : what.flags) read_flag(into, result.settings, one);
  return result;
}

}  // namespace

resolution join(const schema& all, const given& what) {
  constexpr std::array choosers{"model.name", "data.name"};
  schema names;
  for (const auto* key : choosers)
    if (const auto* one = find_setting(all, key)) names.push_back(*one);
  if (names.size() < choosers.size()) return joined(all, {}, what, {});
  // What there is to set depends on the model and the data, wherever they are chosen.
  const auto chosen = joined(std::move(names), {}, what, {}).settings;
  schema table, others;
  for (const auto& one : all)
    (is_with(one, chosen.text(choosers[0]), chosen.text(choosers[1])) ? table : others)
        .push_back(one);
  return joined(std::move(table), others, what,
                {{choosers[0], chosen.text(choosers[0])}, {choosers[1], chosen.text(choosers[1])}});
}

settings settled(resolution result) {
  if (result.complaints.empty()) return std::move(result.settings);
  std::string text;
  bool usage = true;
  for (const auto& one : result.complaints) {
    text += (text.empty() ? "" : "\n") + one.text;
    usage = usage && one.malformed && one.from == source::flag;
  }
  throw user_error(usage ? errc::bad_usage : errc::bad_configuration, text);
}

}  // namespace troupe::program
