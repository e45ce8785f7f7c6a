#include "apps/service/journal.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
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

journal::journal(std::string path) {
  bool whole = true;
  if (std::ifstream before{path}; before) {
    for (std::string text; std::getline(before, text);) {
      whole = !before.eof();
      const auto read = json::parse(text, nullptr, false);
      const bool good = read.is_object() && read.contains("kind") && read["kind"].is_string();
      if (good) keep({read["kind"].get<std::string>(), text});
    }
  }
  file_.open(path, std::ios::app);
  if (!whole) file_ << '\n';
}

void journal::add(const std::string& kind, const json& what) {
  json all{{"kind", kind}, {"time", now_as_text()}};
  all.update(what);
  auto text = all.dump(-1, ' ', false, json::error_handler_t::replace);
  // A full disk costs the line, not the job; the next line is tried again.
  file_ << text << std::endl;
  file_.clear();
  keep({kind, std::move(text)});
  wake();
}

void journal::keep(line one) {
  lines_.push_back(std::move(one));
  if (lines_.size() <= kept_max) return;
  lines_.pop_front();
  ++first_;
}

std::string journal::events_after(std::uint64_t& after) const {
  std::string text;
  auto number = std::max(after + 1, first_);
  for (; number <= newest() && text.size() < piece_max; ++number) {
    const auto& one = lines_[number - first_];
    text += fmt::format("id: {}\nevent: {}\ndata: {}\n\n", number, one.kind, one.json);
    after = number;
  }
  return text;
}

std::shared_ptr<void> journal::watch(std::function<void()> wake) {
  auto key = std::make_shared<std::function<void()>>(std::move(wake));
  watchers_.push_back(key);
  return key;
}

void journal::wake() {
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    const auto one = it->lock();
    it = one ? std::next(it) : watchers_.erase(it);
    if (one) (*one)();
  }
}

}  // namespace service
