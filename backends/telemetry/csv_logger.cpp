#include "backends/telemetry/csv_logger.hpp"

#include "backends/telemetry/csv_row.hpp"
#include "backends/telemetry/unsigned_nan.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t columns_max = 2048;

// RFC 4180: a field with a comma, a quote or a line end is quoted; quotes are doubled.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string{"\"\""} : std::string{c};
  return quoted + "\"";
}

std::string header(const std::vector<std::string>& columns) {
  std::string text;
  for (const auto& name : columns) text += (text.empty() ? "" : ",") + cell(name);
  return text + "\n";
}

// Calls `each` with every complete line. Skips a last line without its end, which a crash cut off.
void for_each_line(std::string_view text, const std::function<void(std::string_view)>& each) {
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    if (end == std::string_view::npos) return;
    each(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::int64_t step_of(std::string_view row) {
  std::int64_t step = undefined;
  std::from_chars(row.data(), row.data() + row.size(), step);
  return step;
}

// The rows of the largest step.
std::vector<std::string> newest_rows(std::string_view text) {
  std::vector<std::string> rows;
  std::int64_t newest = undefined;
  for_each_line(text, [&](std::string_view line) {
    const auto step = step_of(line);
    if (step > newest) rows.clear();
    newest = std::max(newest, step);
    if (step == newest && step != undefined) rows.emplace_back(line);
  });
  return rows;
}

// `test/loss`, `test_acc`, `test`: not `tests`.
bool names_test(std::string_view column) {
  constexpr std::string_view word = "test";
  if (!column.starts_with(word)) return false;
  const auto rest = column.substr(word.size());
  return rest.empty() || !std::isalnum(static_cast<unsigned char>(rest.front()));
}

// True if a row has values of a test and no others.
bool is_of_test(const std::vector<std::string>& columns, std::string_view row) {
  const auto filled = csv_cells(row);
  bool any = false;
  for (std::size_t i = 2; i < std::min(columns.size(), filled.size()); ++i) {
    if (filled[i].empty()) continue;
    if (!names_test(columns[i])) return false;
    any = true;
  }
  return any;
}

}  // namespace

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> found{""};
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      const bool doubled = quoted && i + 1 < line.size() && line[i + 1] == '"';
      if (doubled) found.back() += line[++i];
      if (!doubled) quoted = !quoted;
    } else if (c == ',' && !quoted) {
      found.emplace_back();
    } else {
      found.back() += c;
    }
  }
  return found;
}

csv_logger::csv_logger(std::string path) : path_(std::move(path)), columns_{"step", "epoch"} {
  if (!std::filesystem::exists(path_)) {
    file_ = std::make_unique<line_file>(path_, line_file::start::fresh);
    file_->add(header(columns_));
    return;
  }
  const auto text = read_text_file(path_);
  if (header(columns_).starts_with(text)) {  // the disk was full when it was begun
    file_ = std::make_unique<line_file>(path_, line_file::start::fresh);
    file_->add(header(columns_));
    return;
  }
  const auto found = csv_cells(first_line(text));
  if (found.size() < 2 || found[0] != "step" || found[1] != "epoch")
    throw user_error(errc::bad_configuration,
                     path_ +
                         " is no metrics file of a run: its first columns are not step and "
                         "epoch; move it away");
  columns_ = found;
  known_ = {columns_.begin() + 2, columns_.end()};
  newest_ = newest_rows(text);
  file_ = std::make_unique<line_file>(path_, line_file::start::append);
}

csv_logger::~csv_logger() = default;

void csv_logger::on(const observation& what) {
  const auto* seen = std::get_if<seen::metrics>(&what);
  if (!seen || seen->logged.empty()) return;
  widen(seen->logged);
  const auto written = [&](const auto& one) { return known_.contains(one.first); };
  if (std::none_of(seen->logged.begin(), seen->logged.end(), written)) return;
  const auto number = [](std::int64_t x) { return x == undefined ? "" : fmt::format("{}", x); };
  auto row = number(seen->at.step) + "," + number(seen->at.epoch);
  for (std::size_t i = 2; i < columns_.size(); ++i) {
    const auto found = seen->logged.find(columns_[i]);
    row += found == seen->logged.end() ? "," : fmt::format(",{}", unsigned_nan(found->second));
  }
  if (std::erase(newest_, row) == 0) file_->add(row + "\n");
}

void csv_logger::finish(std::uint64_t) {
  if (!left_out_.empty())
    throw std::length_error(
        fmt::format("{} has {} columns, the most there may be, so {} and the names after it are "
                    "not in it: log under a fixed set of names",
                    path_, columns_.size(), left_out_));
}

void csv_logger::widen(const metrics& logged) {
  auto wider = columns_;
  for (const auto& [name, value] : logged) {
    if (known_.contains(name)) continue;
    if (wider.size() < columns_max)
      wider.push_back(name);
    else if (left_out_.empty())
      left_out_ = name;
  }
  const auto added = wider.size() - columns_.size();
  if (added == 0) return;
  auto text = header(wider);
  bool first = true;
  for_each_line(read_text_file(path_), [&](std::string_view line) {
    if (!std::exchange(first, false)) text += std::string{line} + std::string(added, ',') + "\n";
  });
  replace_text_file(path_, text);
  file_ = std::make_unique<line_file>(path_, line_file::start::append);
  columns_ = std::move(wider);
  known_ = {columns_.begin() + 2, columns_.end()};
  for (auto& row : newest_) row += std::string(added, ',');
}

namespace {

// Nothing if a field is no number. A missing value is no number of its own: it stays unset.
std::optional<std::vector<std::optional<double>>> values_of(const std::vector<std::string>& row) {
  std::vector<std::optional<double>> values;
  for (const auto& field : row) {
    auto& value = values.emplace_back();
    if (field.empty()) continue;
    const auto* end = field.data() + field.size();
    const auto [stopped, error] = std::from_chars(field.data(), end, value.emplace(0));
    if (error != std::errc{} || stopped != end) return std::nullopt;
  }
  return values;
}

}  // namespace

metrics_table parse_metrics(std::string_view text) {
  metrics_table table;
  std::vector<std::string> columns;
  table.cut = !text.empty() && text.back() != '\n';
  for_each_line(text, [&](std::string_view line) {
    const auto row = csv_cells(line);
    if (columns.empty()) {
      columns = row;
      for (std::size_t i = 2; i < columns.size(); ++i) table.series.push_back({.name = columns[i]});
      return;
    }
    const auto values = values_of(row);
    if (!values || values->size() != columns.size() || values->size() < 2) {
      ++table.damaged;
      return;
    }
    const auto whole = [&](std::size_t i) {
      return static_cast<std::int64_t>((*values)[i].value_or(undefined));
    };
    for (std::size_t i = 2; i < values->size(); ++i) {
      if (!(*values)[i]) continue;
      auto& one = table.series[i - 2];
      one.step.push_back(whole(0));
      one.epoch.push_back(whole(1));
      one.value.push_back(*(*values)[i]);
    }
  });
  return table;
}

void cut_metrics(const std::string& path, std::int64_t step) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  std::vector<std::string> columns;
  for_each_line(read_text_file(path), [&](std::string_view line) {
    if (columns.empty())
      columns = csv_cells(line);
    else if (step_of(line) > step || (step_of(line) == step && is_of_test(columns, line)))
      return;
    kept += std::string{line} + "\n";
  });
  replace_text_file(path, kept);
}

}  // namespace troupe
