#include "apps/troupe/settings.hpp"

#include "apps/command_line/suggestion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace troupe::program {

namespace {

using ints = std::vector<std::int64_t>;
using words = std::vector<std::string>;

template <class T>
bool is(const setting_value& value) {
  return std::holds_alternative<T>(value);
}

template <class T>
std::optional<T> read_number(const std::string& text) {
  T result{};
  const auto* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, result);
  if (error != std::errc{} || stopped != end) return std::nullopt;
  return result;
}

setting_value number_or_text(const std::string& text) {
  if (const auto whole = read_number<std::int64_t>(text)) return *whole;
  if (const auto number = read_number<double>(text)) return *number;
  return text;
}

// `[a, b]` or `a,b` as its parts; blanks around them do not count.
words split_list(std::string text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']')
    text = text.substr(1, text.size() - 2);
  words parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    auto end = text.find(',', begin);
    if (end == std::string::npos) end = text.size();
    auto part = text.substr(begin, end - begin);
    const auto first = part.find_first_not_of(" \t\"");
    const auto last = part.find_last_not_of(" \t\"");
    if (first != std::string::npos) parts.push_back(part.substr(first, last - first + 1));
    begin = end + 1;
  }
  return parts;
}

setting_value integers_or_text(const std::string& text) {
  ints numbers;
  for (const auto& part : split_list(text)) {
    const auto number = read_number<std::int64_t>(part);
    if (!number) return text;
    numbers.push_back(*number);
  }
  return numbers;
}

// `["a", "b"]`; any other text is the only one.
words texts_in(const std::string& text) {
  const auto list = nlohmann::json::parse(text, nullptr, false);
  const auto is_text = [](const nlohmann::json& one) { return one.is_string(); };
  return list.is_array() && std::ranges::all_of(list, is_text) ? list.get<words>() : words{text};
}

std::string range_problem(const setting& what, double number) {
  const bool below = what.low_excluded ? number <= what.low : number < what.low;
  if (!std::isfinite(number)) return "must be finite";
  if (below && what.low_excluded) return fmt::format("must be more than {}", what.low);
  if (below)
    return fmt::format("must be at least {0}; the nearest possible value is {0}", what.low);
  if (number > what.high)
    return fmt::format("must be at most {0}; the nearest possible value is {0}", what.high);
  return {};
}

// config.toml, events and results hold texts, and all of them are UTF-8.
constexpr const char* not_utf8 =
    "it is no text in UTF-8, and files of a run hold it: rename what it names, or give it in UTF-8";

bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
  return true;
}

// For an error: bytes that are not UTF-8 become the character for such bytes.
std::string printable(const std::string& given) {
  if (is_utf8(given)) return given;
  return nlohmann::json(given).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

checked wrong_type(const setting& what) {
  return {{}, fmt::format("{} is needed", describe(what.kind)), true};
}
checked possible(setting_value value) { return {std::move(value), {}, false}; }
checked impossible(std::string problem) { return {{}, std::move(problem), false}; }
checked in_range(const setting& what, setting_value value, double number) {
  auto problem = range_problem(what, number);
  return problem.empty() ? possible(std::move(value)) : impossible(std::move(problem));
}

checked check_choice(const setting& what, setting_value value) {
  // `deterministic = true`: a word, or true and false.
  const bool has_true = std::ranges::find(what.choices, "true") != what.choices.end();
  if (has_true && is<bool>(value)) value = std::string{std::get<bool>(value) ? "true" : "false"};
  if (!is<std::string>(value)) return wrong_type(what);
  const auto& word = std::get<std::string>(value);
  for (const auto* words_of : {&what.choices, &what.refused})
    for (const auto& choice : *words_of)
      if (choice == word) return possible(std::move(value));
  return impossible(fmt::format("no such value{} (one of {})", hint(word, what.choices),
                                fmt::join(what.choices, ", ")));
}

checked check_number(const setting& what, setting_value value) {
  if (is<std::int64_t>(value)) value = static_cast<double>(std::get<std::int64_t>(value));
  if (!is<double>(value)) return wrong_type(what);
  return in_range(what, value, std::get<double>(value));
}

checked check_limit(const setting& what, setting_value value) {
  if (is<std::int64_t>(value))
    return in_range(what, value, static_cast<double>(std::get<std::int64_t>(value)));
  if (!is<double>(value)) return wrong_type(what);
  const auto share = std::get<double>(value);
  if (share >= 0 && share <= 1) return possible(std::move(value));
  return impossible(
      fmt::format("a share lies between 0.0 and 1.0; a count of batches has no point: {}",
                  std::isfinite(share) ? std::llround(share) : 1));
}

checked check_integers(const setting& what, setting_value value) {
  // An empty list has no type of its own in a file.
  if (is<words>(value) && std::get<words>(value).empty()) value = ints{};
  if (!is<ints>(value)) return wrong_type(what);
  for (const auto number : std::get<ints>(value)) {
    const auto problem = range_problem(what, static_cast<double>(number));
    if (!problem.empty()) return impossible(fmt::format("{}: {}", number, problem));
  }
  return possible(std::move(value));
}

checked check_words(const setting& what, setting_value value) {
  if (is<ints>(value) && std::get<ints>(value).empty()) value = words{};
  if (is<std::string>(value)) value = split_list(std::get<std::string>(value));
  if (!is<words>(value)) return wrong_type(what);
  const auto& all = std::get<words>(value);
  for (const auto& word : all) {
    if (std::find(what.choices.begin(), what.choices.end(), word) == what.choices.end())
      return impossible(fmt::format("no such value \"{}\"{} (any of {})", word,
                                    hint(word, what.choices), fmt::join(what.choices, ", ")));
    if (std::ranges::count(all, word) > 1)
      return impossible(fmt::format("\"{}\" stands there twice: name each once", word));
  }
  return possible(std::move(value));
}

checked check_devices(const setting& what, setting_value value) {
  if (is<std::string>(value)) {
    if (std::get<std::string>(value) == "auto") return possible(std::move(value));
    return wrong_type(what);
  }
  if (is<std::int64_t>(value)) {
    const auto count = std::get<std::int64_t>(value);
    if (count < 1) return impossible("must be at least 1; the nearest possible value is 1");
    return in_range(what, value, static_cast<double>(count));
  }
  return check_integers(what, std::move(value));
}

}  // namespace

std::string origin::text() const {
  switch (from) {
    case source::fallback: return "default";
    case source::file: return "file " + name;
    case source::variable: return "variable " + name;
    case source::assignment: return "--set";
    case source::flag: return "flag " + name;
  }
  return name;
}

checked check(const setting& what, setting_value value) {
  switch (what.kind) {
    case kind::boolean: return is<bool>(value) ? possible(std::move(value)) : wrong_type(what);
    case kind::integer:
      if (!is<std::int64_t>(value)) return wrong_type(what);
      return in_range(what, value, static_cast<double>(std::get<std::int64_t>(value)));
    case kind::number: return check_number(what, std::move(value));
    case kind::text:
      if (!is<std::string>(value)) return {{}, "a text is needed: write it between quotes", true};
      if (std::get<std::string>(value).empty()) return impossible("must not be empty");
      if (!is_utf8(std::get<std::string>(value))) return impossible(not_utf8);
      return possible(std::move(value));
    case kind::choice: return check_choice(what, std::move(value));
    case kind::limit: return check_limit(what, std::move(value));
    case kind::integers: return check_integers(what, std::move(value));
    case kind::texts:
      if (is<ints>(value) && std::get<ints>(value).empty()) value = words{};
      if (!is<words>(value)) return wrong_type(what);
      if (!std::ranges::all_of(std::get<words>(value), &is_utf8)) return impossible(not_utf8);
      return possible(std::move(value));
    case kind::words: return check_words(what, std::move(value));
    case kind::devices: return check_devices(what, std::move(value));
  }
  return wrong_type(what);
}

checked read_text(const setting& what, const std::string& text) {
  switch (what.kind) {
    case kind::boolean:
      if (text == "true" || text == "1") return possible(true);
      if (text == "false" || text == "0") return possible(false);
      return wrong_type(what);
    case kind::integer:
    case kind::number:
    case kind::limit: return check(what, number_or_text(text));
    case kind::text:
    case kind::choice:
    case kind::words: return check(what, text);
    case kind::integers: return check(what, integers_or_text(text));
    case kind::texts: return check(what, texts_in(text));
    case kind::devices: {
      auto value = text.find_first_of(",[") == std::string::npos ? number_or_text(text)
                                                                 : integers_or_text(text);
      return check(what, std::move(value));
    }
  }
  return wrong_type(what);
}

settings::settings(schema all, schema others,
                   std::map<std::string, std::string, std::less<>> choices)
    : schema_(std::move(all)), others_(std::move(others)), choices_(std::move(choices)) {
  for (const auto& one : schema_) values_.emplace(one.key, resolved{one.fallback, {}});
}

const resolved& settings::at(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) throw std::out_of_range("no setting " + std::string{key});
  return found->second;
}

bool settings::is_set(std::string_view key) const {
  return !std::holds_alternative<std::monostate>(at(key).value);
}

bool settings::is_given(std::string_view key) const {
  return at(key).origin.from != source::fallback;
}

namespace {

complaint refused(const setting& what, const std::string& given, const origin& from,
                  const checked& why) {
  return {fmt::format("{} = {} ({}): {}", what.key, printable(given), from.text(),
                      printable(why.problem)),
          why.malformed, from.from};
}

// The keys of a table that are there, or what to say when there are none.
std::string settings_in(const schema& all, std::string_view table) {
  words keys;
  for (const auto& one : all)
    if (!one.chooser.empty() && one.key.starts_with(table)) keys.push_back(one.key);
  return keys.empty() ? "it has none" : fmt::format("it has {}", fmt::join(keys, ", "));
}

}  // namespace

const setting* settings::left_out(std::string_view key) const {
  return find_setting(schema_, key) ? nullptr : find_setting(others_, key);
}

std::string settings::lack_of(const setting& other) const {
  return fmt::format("the {} {} has no {}", other.chooser == "model.name" ? "model" : "data set",
                     choices_.at(other.chooser), other.key);
}

complaint settings::unknown_key(std::string_view key, const origin& from) const {
  const auto* other = find_setting(others_, key);
  if (!other)
    return {fmt::format("unknown key \"{}\" ({}){}", key, from.text(), hint(key, keys_of(schema_))),
            false, from.from};
  const bool of_model = other->chooser == "model.name";
  return {fmt::format("{} ({}): {} {} has no such setting; {}", key, from.text(),
                      of_model ? "the model" : "the data set", choices_.at(other->chooser),
                      settings_in(schema_, of_model ? "model." : "data.")),
          false, from.from};
}

std::optional<complaint> settings::set(std::string_view key, const setting_value& value,
                                       const origin& from) {
  const auto* what = find_setting(schema_, key);
  if (!what) return unknown_key(key, from);
  auto result = check(*what, value);
  if (!result.problem.empty()) return refused(*what, toml_text(value), from, result);
  values_[what->key] = {std::move(result.value), from};
  return std::nullopt;
}

std::optional<complaint> settings::set_text(std::string_view key, const std::string& text,
                                            const origin& from) {
  const auto* what = find_setting(schema_, key);
  if (!what) return unknown_key(key, from);
  auto result = read_text(*what, text);
  if (!result.problem.empty()) return refused(*what, fmt::format("\"{}\"", text), from, result);
  values_[what->key] = {std::move(result.value), from};
  return std::nullopt;
}

}  // namespace troupe::program
