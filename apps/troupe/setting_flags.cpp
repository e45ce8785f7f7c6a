#include "apps/troupe/setting_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace troupe::program {

void setting_flags::add(const command& to, const schema& all) {
  to.add("--config", files_, "read settings from this TOML file; may repeat")
      .type_name("FILE.toml");
  to.add("--set", assignments_, "any setting, VALUE in TOML's syntax; may repeat")
      .type_name("KEY=VALUE");
  for (const auto& setting : all) {
    if (setting.flag.empty()) continue;
    auto& kept = flags_.emplace_back();
    kept.key = setting.key;
    kept.flag = setting.flag.substr(0, setting.flag.find(','));
    const auto fallback = toml_text(setting.fallback);
    const auto help = setting.help + (fallback.empty() || fallback == "[]" || fallback == "false"
                                          ? ""
                                          : fmt::format(" ({})", fallback));
    if (setting.kind == kind::boolean) {
      to.add_switch(setting.flag + ",!--no-" + kept.flag.substr(2), kept.texts, help);
      continue;
    }
    const auto added = to.add(setting.flag, kept.texts, help).one_value();
    if (setting.kind != kind::texts) added.last_counts();
    if (!setting.bare.empty()) added.or_alone(setting.bare);
    added.type_name(!setting.choices.empty() ? fmt::format("{}", fmt::join(setting.choices, "|"))
                    : setting.shape.empty()  ? "VALUE"
                                             : setting.shape);
  }
}

given setting_flags::taken(const std::map<std::string, std::string>& variables) const {
  given what{files_, variables, assignments_, {}};
  for (const auto& one : flags_)
    if (!one.texts.empty()) what.flags.push_back({one.key, one.flag, one.texts});
  return what;
}

}  // namespace troupe::program
