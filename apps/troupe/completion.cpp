#include "apps/troupe/completion.hpp"

#include "apps/troupe/replaced.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>

namespace troupe::program {

namespace {

using texts = std::vector<std::string>;

texts split(const std::string& text, char mark) {
  texts parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(mark, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// A piece of a script, which is written for `troupe`, for another program: its functions and its
// name are its own.
std::string named(std::string_view text, const std::string& program) {
  auto safe = "_" + program;
  for (auto& c : safe)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return replaced(replaced(std::string{text}, "_troupe", safe), " troupe", " " + program);
}

// Puts `text` in single quotes, escaped as the shell expects it.
std::string quoted(const std::string& text, shell of) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += of == shell::fish ? "\\'" : "'\\''";
    else if (c == '\\' && of == shell::fish)
      out += "\\\\";
    else
      out += c;
  }
  return out + "'";
}

// Calls `take` with the words of each command, the program's own being empty: `bench fit`.
void each_command(const command_facts& at, const std::string& path,
                  const std::function<void(const std::string&, const command_facts&)>& take) {
  take(path, at);
  for (const auto& below : at.commands)
    each_command(below, path.empty() ? below.name : path + " " + below.name, take);
}

std::string printed(const texts& lines) {
  std::string text = "  printf '%s\\n'";
  for (const auto& line : lines) text += " \\\n    " + quoted(line, shell::bash);
  return text;
}

// A `case` of the POSIX shell: texts that differ in their lines, with the labels of equal ones
// joined.
class cases {
public:
  void add(const std::string& label, const std::string& lines) {
    if (lines.empty()) return;
    auto& labels = labels_[lines];
    if (std::ranges::find(labels, label) == labels.end()) labels.push_back(label);
  }
  std::string function(const std::string& name, const std::string& about) const {
    auto text = fmt::format("# {}\n{}() {{\n  case \"$1\" in\n", about, name);
    for (const auto& [lines, labels] : labels_) {
      texts safe;
      for (const auto& label : labels) safe.push_back(quoted(label, shell::bash));
      text += fmt::format("    {})\n{} ;;\n", fmt::join(safe, "|"), printed(split(lines, '\n')));
    }
    return text + "  esac\n}\n";
  }

private:
  std::map<std::string, texts> labels_;
};

std::string joined(const texts& lines) { return fmt::format("{}", fmt::join(lines, "\n")); }

// What can stand in place of a value, as its shape says.
struct value_facts {
  texts words;           // `torch`, `safetensors`
  bool files = false;    // FILE, FILE.toml, PATH: a file or a folder
  bool folders = false;  // DIR, RUN_DIR
  bool keys = false;     // KEY=VALUE of a setting
};

value_facts values_of(const std::string& shape) {
  value_facts what;
  for (const auto& part : split(shape, '|')) {
    if (part.starts_with("FILE") || part == "PATH")
      what.files = true;
    else if (part == "DIR" || part == "RUN_DIR")
      what.folders = true;
    else if (part == "KEY=VALUE")
      what.keys = true;
    else if (!part.empty() && !std::isupper(static_cast<unsigned char>(part.front())) &&
             part.find_first_of(" .<") == std::string::npos)
      what.words.push_back(part);
  }
  return what;
}

// `@files`, `@folders`, `@keys` and words; `@none` for a value of another kind.
std::string value_lines(const std::string& shape) {
  if (shape.empty()) return {};
  const auto what = values_of(shape);
  auto lines = what.words;
  if (what.files) lines.emplace_back("@files");
  if (what.folders) lines.emplace_back("@folders");
  if (what.keys) lines.emplace_back("@keys");
  if (lines.empty()) lines.emplace_back("@none");
  return joined(lines);
}

texts choices_of(const setting& one) {
  return one.kind == kind::boolean ? texts{"true", "false"} : one.choices;
}

// What both shells look up. Lines are `WORD<tab>what it is`.
std::string tables(const command_facts& top, const schema& all) {
  cases commands, flags, values, arguments, key_values;
  each_command(top, {}, [&](const std::string& path, const command_facts& command) {
    texts below, own;
    for (const auto& one : command.commands) below.push_back(one.name + "\t" + one.about);
    for (const auto& flag : command.flags)
      for (const auto& name : flag.names) {
        own.push_back(name + "\t" + flag.about);
        values.add(path + " " + name, value_lines(flag.shape));
      }
    commands.add(path, joined(below));
    flags.add(path, joined(own));
    for (const auto& one : command.arguments) arguments.add(path, value_lines(one.names.front()));
  });
  texts names;
  for (const auto& key : keys_of(all)) {
    const auto& one = *find_setting(all, key);
    names.push_back(one.key + "\t" + one.help);
    key_values.add(one.key, joined(choices_of(one)));
  }
  const auto function = [&](const cases& of, const char* name, const char* about) {
    return of.function(named(name, top.name), about);
  };
  return function(commands, "_troupe_commands", "WORDS: the commands below a command") +
         function(flags, "_troupe_flags", "WORDS: the flags of a command") +
         function(values, "_troupe_values", "WORDS --FLAG: the values of a flag that has one") +
         function(arguments, "_troupe_arguments", "WORDS: a command's arguments") +
         named("# The keys of all settings.\n_troupe_keys() {\n", top.name) + printed(names) +
         "\n}\n" + function(key_values, "_troupe_key_values", "KEY: the values of a setting");
}

// Bash divides words at "=" where COMP_WORDBREAKS has it, also the flags' values and KEY=VALUE.
constexpr std::string_view bash_front = R"shell(_troupe_complete() {
  local words=() piece glue= word before at kinds candidates= given=
  for piece in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ (-n $glue || $piece == "=") && ${#words[@]} -gt 1 ]]; then
      words[-1]+="$piece"
    else
      words+=("$piece")
    fi
    if [[ $piece == "=" ]]; then glue=1; else glue=; fi
  done
  word="${words[-1]}" before="${words[-2]}"
  at="$(_troupe_at "${words[@]:1:${#words[@]}-2}")"
  if [[ $word == --*=* ]]; then
    before="${word%%=*}" given="${word%%=*}=" word="${word#*=}"
  fi
  COMPREPLY=()
  if [[ -z $given && $word == -* ]]; then
    candidates="$(_troupe_flags "$at" | cut -f 1)"
  else
    kinds="$(_troupe_values "$at ${before//_/-}")"
    if [[ -z $kinds && -n $given ]]; then
      return
    elif [[ -z $kinds ]]; then
      candidates="$(_troupe_commands "$at" | cut -f 1)"
      [[ -n $candidates ]] || kinds="$(_troupe_arguments "$at")"
    fi
  fi
  if [[ $kinds == *@keys* && $word == *=* ]]; then
    given+="${word%%=*}=" candidates="$(_troupe_key_values "${word%%=*}")" word="${word#*=}"
  elif [[ $kinds == *@keys* ]]; then
    candidates="$(_troupe_keys | cut -f 1 | sed 's/$/=/')"
    compopt -o nospace
  elif [[ -n $kinds ]]; then
    candidates="$(grep -v '^@' <<<"$kinds")"
  fi
  mapfile -t COMPREPLY < <(
    compgen -W "$candidates" -- "$word"
    [[ $kinds == *@files* ]] && compgen -f -- "$word"
    [[ $kinds == *@folders* ]] && compgen -d -- "$word"
  )
  [[ $kinds == *@files* || $kinds == *@folders* ]] && compopt -o filenames
  # Readline replaces what follows the last "=", unless "=" divides no words.
  [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${COMPREPLY[@]/#/$given}")
}
complete -F _troupe_complete troupe
)shell";

constexpr std::string_view zsh_front = R"shell(_troupe_offer() {
  local -a offered
  local about="$1" lines="$2"
  shift 2
  [[ -n $lines ]] || return 1
  offered=("${(@f)lines}")
  offered=("${(@)offered//:/\\:}")
  offered=("${(@)offered/$'\t'/:}")
  _describe "$about" offered "$@"
}
_troupe() {
  local before="${words[CURRENT-1]}" given= at kinds offers
  at="$(_troupe_at "${(@)words[2,CURRENT-1]}")"
  if [[ $PREFIX == --*=* ]]; then
    before="${PREFIX%%=*}" given=1
    compset -P 1 '*='
  fi
  if [[ -z $given && $PREFIX == -* ]]; then
    _troupe_offer flag "$(_troupe_flags "$at")"
    return
  fi
  kinds="$(_troupe_values "$at ${before//_/-}")"
  if [[ -z $kinds ]]; then
    [[ -z $given ]] || return 1
    offers="$(_troupe_commands "$at")"
    if [[ -n $offers ]]; then
      _troupe_offer command "$offers"
      return
    fi
    kinds="$(_troupe_arguments "$at")"
  fi
  if [[ $kinds == *@keys* && $PREFIX == *=* ]]; then
    local key="${PREFIX%%=*}"
    compset -P 1 '*='
    _troupe_offer value "$(_troupe_key_values "$key")"
  elif [[ $kinds == *@keys* ]]; then
    _troupe_offer key "$(_troupe_keys)" -S = -q
  else
    _troupe_offer value "$(grep -v '^@' <<<"$kinds")"
    [[ $kinds == *@files* ]] && _files
    [[ $kinds == *@folders* ]] && _files -/
  fi
}
# Loaded from a folder of functions, this file is the body of the function itself.
if [[ ${funcstack[1]} == _troupe ]]; then
  _troupe "$@"
else
  compdef _troupe troupe
fi
)shell";

std::string word_function(const command_facts& top) {
  texts known;
  each_command(top, {}, [&](const std::string& at, const command_facts&) {
    if (!at.empty()) known.push_back(quoted(at, shell::bash));
  });
  return fmt::format(R"shell(# The command that the words name: "bench fit".
_troupe_at() {{
  local at= word
  for word in "$@"; do
    case "${{at:+$at }}$word" in
      {})
        at="${{at:+$at }}$word" ;;
    esac
  done
  printf '%s\n' "$at"
}}
)shell",
                     fmt::join(known, "|"));
}

constexpr std::string_view fish_front =
    R"shell(# Whether the words before the cursor name one of these commands.
function __troupe_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        set -l next (string trim -- "$at $word")
        if contains -- "$next" $__troupe_commands
            set at $next
        end
    end
    contains -- "$at" $argv
end
# KEY= of each setting, or KEY=VALUE when the key is complete.
function __troupe_settings
    set -l token (commandline -ct)
    set -l key (string replace -r '^--set=' '' -- $token | string split -m 1 =)
    if test (count $key) -gt 1
        for value in (__troupe_key_values $key[1])
            echo $key[1]=$value
        end
    else
        __troupe_keys
    end
end
complete -c troupe -f
)shell";

std::string fish_offers(const value_facts& what, const std::string& program) {
  auto offers = what.words;
  if (what.folders) offers.emplace_back("(__fish_complete_directories (commandline -ct) \"\")");
  if (what.keys) offers.push_back(named("(__troupe_settings)", program));
  return offers.empty() ? ""
                        : " -a " + quoted(fmt::format("{}", fmt::join(offers, " ")), shell::fish);
}

std::string fish_flag(const flag_facts& flag, const std::string& name, const std::string& program) {
  const auto line = "-l " + name.substr(2);
  if (flag.shape.empty()) return line;
  const auto what = values_of(flag.shape);
  return line + (what.files ? " -F" : " -f") + (flag.value_needed ? " -r" : "") +
         fish_offers(what, program);
}

std::string fish_settings(const schema& all, const std::string& program) {
  auto keys = named("function __troupe_keys\n", program);
  auto choices = named("function __troupe_key_values\n    switch $argv[1]\n", program);
  for (const auto& key : keys_of(all)) {
    const auto& one = *find_setting(all, key);
    keys += fmt::format("    printf '%s=\\t%s\\n' {} {}\n", one.key, quoted(one.help, shell::fish));
    const auto possible = choices_of(one);
    if (!possible.empty())
      choices += fmt::format("        case {}\n            printf '%s\\n' {}\n", one.key,
                             fmt::join(possible, " "));
  }
  return keys + "end\n" + choices + "    end\nend\n";
}

// One `complete` per line that commands share.
std::string fish_script(const command_facts& top, const schema& all) {
  std::map<std::string, texts> lines;
  texts known;
  each_command(top, {}, [&](const std::string& at, const command_facts& command) {
    if (!at.empty()) known.push_back(quoted(at, shell::fish));
    const auto add = [&](const std::string& line, const std::string& about) {
      lines[fmt::format("{} -d {}", line, quoted(about, shell::fish))].push_back(
          quoted(at, shell::fish));
    };
    for (const auto& below : command.commands) add("-a " + below.name, below.about);
    for (const auto& flag : command.flags)
      for (const auto& name : flag.names) add(fish_flag(flag, name, top.name), flag.about);
    for (const auto& one : command.arguments) {
      const auto what = values_of(one.names.front());
      const auto line = (what.files ? "-F" : "-f") + fish_offers(what, top.name);
      if (line != "-f") add(line, one.about);
    }
  });
  auto text =
      fmt::format("{} {}\n{}{}", named("set -g __troupe_commands", top.name), fmt::join(known, " "),
                  fish_settings(all, top.name), named(fish_front, top.name));
  for (const auto& [line, commands] : lines)
    text += fmt::format(
        "complete -c {} -n {} {}\n", top.name,
        quoted(fmt::format("{} {}", named("__troupe_at", top.name), fmt::join(commands, " ")),
               shell::fish),
        line);
  return text;
}

}  // namespace

std::string completion_script(shell of, const command_facts& top, const schema& all) {
  const std::string_view name = of == shell::bash ? "bash" : of == shell::zsh ? "zsh" : "fish";
  auto text =
      fmt::format("# {0} completion of {1}, made by `{1} completion {0}`.\n", name, top.name);
  if (of == shell::zsh) text = "#compdef " + top.name + "\n" + text;
  if (of == shell::fish) return text + fish_script(top, all);
  text += tables(top, all) + named(word_function(top), top.name);
  return text + named(of == shell::bash ? bash_front : zsh_front, top.name);
}

}  // namespace troupe::program
