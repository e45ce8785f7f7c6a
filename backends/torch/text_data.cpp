// Texts as data: windows of characters, each with the characters that follow.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>

#include "backends/torch/characters.hpp"
#include "troupe/data.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace characters {

std::vector<std::uint8_t> numbers_of(std::string_view text) {
  std::vector<std::uint8_t> numbers;
  numbers.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n')
      numbers.push_back(0);
    else if (c == '\t')
      numbers.push_back(1);
    else if (byte >= 32 && byte < 127)
      numbers.push_back(static_cast<std::uint8_t>(byte - 31));
    else if (byte >= 0xC0)  // the first byte of a character in UTF-8; others follow from 0x80 on
      numbers.push_back('?' - 31);
  }
  return numbers;
}

std::string text_of(std::span<const std::uint8_t> numbers) {
  std::string text;
  for (const auto number : numbers) text += number == 0 ? '\n' : static_cast<char>(number + 31);
  return text;
}

}  // namespace characters

namespace {

namespace fs = std::filesystem;

using numbers_ptr = std::shared_ptr<const std::vector<std::uint8_t>>;

class windows_of_text : public dataset {
public:
  windows_of_text(numbers_ptr text, std::vector<std::int64_t> starts)
      : text_(std::move(text)), starts_(std::move(starts)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(starts_.size()); }

  value get(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    auto inputs = at::empty({rows, characters::context}, at::kLong);
    auto targets = at::empty({rows, characters::context}, at::kLong);
    auto* input = inputs.mutable_data_ptr<std::int64_t>();
    auto* target = targets.mutable_data_ptr<std::int64_t>();
    for (const auto index : indices) {
      const auto first = text_->begin() + starts_.at(static_cast<std::size_t>(index));
      input = std::copy_n(first, characters::context, input);
      target = std::copy_n(first + 1, characters::context, target);
    }
    return value_tuple{{boxed(std::move(inputs)), boxed(std::move(targets))}};
  }

private:
  numbers_ptr text_;
  std::vector<std::int64_t> starts_;
};

class text_files final : public data_module {
public:
  explicit text_files(std::string path) : path_(std::move(path)) {}

  std::string name() const override { return "text"; }
  void prepare_data() override { files(); }
  void setup(troupe::stage) override { read(); }
  dataset_ptr train() override { return read(), train_; }
  std::vector<dataset_ptr> validation() override { return read(), std::vector{evaluation_}; }
  std::vector<dataset_ptr> test() override { return validation(); }
  std::vector<dataset_ptr> predict() override { return validation(); }

private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw user_error(errc::bad_configuration,
                     fmt::format("text: {}; install texts with `apt-get install fortunes`, or name "
                                 "a file or a folder of texts with --data-dir",
                                 what));
  }

  // File managers and editors leave such files in a folder, as .DS_Store.
  static bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

  // In a folder, indexes and other companions of a text have an extension; texts have none or .txt.
  std::vector<std::string> files() const {
    std::error_code problem;
    if (fs::is_regular_file(path_, problem)) return {path_};
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator{path_, problem}) {
      const auto extension = entry.path().extension();
      if (entry.is_regular_file() && !is_hidden(entry.path()) &&
          (extension.empty() || extension == ".txt"))
        found.push_back(entry.path().string());
    }
    if (found.empty())
      refuse(fmt::format("there is no file {}, and no text in a folder of that name", path_));
    std::ranges::sort(found);
    return found;
  }

  void read() {
    const std::lock_guard lock{mutex_};
    if (train_) return;
    std::vector<std::uint8_t> text;
    for (const auto& path : files()) {
      std::ifstream file{path, std::ios::binary};
      const std::string bytes{std::istreambuf_iterator<char>{file}, {}};
      if (!file) refuse(fmt::format("{} cannot be read", path));
      const auto some = characters::numbers_of(bytes);
      text.insert(text.end(), some.begin(), some.end());
    }
    split(std::make_shared<const std::vector<std::uint8_t>>(std::move(text)));
  }

  // The last tenth of each 160 windows is for evaluation, so that both parts have all kinds of
  // texts. A short text has its last window for evaluation.
  void split(const numbers_ptr& text) {
    constexpr std::int64_t period = 160, first_evaluated = 144;
    const auto windows = (static_cast<std::int64_t>(text->size()) - 1) / characters::context;
    if (windows < 2)
      refuse(fmt::format("{} holds {} characters, but at least {} are needed", path_, text->size(),
                         2 * characters::context + 1));
    std::vector<std::int64_t> trained, evaluated;
    for (std::int64_t w = 0; w < windows; ++w) {
      const bool last = windows <= first_evaluated && w + 1 == windows;
      (w % period >= first_evaluated || last ? evaluated : trained)
          .push_back(w * characters::context);
    }
    train_ = std::make_shared<windows_of_text>(text, std::move(trained));
    evaluation_ = std::make_shared<windows_of_text>(text, std::move(evaluated));
  }

  std::string path_;
  std::mutex mutex_;
  dataset_ptr train_, evaluation_;
};

}  // namespace

data_ptr text_data(std::string path) { return std::make_shared<text_files>(std::move(path)); }

}  // namespace troupe
