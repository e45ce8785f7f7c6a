#include "troupe/detail/metric_accumulator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <tuple>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

using table = std::map<std::string, log_reduction>;

// One line per name: the reduction's number, the name. A name may contain anything but a newline.
std::string text_of(const table& names) {
  std::string text;
  for (const auto& [name, how] : names) text += fmt::format("{}{}\n", static_cast<int>(how), name);
  return text;
}

table table_of(std::string_view text) {
  table names;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    if (line.size() > 1)
      names.emplace(std::string{line.substr(1)}, static_cast<log_reduction>(line[0] - '0'));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

struct header {
  std::uint64_t said_hash = 0;
  std::uint64_t said_bytes = 0;
  std::uint64_t known_hash = 0;
  std::uint64_t known_bytes = 0;
  std::uint64_t lacked_samples = 0;  // of some batch
};

std::vector<header> exchange_headers(const byte_exchange& exchange, const std::string& said,
                                     const std::string& known, bool lacked_samples) {
  const std::array<header, 1> mine{header{XXH3_64bits(said.data(), said.size()), said.size(),
                                          XXH3_64bits(known.data(), known.size()), known.size(),
                                          lacked_samples}};
  std::vector<header> all;
  for (const auto& bytes : exchange(std::as_bytes(std::span{mine}))) {
    auto& one = all.emplace_back();
    std::memcpy(&one, bytes.data(), sizeof one);
  }
  return all;
}

std::vector<table> exchange_tables(const byte_exchange& exchange, std::string mine,
                                   std::size_t width) {
  mine.resize(width, '\n');
  std::vector<table> all;
  for (const auto& bytes : exchange(std::as_bytes(std::span{mine.data(), mine.size()})))
    all.push_back(table_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  return all;
}

[[noreturn]] void refuse(const std::vector<table>& said) {
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    std::vector<std::string> names;
    for (const auto& [name, how] : said[rank]) names.push_back('"' + name + '"');
    lines.push_back(
        fmt::format("rank {} logged {}", rank,
                    names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "))));
  }
  throw user_error(errc::job_failed,
                   fmt::format("{}: ranks that log between two reductions must log the same names "
                               "with the same reduction",
                               fmt::join(lines, "; ")));
}

// Whether ranks with samples of each batch logged the same names, and the others some of these.
bool lacks_explained(const std::vector<table>& said, const std::vector<header>& ranks) {
  const table* whole = nullptr;
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (ranks[r].lacked_samples != 0 || said[r].empty()) continue;
    if (whole && *whole != said[r]) return false;
    whole = &said[r];
  }
  return whole && std::ranges::all_of(
                      said, [&](const table& one) { return std::ranges::includes(*whole, one); });
}

double lesser(double a, double b) { return b < a || std::isnan(b) ? b : a; }
double greater(double a, double b) { return b > a || std::isnan(b) ? b : a; }

void join(metric_accumulator::entry& into, const metric_accumulator::entry& more) {
  if (more.count == 0) return;
  into.least = into.count == 0 ? more.least : lesser(into.least, more.least);
  into.most = into.count == 0 ? more.most : greater(into.most, more.most);
  into.sum += more.sum;
  into.count += more.count;
}

std::optional<double> result_of(const metric_accumulator::entry& e) {
  if (e.count == 0) return std::nullopt;
  switch (e.how) {
    case log_reduction::mean: return e.sum / e.count;
    case log_reduction::sum: return e.sum;
    case log_reduction::min: return e.least;
    case log_reduction::max: return e.most;
  }
  throw internal_error("metrics: unknown reduction");
}

}  // namespace

void metric_accumulator::add(std::string_view name, double sum, double count, log_reduction how) {
  if (name.empty() || name.find('\n') != std::string_view::npos)
    throw user_error(errc::job_failed, "log: a name is one line of text and not empty");
  const auto [place, fresh] = entries_.try_emplace(std::string{name}, entry{.how = how});
  auto& known = place->second;
  if (!(count >= 0))
    throw user_error(
        errc::job_failed,
        fmt::format("log(\"{}\"): its batch_size or count is {}: give 0, with which the "
                    "number does not count, or more",
                    name, count));
  if (known.how != how)
    throw user_error(errc::job_failed,
                     fmt::format("\"{}\" was logged with another reduction before: use one "
                                 "reduction per name",
                                 name));
  known.touched = true;
  if (count == 0) return;
  const auto number = how == log_reduction::sum ? sum : sum / count;
  join(known, {.how = how, .sum = sum, .count = count, .least = number, .most = number});
}

void metric_accumulator::agree(const byte_exchange& exchange) {
  table said, known;
  for (const auto& [name, e] : entries_) {
    known.emplace(name, e.how);
    if (e.touched && !ran_no_step()) said.emplace(name, e.how);
  }
  const auto said_text = text_of(said), known_text = text_of(known);
  const auto all = exchange_headers(exchange, said_text, known_text, batches_without_samples_ > 0);
  std::size_t widest = 0;
  const header* first = nullptr;
  bool differ = false, lack = false;
  for (const auto& one : all) {
    widest = std::max({widest, one.said_bytes, one.known_bytes});
    lack |= std::tie(one.known_hash, one.known_bytes) !=
            std::tie(all[0].known_hash, all[0].known_bytes);
    if (one.said_bytes == 0) continue;
    if (!first) first = &one;
    differ |=
        std::tie(one.said_hash, one.said_bytes) != std::tie(first->said_hash, first->said_bytes);
  }
  if (differ) {
    const auto tables = exchange_tables(exchange, said_text, widest);
    if (!lacks_explained(tables, all)) refuse(tables);
  }
  if (!lack) return;
  for (const auto& theirs : exchange_tables(exchange, known_text, widest))
    for (const auto& [name, how] : theirs) {
      if (const auto found = known.find(name); found != known.end() && found->second != how)
        refuse(exchange_tables(exchange, known_text, widest));
      known.emplace(name, how);
      entries_.try_emplace(name, entry{.how = how});
    }
}

metric_accumulator metric_accumulator::total(const byte_exchange& exchange) const {
  auto together = *this;
  together.agree(exchange);
  std::vector<double> mine;
  for (auto& [name, e] : together.entries_) {
    mine.insert(mine.end(), {e.sum, e.count, e.least, e.most});
    e = entry{.how = e.how, .touched = e.touched};
  }
  if (mine.empty()) return together;
  for (const auto& bytes : exchange(std::as_bytes(std::span{mine}))) {
    std::vector<double> theirs(mine.size());
    std::memcpy(theirs.data(), bytes.data(), mine.size() * sizeof(double));
    const auto* number = theirs.data();
    for (auto& [name, e] : together.entries_) {
      join(e, {e.how, number[0], number[1], number[2], number[3]});
      number += 4;
    }
  }
  return together;
}

metrics metric_accumulator::reduce(const byte_exchange& exchange) {
  const auto together = total(exchange);
  clear();
  metrics known;
  for (const auto& [name, e] : together.entries_)
    if (const auto number = result_of(e)) known.emplace(name, *number);
  return known;
}

std::string metric_accumulator::bytes() const {
  std::string out;
  const auto put = [&out](const auto& x) {
    out.append(reinterpret_cast<const char*>(&x), sizeof x);
  };
  put(batches_), put(batches_without_samples_);
  put(static_cast<std::uint64_t>(entries_.size()));
  for (const auto& [name, e] : entries_) {
    put(static_cast<std::uint64_t>(name.size()));
    out += name;
    put(e.how), put(e.touched), put(e.sum), put(e.count), put(e.least), put(e.most);
  }
  return out;
}

metric_accumulator metric_accumulator::parse(std::string_view& bytes) {
  const auto piece = [&bytes](std::size_t size) {
    if (size > bytes.size()) throw internal_error("metric_accumulator: its bytes are cut off");
    const auto first = bytes.substr(0, size);
    bytes.remove_prefix(size);
    return first;
  };
  const auto get = [&piece](auto& x) { std::memcpy(&x, piece(sizeof x).data(), sizeof x); };
  metric_accumulator read;
  get(read.batches_), get(read.batches_without_samples_);
  std::uint64_t count = 0, length = 0;
  for (get(count); count > 0; --count) {
    get(length);
    auto& e = read.entries_[std::string{piece(length)}];
    get(e.how), get(e.touched), get(e.sum), get(e.count), get(e.least), get(e.most);
  }
  return read;
}

metric_accumulator metric_accumulator::joined(const std::vector<metric_accumulator>& ranks) {
  metric_accumulator together;
  for (const auto& one : ranks)
    for (const auto& [name, e] : one.entries_)
      join(together.entries_.try_emplace(name, entry{.how = e.how}).first->second, e);
  return together;
}

metrics metric_accumulator::reduced(const std::vector<metric_accumulator>& ranks) {
  metrics known;
  for (const auto& [name, e] : joined(ranks).entries_)
    if (const auto number = result_of(e)) known.emplace(name, *number);
  return known;
}

void metric_accumulator::restore(const std::map<std::string, entry>& saved, bool numbers) {
  clear();
  for (const auto& [name, e] : saved) {
    auto& mine = entries_[name] = numbers ? e : entry{.how = e.how};
    mine.touched = false;
  }
}

}  // namespace troupe
