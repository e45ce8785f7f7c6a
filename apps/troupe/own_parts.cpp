#include "apps/troupe/own_parts.hpp"

#include "apps/troupe/settings.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

namespace troupe::program {

namespace {

using declared = detail::declared_setting;

void refuse_name(const std::string& what) { throw user_error(errc::bad_configuration, what); }

bool is_plain(const std::string& name, std::string_view also) {
  return std::ranges::all_of(name, [&](unsigned char c) {
    return (c < 128 && std::isalnum(c)) || also.find(static_cast<char>(c)) != also.npos;
  });
}

// `kind`: model, data set, setting of the model NAME.
void check_name(const std::string& name, const std::string& kind, std::string_view also) {
  if (name.empty()) refuse_name(fmt::format("a {} has an empty name: give it one", kind));
  if (!is_plain(name, also))
    refuse_name(fmt::format("the {} \"{}\": a name has letters, digits{} only", kind, name,
                            also == "_" ? " and _" : ", _ and -"));
}

void check_settings(const std::vector<declared>& all, const std::string& of) {
  std::vector<std::string> known;
  for (const auto& one : all) {
    check_name(one.name, "setting of " + of, "_");
    if (one.name == "name")
      refuse_name(fmt::format("a setting of {} is called name, which chooses one: rename it", of));
    if (std::ranges::find(known, one.name) != known.end())
      refuse_name(fmt::format("two settings of {} are called {}: rename one", of, one.name));
    known.push_back(one.name);
  }
}

template <class Part>
void check_parts(const std::vector<Part>& all, std::vector<std::string> known,
                 const std::string& kind) {
  const auto built_in = known.size();
  for (const auto& one : all) {
    check_name(one.name, kind, "_-");
    const auto found = std::ranges::find(known, one.name);
    if (found != known.end())
      refuse_name(
          found - known.begin() < static_cast<std::ptrdiff_t>(built_in)
              ? fmt::format("the {0} {1} is built in: give yours another name", kind, one.name)
              : fmt::format("two {0}s are called {1}: rename one", kind, one.name));
    if (!one.make)
      refuse_name(fmt::format("the {} {} has no function that makes it", kind, one.name));
    known.push_back(one.name);
    check_settings(one.settings, fmt::format("the {} {}", kind, one.name));
  }
}

template <class T>
std::vector<T> items_of(const value& list) {
  std::vector<T> all;
  for (const auto& one : list.get_if<value_list>()->items) all.push_back(*one.get_if<T>());
  return all;
}

template <class T>
value listed(const std::vector<T>& all) {
  return value_list{{all.begin(), all.end()}};
}

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;

setting_value fallback_of(const declared& one) {
  using type = declared::type;
  switch (one.is) {
    case type::boolean: return *one.fallback.get_if<bool>();
    case type::integer: return *one.fallback.get_if<std::int64_t>();
    case type::integers: return items_of<std::int64_t>(one.fallback);
    case type::texts: return items_of<std::string>(one.fallback);
    // No file can hold these: such a setting is not set by default.
    case type::number: {
      const auto number = *one.fallback.get_if<double>();
      return std::isfinite(number) ? setting_value{number} : setting_value{};
    }
    case type::text: {
      const auto& text = *one.fallback.get_if<std::string>();
      return text.empty() ? setting_value{} : setting_value{text};
    }
  }
  return {};
}

kind kind_of(declared::type is) {
  using type = declared::type;
  switch (is) {
    case type::boolean: return kind::boolean;
    case type::integer: return kind::integer;
    case type::number: return kind::number;
    case type::text: return kind::text;
    case type::integers: return kind::integers;
    case type::texts: return kind::texts;
  }
  return kind::text;
}

}  // namespace

void check(const detail::own_parts& all, const std::vector<std::string>& built_in_models,
           const std::vector<std::string>& built_in_data) {
  check_parts(all.models, built_in_models, "model");
  check_parts(all.data, built_in_data, "data set");
}

schema settings_of(const std::vector<declared>& all, const std::string& of) {
  schema settings;
  for (const auto& one : all) {
    setting made{
        .key = one.name, .kind = kind_of(one.is), .fallback = fallback_of(one), .help = "of " + of};
    // A double holds no integer of 64 bits exactly; those limits are the type's own.
    const bool whole = made.kind == kind::integer || made.kind == kind::integers;
    if (whole && one.most < std::numeric_limits<std::int64_t>::max()) {
      made.low = static_cast<double>(one.least);
      made.high = static_cast<double>(one.most);
    }
    settings.push_back(std::move(made));
  }
  return settings;
}

value_map fields_of(const own_values& all) {
  value_map fields;
  for (const auto& [key, given] : all)
    fields.items[key] =
        std::visit(overloaded{[](std::monostate) { return value{}; },
                              [](const std::vector<std::int64_t>& x) { return listed(x); },
                              [](const std::vector<std::string>& x) { return listed(x); },
                              [](const auto& x) { return value{x}; }},
                   given);
  return fields;
}

std::string identity_text(const std::string& name, const own_values& all) {
  std::string text = name + '(';
  for (const auto& [key, given] : all) text += fmt::format("{}={},", key, toml_text(given));
  return text + ')';
}

}  // namespace troupe::program
