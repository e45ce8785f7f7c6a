// Data in files: comma-separated numbers, and tensors.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "backends/checkpoint/safetensors.hpp"
#include "backends/telemetry/csv_row.hpp"
#include "troupe/data.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_file(const std::string& path, const std::string& what) {
  throw user_error(errc::bad_configuration, fmt::format("{}: {}", path, what));
}

// --- csv -----------------------------------------------------------------------------------------

std::string_view csv_trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

struct csv_table {
  std::vector<std::string> columns;
  std::vector<double> cells;  // row by row
};

double number_in(std::string_view text, const std::string& path, std::int64_t line,
                 const std::string& column) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !std::isfinite(static_cast<float>(number)))
    refuse_file(path,
                fmt::format("line {}, column \"{}\": \"{}\" is no finite number of 32 bits; give "
                            "numbers only",
                            line, column, text));
  return number;
}

// Some programs begin a file of UTF-8 with it.
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

// Without them a wrong one of two would be found by its name.
void check_columns(const std::vector<std::string>& columns, const std::string& path) {
  for (const auto& name : columns)
    if (std::ranges::count(columns, name) > 1)
      refuse_file(path, fmt::format("several columns are called \"{}\": rename all but one", name));
}

// Whether the names count from 0 or 1 on, as those that programs give columns without a name.
bool are_counted(const std::vector<std::string>& columns) {
  for (const auto first : {std::size_t{0}, std::size_t{1}}) {
    auto next = first;
    if (std::ranges::all_of(columns,
                            [&](const auto& one) { return one == fmt::to_string(next++); }))
      return true;
  }
  return false;
}

// A file without a header would lose its first sample, whose numbers would be names.
void check_names(const std::vector<std::string>& columns, const std::string& target,
                 const std::string& path, std::int64_t line) {
  const auto is_number = [](const std::string& text) {
    double number = 0;
    const auto* last = text.data() + text.size();
    return std::from_chars(text.data(), last, number).ptr == last && !text.empty();
  };
  const bool named = std::ranges::find(columns, target) != columns.end();
  if (named || are_counted(columns) || !std::ranges::all_of(columns, is_number)) return;
  refuse_file(path, fmt::format("line {} has numbers only, and the first line is the header: begin "
                                "the file with the names of its columns; if these are the names, "
                                "name that of the target with data.target",
                                line));
}

// The cells of a line, without blanks around them.
std::vector<std::string> cells_in(const std::string& line, const std::string& path,
                                  std::int64_t number) {
  if (csv_trimmed(line).find('\r') != std::string_view::npos)
    refuse_file(path, fmt::format("line {} has carriage returns inside: save the file with line "
                                  "ends of Unix or Windows",
                                  number));
  auto parts = csv_cells(line);
  for (auto& part : parts) part = csv_trimmed(part);
  return parts;
}

csv_table read_table(const std::string& path, const std::string& target) {
  std::ifstream in{path};
  if (!in) refuse_file(path, "it cannot be opened");
  csv_table read;
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (number == 1 && line.starts_with(byte_order_mark)) line.erase(0, byte_order_mark.size());
    if (csv_trimmed(line).empty()) continue;
    auto parts = cells_in(line, path, number);
    if (read.columns.empty()) {
      read.columns = std::move(parts);
      check_names(read.columns, target, path, number);
      check_columns(read.columns, path);
      continue;
    }
    if (parts.size() != read.columns.size())
      refuse_file(path, fmt::format("line {} has {} values, the header {}", number, parts.size(),
                                    read.columns.size()));
    for (std::size_t i = 0; i < parts.size(); ++i)
      read.cells.push_back(number_in(parts[i], path, number, read.columns[i]));
  }
  if (read.columns.size() < 2) refuse_file(path, "it needs a header with two columns or more");
  return read;
}

std::size_t column_called(const std::string& name, const csv_table& read, const std::string& path) {
  const auto found = std::ranges::find(read.columns, name);
  if (found != read.columns.end()) return static_cast<std::size_t>(found - read.columns.begin());
  refuse_file(path, fmt::format("there is no column \"{}\"; there are {}", name,
                                fmt::join(read.columns, ", ")));
}

using tensor_pair = std::pair<at::Tensor, at::Tensor>;

/// Reads the files of one data module. The training says which columns there are: its file, or the
/// state that a checkpoint has. Without either the first file does.
class csv_reader {
public:
  explicit csv_reader(std::string target) : target_(std::move(target)) {}

  /// The columns and the target's name, as JSON text; empty before a file was read, and for names
  /// that are not UTF-8.
  const std::string& state() const { return state_; }

  enum class known_columns : std::uint8_t { replaced, final };

  /// Takes the columns of a checkpoint. Returns whether those of a file that was read before were
  /// others; where they are `final`, they are refused.
  bool load_state(const std::string& text, known_columns before) {
    auto [columns, at] = columns_in(text);
    if (!target_.empty() && target_ != columns[at])
      throw user_error(errc::bad_configuration,
                       fmt::format("the checkpoint learned the column \"{}\", and data.target is "
                                   "\"{}\": leave data.target out, or give it the same",
                                   columns[at], target_));
    const bool changes = !columns_.empty() && (columns_ != columns || at_ != at);
    if (changes && before == known_columns::final)
      refuse_file(
          first_,
          fmt::format("its columns, {} with the target \"{}\", are not in the checkpoint's order, "
                      "{} with the target \"{}\": give it these",
                      fmt::join(columns_, ", "), columns_[at_], fmt::join(columns, ", "),
                      columns[at]));
    if (columns_.empty() || changes) first_ = "the checkpoint";
    at_ = at;
    columns_ = std::move(columns);
    state_ = text;
    return changes;
  }

  /// Inputs and targets, both float. Columns are found by their names.
  tensor_pair operator()(const std::string& path) {
    const auto read = read_table(path, target_);
    if (columns_.empty()) begin_with(read, path);
    const auto order = order_of(read, path);
    const auto width = order.size();
    const auto rows = static_cast<std::int64_t>(read.cells.size() / width);
    auto inputs = at::empty({rows, static_cast<std::int64_t>(width - 1)}, at::kFloat);
    auto targets = at::empty({rows, 1}, at::kFloat);
    auto* input = inputs.mutable_data_ptr<float>();
    auto* wanted = targets.mutable_data_ptr<float>();
    for (std::size_t row = 0; row < read.cells.size(); row += width)
      for (std::size_t i = 0; i < width; ++i)
        (i == at_ ? *wanted++ : *input++) = static_cast<float>(read.cells[row + order[i]]);
    return {inputs, targets};
  }

private:
  static std::pair<std::vector<std::string>, std::size_t> columns_in(const std::string& state) {
    const auto refuse = [](std::string_view why) {
      throw user_error(errc::checkpoint,
                       fmt::format("the checkpoint does not say which columns its CSV file had "
                                   "({}): take another checkpoint",
                                   why));
    };
    std::vector<std::string> columns;
    std::string target;
    try {
      const auto all = nlohmann::json::parse(state);
      columns = all.at("columns").get<std::vector<std::string>>();
      target = all.at("target").get<std::string>();
    } catch (const nlohmann::json::exception& error) {
      refuse(error.what());
    }
    const auto at = std::ranges::find(columns, target);
    if (at == columns.end()) refuse("its target is none of them");
    return {columns, static_cast<std::size_t>(at - columns.begin())};
  }

  void begin_with(const csv_table& read, const std::string& path) {
    at_ = target_.empty() ? read.columns.size() - 1 : column_called(target_, read, path);
    columns_ = read.columns;
    first_ = path;
    try {
      state_ = nlohmann::json{{"columns", columns_}, {"target", columns_[at_]}}.dump();
    } catch (const nlohmann::json::exception&) {
    }
  }

  std::vector<std::size_t> order_of(const csv_table& read, const std::string& path) const {
    std::vector<std::size_t> order(columns_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (read.columns == columns_) return order;
    std::ranges::transform(columns_, order.begin(), [&](const std::string& name) {
      return column_called(name, read, path);
    });
    for (const auto& name : read.columns)
      if (std::ranges::find(columns_, name) == columns_.end())
        refuse_file(path, fmt::format("the columns \"{}\" are not those of {}: give both files the "
                                      "same columns",
                                      name, first_));
    return order;
  }

  std::string target_, first_, state_;
  std::vector<std::string> columns_;
  std::size_t at_ = 0;  // the column of the targets
};

bool are_labels(const at::Tensor& targets) {
  return targets.numel() > 0 && targets.eq(targets.round()).all().item<bool>() &&
         targets.min().item<double>() >= 0;
}

// --- tensors -------------------------------------------------------------------------------------

tensor_pair read_pair(const std::string& path) {
  std::map<std::string, at::Tensor> found;
  for (const auto& blob : read_safetensors(regular_file{path}).tensors) try {
      found.emplace(blob.name, tensor_of(blob));
    } catch (const std::invalid_argument& error) {
      refuse_file(path, error.what());
    }
  for (const auto* name : {"inputs", "targets"})
    if (!found.contains(name)) {
      std::vector<std::string> names;
      for (const auto& [known, tensor] : found) names.push_back(known);
      refuse_file(path,
                  fmt::format("it has no tensor \"{}\"; it has {}", name, fmt::join(names, ", ")));
    }
  auto targets = found["targets"];
  if (!targets.is_floating_point() && !targets.is_complex()) targets = targets.to(at::kLong);
  return {found["inputs"], targets};
}

// --- the module ----------------------------------------------------------------------------------

class file_data final : public data_module {
public:
  using reader = std::function<tensor_pair(const std::string& path)>;
  file_data(std::string kind, std::string ending, std::string path, reader read,
            std::shared_ptr<csv_reader> table = nullptr)
      : kind_(std::move(kind)),
        ending_(std::move(ending)),
        path_(std::move(path)),
        read_(std::move(read)),
        table_(std::move(table)) {}

  std::string name() const override { return kind_; }
  void prepare_data() override {
    if (path_.empty())
      throw user_error(errc::bad_configuration,
                       fmt::format("{} data: name the file or folder with --data-dir", kind_));
    std::error_code ignored;
    if (!fs::exists(path_, ignored)) refuse_file(path_, "there is no such file or folder");
  }
  void setup(troupe::stage purpose) override { purpose_ = purpose; }
  std::string state() const override {
    const std::lock_guard lock{guard_};
    if (!table_ || !labels_ || table_->state().empty()) return table_ ? table_->state() : "";
    auto all = nlohmann::json::parse(table_->state());
    all["labels"] = *labels_;
    return all.dump();
  }
  void load_state(const std::string& json) override {
    using known = csv_reader::known_columns;
    const std::lock_guard lock{guard_};
    if (!table_) return;
    const bool reorders = table_->load_state(json, trains() ? known::final : known::replaced);
    const auto labels = labels_in(json);
    if (!reorders && (trains() || !labels || labels_ == labels)) return;
    parts_.clear();  // they are read again, as the training file was
    labels_ = labels;
  }
  dataset_ptr train() override { return open("train"); }
  std::vector<dataset_ptr> validation() override {
    return first_of("validation", "test", targets::read);
  }
  std::vector<dataset_ptr> test() override { return first_of("test", "validation", targets::read); }
  std::vector<dataset_ptr> predict() override {
    return first_of("test", "validation", targets::ignored);
  }

private:
  enum class targets : std::uint8_t { read, ignored };

  bool trains() const { return purpose_ == stage::train; }

  // Unset: the state of an earlier version.
  static std::optional<bool> labels_in(const std::string& state) {
    const auto all = nlohmann::json::parse(state);
    const auto found = all.find("labels");
    if (found == all.end() || !found->is_boolean()) return {};
    return found->get<bool>();
  }

  bool is_folder() const {
    std::error_code ignored;
    return fs::is_directory(path_, ignored);
  }

  std::vector<dataset_ptr> first_of(const std::string& one, const std::string& other, targets use) {
    if (!is_folder())
      return trains() ? std::vector<dataset_ptr>{} : std::vector<dataset_ptr>{open("train", use)};
    for (const auto& part : {one, other})
      if (auto found = open(part, use)) return {found};
    const auto purpose = purpose_.load();
    if (purpose == stage::start || trains()) return {};
    refuse_file(path_,
                fmt::format("it has no {0}{2} and no {1}{2}, and `{3}` needs one of them: add it, "
                            "or name a file with --data-dir",
                            one, other, ending_, to_string(purpose)));
  }

  // Null: a folder without this part. The training targets say whether all targets are labels.
  dataset_ptr open(const std::string& part, targets use = targets::read) {
    prepare_data();
    const std::lock_guard lock{guard_};
    if (kind_ == "csv" && !labels_ && part != "train") load("train", targets::read);
    return load(part, use);
  }

  dataset_ptr load(const std::string& part, targets use) {
    auto& kept = parts_[part];
    if (kept) return kept;
    const auto file = is_folder() ? (fs::path{path_} / (part + ending_)).string() : path_;
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) {
      if (part == "train" && trains()) refuse_file(path_, "it has no train" + ending_);
      return nullptr;
    }
    auto [inputs, wanted] = read_(file);
    if (inputs.dim() == 0 || inputs.size(0) == 0) refuse_file(file, "it has no samples");
    if (wanted.dim() == 0 || wanted.size(0) != inputs.size(0))
      refuse_file(file, fmt::format("it has {} samples in \"inputs\" and {} in \"targets\": give "
                                    "one row of each per sample",
                                    inputs.size(0), wanted.dim() == 0 ? 0 : wanted.size(0)));
    if (kind_ == "csv") {
      if (!labels_) labels_ = are_labels(wanted);
      if (*labels_ && !are_labels(wanted)) {
        if (use == targets::ignored) return tensor_dataset({inputs, wanted});
        refuse_file(file,
                    "its targets are no whole numbers from 0, as the training targets are: give "
                    "the labels, or use predict, which reads none");
      }
      if (*labels_) wanted = wanted.to(at::kLong).squeeze(1);
    }
    return kept = tensor_dataset({inputs, wanted});
  }

  std::string kind_, ending_, path_;
  reader read_;
  const std::shared_ptr<csv_reader> table_;  // null: no csv
  std::atomic<stage> purpose_ = stage::start;
  mutable std::mutex guard_;
  std::optional<bool> labels_;
  std::map<std::string, dataset_ptr> parts_;
};

}  // namespace

data_ptr csv_data(std::string path, std::string target) {
  const auto table = std::make_shared<csv_reader>(std::move(target));
  return std::make_shared<file_data>(
      "csv", ".csv", std::move(path), [table](const std::string& file) { return (*table)(file); },
      table);
}

data_ptr tensor_file_data(std::string path) {
  return std::make_shared<file_data>("tensors", ".safetensors", std::move(path), &read_pair);
}

}  // namespace troupe
