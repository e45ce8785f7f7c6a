#include "apps/command_line/manual.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace troupe::program {

namespace {

// Text that roff takes as it is: no escapes, and no line that begins with a control character.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += std::string{"\\&"} + c;
    else
      out += c;
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

std::string hyphened(std::string path) {
  std::ranges::replace(path, ' ', '-');
  return path;
}

std::string head(const std::string& path, const std::string& about, const std::string& version) {
  auto title = hyphened(path);
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
  return fmt::format(".TH {} 1 \"\" \"{}\" \"User Commands\"\n.ad l\n.SH NAME\n{} \\- {}\n", title,
                     version, roff(hyphened(path)), roff(about));
}

std::string value_of(const flag_facts& flag) {
  if (flag.shape.empty()) return {};
  const auto value = italic(flag.shape);
  return flag.value_needed ? " " + value : fmt::format(" [{}]", value);
}

std::string synopsis(const std::string& path, const command_facts& of) {
  auto text = fmt::format(".SH SYNOPSIS\n{}", bold(path));
  if (!of.commands.empty()) text += fmt::format(" {}", italic("COMMAND"));
  if (!of.flags.empty()) text += fmt::format(" [{}]", italic("FLAGS"));
  for (const auto& flag : of.flags)
    if (flag.required) text += " " + bold(flag.names.front()) + value_of(flag);
  for (const auto& one : of.arguments) {
    const auto name = italic(one.names.front()) + (one.repeats ? "..." : "");
    text += one.required ? " " + name : fmt::format(" [{}]", name);
  }
  return text + "\n";
}

std::string items(const std::string& title, const std::vector<flag_facts>& all) {
  if (all.empty()) return {};
  auto text = fmt::format(".SH {}\n", title);
  for (const auto& one : all) {
    std::string names;
    for (const auto& name : one.names)
      names += (names.empty() ? "" : ", ") + (name.starts_with("-") ? bold(name) : italic(name));
    const auto value = one.names.front().starts_with("-") ? value_of(one) : std::string{};
    text += fmt::format(".TP\n{}{}\n{}\n", names, value, roff(one.about));
  }
  return text;
}

std::string commands_of(const std::string& path, const command_facts& of) {
  if (of.commands.empty()) return {};
  std::string text = ".SH COMMANDS\n";
  for (const auto& below : of.commands)
    text += fmt::format(".TP\n{}\n{}\n", bold(path + " " + below.name), roff(below.about));
  return text;
}

void add_pages(std::vector<manual_page>& pages, const std::string& path, const command_facts& of,
               const std::string& version, const std::string& notes, const std::string& top) {
  auto text = head(path, of.about, version) + synopsis(path, of) + commands_of(path, of) +
              items("ARGUMENTS", of.arguments) + items("OPTIONS", of.flags);
  if (!notes.empty()) text += fmt::format(".SH NOTES\n.nf\n{}\n.fi\n", roff(notes));
  std::string others;
  for (const auto& below : of.commands)
    others += fmt::format("{}.BR {} (1)", others.empty() ? "" : " ,\n",
                          roff(hyphened(path + " " + below.name)));
  if (others.empty() && path != top) others = fmt::format(".BR {} (1)", roff(top));
  if (!others.empty()) text += fmt::format(".SH SEE ALSO\n{}\n", others);
  pages.push_back({hyphened(path) + ".1", text});
  for (const auto& below : of.commands)
    add_pages(pages, path + " " + below.name, below, version, {}, top);
}

}  // namespace

std::vector<manual_page> manual_pages(const command_facts& top, const std::string& version,
                                      const std::string& notes) {
  std::vector<manual_page> pages;
  add_pages(pages, top.name, top, version, notes, top.name);
  return pages;
}

}  // namespace troupe::program
