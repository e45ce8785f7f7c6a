// Every setting of the program, in one table: its key in a file, its flag, its variable, its type,
// default, range and help. Validation, `config print`, `config schema` and the flags are made of
// it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::program {

/// What a setting's value may be.
enum class kind : std::uint8_t {
  boolean,
  integer,
  number,
  text,
  choice,    ///< one of `choices`
  limit,     ///< batches: an integer counts, a number with a point is a share from 0.0 to 1.0
  integers,  ///< a list
  texts,     ///< a list
  words,     ///< a list of `choices`; a flag has them with commas
  devices,   ///< `auto`, a count, or a list of indices
};
/// `an integer`, `a list of texts`, ...: for messages.
std::string_view describe(kind k);

/// A setting's value; nothing means it is not set.
using setting_value = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                                   std::vector<std::int64_t>, std::vector<std::string>>;

/// One setting. Plain data.
struct setting {
  std::string key;  ///< dotted: `model.hidden` is `hidden` in the table `[model]`
  program::kind kind = kind::text;
  setting_value fallback;
  std::string
      flag;  ///< `--max-epochs`, or several with commas; empty: file, variable and --set only
  std::string help;  ///< one line; says why the default is what it is where that is not plain
  std::vector<std::string> choices;
  /// Words that are read as choices are, and which this build always refuses, with the reason, when
  /// the setting is used. No help lists them.
  std::vector<std::string> refused;
  /// The words of `refused` that another build accepts: one with CUDA, NCCL or MPI.
  std::vector<std::string> elsewhere;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  std::string shape;   ///< what help shows in place of a text: FILE, DIR; empty: VALUE
  std::string bare;    ///< what the flag means without a value; empty: it needs one
  std::string former;  ///< the key in earlier versions, which files and variables may still have
  /// False for what belongs to one call of the program and not to the job: left out of config.toml.
  bool saved = true;
  /// `model.name` or `data.name`: the setting is there for some choices only, those of `with`.
  /// Empty: always. Several settings may have one key, with different choices.
  std::string chooser;
  std::vector<std::string> with;
  bool own = false;  ///< of a user's model or data set, and declared by it (own_parts.hpp)

  /// All spellings of the flag, the first one first; with `--no-...` for a boolean.
  std::vector<std::string> flags() const;
  /// `TROUPE_MAX_EPOCHS`: the first flag's name, or else the key's.
  std::string variable() const;
  /// The variable in earlier versions; empty without `former`.
  std::string former_variable() const;
};

/// All settings, keys without a dot first, then table by table: the order of a TOML file.
using schema = std::vector<setting>;

/// What the table needs to know about the rest of the program.
struct schema_names {
  std::vector<std::string> models;        ///< the built-in ones
  std::vector<std::string> data_sets;     ///< the built-in ones
  std::vector<std::string> accelerators;  ///< that this build has
  bool mpi = true;                        ///< this build has MPI
  bool nccl = true;                       ///< this build has NCCL
  /// That jobs have, with those of a user's plug-ins.
  /// @{
  std::vector<std::string> strategies{};
  std::vector<std::string> precisions{};
  /// @}
  /// A user's, with the settings of each: `hidden` for `model.hidden`. The first is the default.
  /// @{
  std::vector<std::pair<std::string, schema>> own_models{};
  std::vector<std::pair<std::string, schema>> own_data{};
  /// @}
};

schema make_schema(const schema_names& names);

/// Whether the setting is there with this model and these data.
bool is_with(const setting& one, std::string_view model, std::string_view data);

/// The setting of this key, or null. `model` finds `model.name`: a table with a name may be given
/// as a text.
const setting* find_setting(const schema& all, std::string_view key);
/// Each key once.
std::vector<std::string> keys_of(const schema& all);

}  // namespace troupe::program
