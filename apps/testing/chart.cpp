#include "apps/testing/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <tuple>

namespace troupe::testing {

namespace {

// One line of a chart.
struct row {
  const trace_note* at = nullptr;
  std::string text;
  bool message = false;
  bool received = false;  // false: lost, or still on its way
};

std::string without(std::string_view prefix, const std::string& text) {
  return text.substr(prefix.size());
}

// A message is noted when it is sent and when it is received; a row joins both. Links keep order,
// so the n-th received message of a text is the n-th that was sent.
std::vector<row> rows_of(const std::vector<trace_note>& notes, std::uint64_t until) {
  using way = std::tuple<std::int32_t, std::int32_t, std::string>;
  std::map<way, std::vector<std::size_t>> on_the_way;  // rows; the newest is last
  std::vector<row> all;
  for (const auto& n : notes) {
    if (n.event > until) break;
    const bool sent = n.what.starts_with("send ");
    const bool got = n.what.starts_with("get ");
    row fresh{&n, n.what, sent || got, got};
    if (sent) fresh.text = without("send ", n.what);
    if (got) fresh.text = without("get ", n.what);
    if (sent) on_the_way[{n.from, n.to, fresh.text}].push_back(all.size());
    if (got) {
      auto& sent_before = on_the_way[{n.from, n.to, fresh.text}];
      if (!sent_before.empty()) {
        all[sent_before.front()].at = nullptr;
        sent_before.erase(sent_before.begin());
      }
    }
    all.push_back(std::move(fresh));
  }
  std::erase_if(all, [](const row& r) { return !r.at; });
  return all;
}

// The nodes of the last lines in numerical order, and the lines that belong to them.
struct picture {
  std::vector<std::int32_t> nodes;
  std::vector<row> rows;
  std::size_t left_out = 0;  // lines of other nodes between the ones shown

  std::optional<std::size_t> column_of(std::int32_t node) const {
    const auto at = std::ranges::find(nodes, node);
    if (at == nodes.end()) return {};
    return static_cast<std::size_t>(at - nodes.begin());
  }
};

// Nodes with faults come first, then the nodes that sent last.
std::vector<std::int32_t> nodes_of_lines(std::span<const row> rows, std::size_t most) {
  std::vector<std::int32_t> chosen;
  const auto choose = [&](std::int32_t node, std::size_t until) {
    if (node >= 0 && chosen.size() < until && std::ranges::find(chosen, node) == chosen.end())
      chosen.push_back(node);
  };
  for (const auto& r : rows | std::views::reverse)
    if (r.at->from < 0) choose(r.at->to, most - 1);
  for (const auto& r : rows | std::views::reverse) {
    choose(r.at->from, most);
    choose(r.at->to, most);
  }
  std::ranges::sort(chosen);
  return chosen;
}

picture picture_of(const std::vector<trace_note>& notes, const chart_options& options) {
  const auto all = rows_of(notes, options.until);
  const auto shown = std::span{all}.last(std::min(options.lines, all.size()));
  picture p;
  p.nodes = nodes_of_lines(shown, std::max<std::size_t>(2, options.columns));
  const auto there = [&](std::int32_t node) { return node < 0 || p.column_of(node); };
  std::size_t others = 0;
  for (const auto& r : all | std::views::reverse) {
    if (p.rows.size() == options.lines) break;
    if (!there(r.at->from) || !there(r.at->to)) {
      ++others;
      continue;
    }
    p.rows.push_back(r);
    p.left_out = others;
  }
  std::ranges::reverse(p.rows);
  return p;
}

std::string name_of(const std::vector<std::string>& nodes, std::int32_t node) {
  const auto known = node >= 0 && static_cast<std::size_t>(node) < nodes.size();
  return fmt::format("{} ({})", known ? nodes[static_cast<std::size_t>(node)] : "node", node);
}

constexpr std::size_t width = 24;
std::size_t middle(std::size_t column) { return column * width + width / 2; }

void write(std::string& line, std::size_t at, std::string_view text) {
  if (line.size() < at + text.size()) line.resize(at + text.size(), ' ');
  line.replace(at, text.size(), text);
}

std::string line_of(const picture& p, const row& r) {
  std::string line(p.nodes.size() * width, ' ');
  for (std::size_t c = 0; c < p.nodes.size(); ++c) line[middle(c)] = '|';
  const auto to = p.column_of(r.at->to);
  const auto from = p.column_of(r.at->from);
  if (!r.message || !to || !from) {  // a local event, or one of the whole simulation
    write(line, to ? middle(*to) : 0, (to ? "* " : "~~ ") + r.text);
    return line;
  }
  const auto left = middle(std::min(*from, *to)) + 1;
  const auto right = middle(std::max(*from, *to));
  const bool rightwards = *from < *to;
  std::fill(line.begin() + static_cast<std::ptrdiff_t>(left),
            line.begin() + static_cast<std::ptrdiff_t>(right), '-');
  const auto shown = r.text.substr(0, right - left - 2);
  write(line, left + (right - left - shown.size()) / 2, shown);
  const auto head = rightwards ? right - 1 : left;
  line[head] = !r.received ? 'x' : rightwards ? '>' : '<';
  return line;
}

std::string without_blanks_at_end(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string quoted(std::string text) {
  std::ranges::replace(text, ';', ',');
  std::ranges::replace(text, '#', ' ');
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

std::string text_chart(const std::vector<trace_note>& notes, const std::vector<std::string>& nodes,
                       const chart_options& options) {
  const auto p = picture_of(notes, options);
  std::string head(p.nodes.size() * width, ' ');
  for (std::size_t c = 0; c < p.nodes.size(); ++c) {
    const auto name = name_of(nodes, p.nodes[c]).substr(0, width - 2);
    write(head, middle(c) - name.size() / 2, name);
  }
  auto out = fmt::format("{:>8} {:>13}  {}\n", "event", "ms", without_blanks_at_end(head));
  for (const auto& r : p.rows)
    out += fmt::format("{:>8} {:>13.3f}  {}\n", r.at->event, static_cast<double>(r.at->at) / 1e6,
                       without_blanks_at_end(line_of(p, r)));
  if (p.left_out > 0) out += fmt::format("{:>8} lines of other nodes are left out\n", p.left_out);
  return out;
}

std::string mermaid_chart(const std::vector<trace_note>& notes,
                          const std::vector<std::string>& nodes, const chart_options& options) {
  const auto p = picture_of(notes, options);
  std::string out{mermaid_head};
  out += '\n';
  for (const auto node : p.nodes)
    out += fmt::format("  participant p{} as {}\n", node, quoted(name_of(nodes, node)));
  for (const auto& r : p.rows) {
    const auto text = quoted(r.text);
    if (r.message)
      out += fmt::format("  p{}{}p{}: {}\n", r.at->from, r.received ? "->>" : "-x", r.at->to, text);
    else if (p.column_of(r.at->to))
      out += fmt::format("  Note over p{}: {}\n", r.at->to, text);
    else if (!p.nodes.empty())
      out += fmt::format("  Note over p{},p{}: {}\n", p.nodes.front(), p.nodes.back(), text);
  }
  return out;
}

}  // namespace troupe::testing
