#include "apps/troupe/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::program {

namespace {

constexpr std::chrono::milliseconds slice{100};
constexpr int slices_max = 10;  // of a wait after `end_soon`

// The characters of each line, without the sequences that only move the cursor or clear.
std::vector<std::size_t> printed_lengths(std::string_view text) {
  std::vector<std::size_t> lines{0};
  bool in_sequence = false;
  for (const char c : text) {
    if (c == '\x1b') {
      in_sequence = true;
    } else if (in_sequence) {
      in_sequence = c == '[' || c == ';' || (c >= '0' && c <= '9');
    } else if (c == '\n') {
      lines.push_back(0);
    } else {
      ++lines.back();
    }
  }
  return lines;
}

std::string to_row_above(std::size_t rows) {
  return rows == 0 ? "\r" : fmt::format("\r\x1b[{}A", rows);
}

}  // namespace

void console::result(std::string_view text) {
  std::string line{text};
  out_(line += '\n');
}

void console::note(std::string_view text) {
  if (!quiet_) say("", text);
}

void console::answer(std::string_view text) { say("", text); }

void console::error(std::string_view text) {
  say(facts_.colour ? "\x1b[31merror:\x1b[0m " : "error: ", text);
}

void console::warning(std::string_view text) {
  say(facts_.colour ? "\x1b[33mwarning:\x1b[0m " : "warning: ", text);
}

// The right to write a line; not locked: the line is dropped.
std::unique_lock<std::timed_mutex> console::turn(reader is) {
  std::unique_lock hold{guard_, std::defer_lock};
  while (!hold.try_lock_for(slice))
    if (waits_ && is == reader::not_awaited) return hold;
  if (!wait_for_room(is)) hold.unlock();
  return hold;
}

// The caller holds the guard.
bool console::wait_for_room(reader is) {
  bool room = facts_.has_room({});
  if (!room && (is == reader::not_awaited || (ends_soon_ && dropped_))) return false;
  waits_ = true;
  for (int waited = 0; !room && waited < slices_max; waited += ends_soon_ ? 1 : 0)
    room = facts_.has_room(slice);
  waits_ = false;
  dropped_ = !room;
  return room;
}

void console::progress(std::string_view text) {
  const auto hold = turn(reader::not_awaited);
  if (!hold) return;
  if (!facts_.live || !text.starts_with('\r')) return err_(text);
  text.remove_prefix(1);
  auto lengths = printed_lengths(text);
  // A new text that covers the old one is written over it: clearing it first would flicker.
  const auto rows = live_rows();
  auto all = rows <= lengths.size() ? to_row_above(rows - 1) : clear_live_text();
  live_ = std::move(lengths);
  err_(all += text);
}

// The rows of the live text, the cursor's included. A terminal that becomes narrower wraps its
// lines again; the cursor stays at the end of the last one.
std::size_t console::live_rows() const {
  const auto columns = std::max<std::size_t>(facts_.columns(), 1);
  std::size_t rows = 0;
  for (const auto length : live_) rows += length == 0 ? 1 : (length - 1) / columns + 1;
  return std::max<std::size_t>(rows, 1);
}

std::string console::clear_live_text() {
  const auto above = live_rows() - 1;
  live_.clear();
  return to_row_above(above) + (above == 0 ? "\x1b[K" : "\x1b[J");
}

// Clears a live text first; the next `progress` writes it again.
void console::say(std::string_view before, std::string_view text) {
  const auto hold = turn(handlers_ > 0 ? reader::not_awaited : reader::awaited);
  if (!hold) return;
  std::string line{facts_.live ? clear_live_text() : ""};
  line += before;
  line += text;
  err_(line += '\n');
}

}  // namespace troupe::program
