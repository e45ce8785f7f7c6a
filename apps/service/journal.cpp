#include "apps/service/journal.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

namespace service {

using nlohmann::json;

namespace {

constexpr std::size_t piece_max = 64 * 1024;

std::string now_as_text() {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(now - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), rest.count());
}

}  // namespace

journal::journal(std::string path) : path_(std::move(path)) { kept(); }

// The lines in memory, or else those of the file.
std::shared_ptr<journal::lines> journal::kept() {
  if (auto known = shared_.lock()) return known;
  auto all = std::make_shared<lines>();
  shared_ = all;
  newest_ = 0;
  std::ifstream file{path_};
  for (std::string text; std::getline(file, text);) {
    if (!text.starts_with('{') || !text.ends_with('}')) continue;
    keep(*all, std::move(text));
    ++newest_;
  }
  return all;
}

void journal::open() {
  held_ = kept();
  file_.open(path_, std::ios::app);
  if (!file_) {
    const auto why = errno;
    close();
    throw std::system_error(why, std::generic_category(), path_);
  }
  // A crash may have cut the last line.
  std::ifstream before{path_, std::ios::ate};
  if (before.tellg() > 0 && before.seekg(-1, std::ios::end) && before.get() != '\n') file_ << '\n';
  file_.flush();
  file_.clear();
  std::error_code ignored;
  size_ = std::filesystem::file_size(path_, ignored);
}

void journal::close() {
  file_.close();
  file_.clear();
  held_.reset();
}

// A full disk may take a part of the line, which is then cut off. The buffer keeps the rest, so the
// file is opened anew.
bool journal::write(const std::string& text) {
  file_ << text << std::endl;
  if (file_) {
    size_ += text.size() + 1;
    return true;
  }
  file_.close();
  file_.clear();
  std::error_code ignored;
  std::filesystem::resize_file(path_, size_, ignored);
  file_.open(path_, std::ios::app);
  return false;
}

void journal::add(const std::string& kind, const json& what) {
  const bool was_open = file_.is_open();
  try {
    if (!was_open) open();
  } catch (const std::system_error&) {
    return;
  }
  json all{{"kind", kind}, {"time", now_as_text()}};
  all.update(what);
  auto text = all.dump(-1, ' ', false, json::error_handler_t::replace);
  // A full disk costs the line, not the job; the next line is tried again.
  if (write(text)) {
    keep(*held_, std::move(text));
    ++newest_;
  }
  if (!was_open) close();
  wake();
}

void journal::keep(lines& all, std::string one) {
  all.push_back(std::move(one));
  if (all.size() > kept_max) all.pop_front();
}

std::string journal::events_after(std::uint64_t& after) {
  if (after >= newest_) return {};
  const auto all = kept();
  std::string text;
  const auto first = newest_ - all->size() + 1;
  auto number = std::max(after + 1, first);
  for (; number <= newest_ && text.size() < piece_max; ++number) {
    const auto& one = (*all)[number - first];
    after = number;
    const auto read = json::parse(one, nullptr, false);
    const bool good = read.is_object() && read.contains("kind") && read["kind"].is_string();
    if (!good) continue;
    const auto kind = read["kind"].get<std::string>();
    text += fmt::format("id: {}\nevent: {}\ndata: {}\n\n", number, kind, one);
  }
  return text;
}

std::shared_ptr<void> journal::watch(std::uint64_t after, std::function<void()> wake) {
  auto key = std::make_shared<watcher>(
      watcher{std::move(wake), after < newest_ ? kept() : shared_.lock()});
  watchers_.push_back(key);
  return key;
}

void journal::wake() {
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    const auto one = it->lock();
    it = one ? std::next(it) : watchers_.erase(it);
    if (one) one->wake();
  }
}

}  // namespace service
