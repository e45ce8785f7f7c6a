#include "apps/troupe/console.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::program {

namespace {

// Without the sequences that only move the cursor or clear.
std::size_t printed_length(std::string_view text) {
  std::size_t count = 0;
  bool in_sequence = false;
  for (const char c : text) {
    if (c == '\x1b') {
      in_sequence = true;
    } else if (in_sequence) {
      in_sequence = c == '[' || c == ';' || (c >= '0' && c <= '9');
    } else {
      ++count;
    }
  }
  return count;
}

}  // namespace

void console::result(std::string_view text) {
  std::string line{text};
  out_(line += '\n');
}

void console::note(std::string_view text) {
  if (!quiet_) say("", text);
}

void console::error(std::string_view text) {
  say(facts_.colour ? "\x1b[31merror:\x1b[0m " : "error: ", text);
}

void console::warning(std::string_view text) {
  say(facts_.colour ? "\x1b[33mwarning:\x1b[0m " : "warning: ", text);
}

void console::progress(std::string_view text) {
  const std::lock_guard hold{guard_};
  if (!facts_.live || !text.starts_with('\r')) return err_(text);
  text.remove_prefix(1);
  // In one row the new line covers the old one: clearing it first would flicker.
  const bool one_row = live_length_ <= std::max<std::size_t>(facts_.columns(), 1);
  auto line = one_row ? std::string{"\r"} : clear_live_line();
  live_length_ = printed_length(text);
  err_(line += text);
}

// A terminal that becomes narrower wraps the line again; the cursor stays at the line's end.
std::string console::clear_live_line() {
  const auto columns = std::max<std::size_t>(facts_.columns(), 1);
  const auto rows_above = live_length_ == 0 ? 0 : (live_length_ - 1) / columns;
  live_length_ = 0;
  if (rows_above == 0) return "\r\x1b[K";
  return fmt::format("\r\x1b[{}A\x1b[J", rows_above);
}

// Clears a live line first; the next `progress` writes it again.
void console::say(std::string_view before, std::string_view text) {
  const std::lock_guard hold{guard_};
  std::string line{facts_.live ? clear_live_line() : ""};
  line += before;
  line += text;
  err_(line += '\n');
}

}  // namespace troupe::program
