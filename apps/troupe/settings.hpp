// What a call of the program is to do: every setting with its value and where that came from.
#pragma once

#include "apps/troupe/schema.hpp"

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::program {

/// Where a value came from, from the weakest to the strongest.
enum class source : std::uint8_t { fallback, file, variable, assignment, flag };

struct origin {
  source from = source::fallback;
  std::string name;  ///< `job.toml:3`, `TROUPE_RANKS`, `--ranks`
  /// `default`, `file job.toml:3`, `variable TROUPE_RANKS`, `--set`, `flag --ranks`.
  std::string text() const;
  friend bool operator==(const origin&, const origin&) = default;
};

struct resolved {
  setting_value value;
  program::origin origin;
};

/// What is wrong with one given value. `malformed`: it cannot even be read as the setting's type.
struct complaint {
  std::string text;  ///< names key, value, origin and the fix
  bool malformed = false;
  source from = source::fallback;
};

/// Values of all settings of a schema. A regular value; keys that the schema lacks are a bug of the
/// program (std::out_of_range).
class settings {
public:
  settings() = default;
  /// For messages: `others` are settings that the chosen model or data set does not have; `choices`
  /// are their names by the key that chooses one.
  explicit settings(schema all, schema others = {},
                    std::map<std::string, std::string, std::less<>> choices = {});

  const schema& all() const { return schema_; }
  const resolved& at(std::string_view key) const;
  bool is_set(std::string_view key) const;
  /// True unless the value is the default.
  bool is_given(std::string_view key) const;

  /// The value; the setting must be set and of that type.
  template <class T>
  const T& get(std::string_view key) const {
    return std::get<T>(at(key).value);
  }
  /// The value, or nothing when it is not set.
  template <class T>
  std::optional<T> find(std::string_view key) const {
    const auto& value = at(key).value;
    return std::holds_alternative<std::monostate>(value) ? std::nullopt
                                                         : std::optional<T>{std::get<T>(value)};
  }
  bool flag(std::string_view key) const { return get<bool>(key); }
  std::string text(std::string_view key) const { return get<std::string>(key); }
  std::int64_t integer(std::string_view key) const { return get<std::int64_t>(key); }
  double number(std::string_view key) const { return get<double>(key); }

  /// The setting of this key that the chosen model or data set lacks; null: there is none.
  const setting* left_out(std::string_view key) const;
  /// `the model cnn has no model.hidden`.
  std::string lack_of(const setting& other) const;

  /// Sets a value as a file or `--set` gives it, if the key is known and the value possible.
  std::optional<complaint> set(std::string_view key, const setting_value& value,
                               const origin& from);
  /// Sets a value given as text, by a flag or a variable: read by the setting's type.
  std::optional<complaint> set_text(std::string_view key, const std::string& text,
                                    const origin& from);

private:
  complaint unknown_key(std::string_view key, const origin& from) const;

  schema schema_;
  schema others_;
  std::map<std::string, std::string, std::less<>> choices_;
  std::map<std::string, resolved, std::less<>> values_;
};

/// Why `value` is impossible for `what`, and the nearest possible value; nothing when it is fine.
/// An integer given for a number becomes one.
struct checked {
  setting_value value;
  std::string problem;
  bool malformed = false;
};
checked check(const setting& what, setting_value value);

/// Reads text as the setting's type: `10` and `0.5` for a limit, `[1, 2]` or `1,2` for lists of
/// integers, `["a", "b"]` for a list of texts, or one of them.
checked read_text(const setting& what, const std::string& text);

/// A value as TOML writes it: `"mlp"`, `[256, 128]`, `0.05`. Nothing for what is not set.
std::string toml_text(const setting_value& value);

}  // namespace troupe::program
