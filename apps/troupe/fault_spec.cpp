#include "apps/troupe/fault_spec.hpp"

#include "apps/command_line/suggestion.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

namespace troupe::program {

namespace {

constexpr std::array<std::pair<std::string_view, fault_drill::kind>, 7> kinds{{
    {"throw", fault_drill::kind::raise},
    {"stall", fault_drill::kind::stall},
    {"abort", fault_drill::kind::abort},
    {"segv", fault_drill::kind::segv},
    {"exit", fault_drill::kind::exit},
    {"kill", fault_drill::kind::kill},
    {"stop", fault_drill::kind::stop},
}};
const std::vector<std::string> part_names{"rank", "hook", "step", "ms", "what"};

// Reads one fault; each error quotes the whole text of the fault.
class drill_reader {
public:
  explicit drill_reader(const std::string& spec) : spec_(spec) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw user_error(errc::bad_configuration,
                     fmt::format("--fault {}: {}; the form is "
                                 "KIND@rank=R,hook=NAME[,step=S][,ms=N][,what=TEXT]",
                                 spec_, why));
  }

  fault_drill::kind kind() const {
    const auto word = spec_.substr(0, spec_.find('@'));
    std::vector<std::string> names;
    for (const auto& [name, value] : kinds) {
      if (name == word) return value;
      names.emplace_back(name);
    }
    refuse(fmt::format("unknown kind \"{}\"{} (one of {})", word, hint(word, names),
                       fmt::join(names, ", ")));
  }

  // The parts after the @. A comma separates parts only if a known name and = follow, so TEXT may
  // have commas.
  std::map<std::string, std::string> parts() const {
    std::map<std::string, std::string> found;
    const auto at = spec_.find('@');
    if (at == std::string::npos) refuse("there is no @");
    std::size_t begin = at + 1;
    while (begin < spec_.size()) {
      const auto end = next_part(begin);
      add_part(spec_.substr(begin, end - begin), found);
      begin = end + 1;
    }
    return found;
  }

  std::int64_t number(const std::string& name, const std::string& text) const {
    std::int64_t result = 0;
    const auto* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, result);
    if (error != std::errc{} || stopped != end || result < 0)
      refuse(fmt::format("{}={} is no number from 0", name, text));
    return result;
  }

private:
  std::size_t next_part(std::size_t from) const {
    const bool text = spec_.compare(from, 5, "what=") == 0;
    for (auto comma = spec_.find(',', from); comma != std::string::npos;
         comma = spec_.find(',', comma + 1)) {
      const auto known = std::any_of(part_names.begin(), part_names.end(), [&](const auto& name) {
        return spec_.compare(comma + 1, name.size() + 1, name + "=") == 0;
      });
      if (known || !text) return comma;
    }
    return spec_.size();
  }

  void add_part(const std::string& part, std::map<std::string, std::string>& found) const {
    const auto equals = part.find('=');
    const auto name = part.substr(0, equals);
    if (std::find(part_names.begin(), part_names.end(), name) == part_names.end())
      refuse(fmt::format("unknown part \"{}\"{}", name, hint(name, part_names)));
    if (equals == std::string::npos) refuse(fmt::format("{} has no value", name));
    if (!found.emplace(name, part.substr(equals + 1)).second)
      refuse(fmt::format("{} is given twice", name));
  }

  const std::string& spec_;
};

}  // namespace

fault_drill parse_fault(const std::string& spec) {
  const drill_reader reader{spec};
  fault_drill drill;
  drill.what = reader.kind();
  auto parts = reader.parts();
  for (const auto* needed : {"rank", "hook"})
    if (!parts.contains(needed)) reader.refuse(fmt::format("{} is missing", needed));

  const auto rank = reader.number("rank", parts["rank"]);
  drill.rank = static_cast<std::int32_t>(std::min<std::int64_t>(rank, INT32_MAX));

  drill.hook = parts["hook"];
  const std::vector<std::string> names{hook_names().begin(), hook_names().end()};
  if (std::find(names.begin(), names.end(), drill.hook) == names.end())
    reader.refuse(fmt::format("unknown hook \"{}\"{}", drill.hook, hint(drill.hook, names)));

  if (parts.contains("step")) drill.step = reader.number("step", parts["step"]);
  if (parts.contains("what")) drill.text = parts["what"];
  const bool stalls = drill.what == fault_drill::kind::stall;
  if (stalls != parts.contains("ms"))
    reader.refuse(stalls ? "a stall needs ms, how long it lasts" : "ms belongs to stall only");
  if (stalls) drill.lasts = std::chrono::milliseconds{reader.number("ms", parts["ms"])};
  return drill;
}

}  // namespace troupe::program
