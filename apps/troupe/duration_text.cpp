#include "apps/troupe/duration_text.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace troupe::program {

namespace {

constexpr std::size_t most_digits = 9;  // of the days
// The most days whose nanoseconds fit into 64 bits are 106,751.
constexpr std::int64_t most_days = 100'000;

// The number before the next colon, which it removes with it; negative if there is none.
std::int64_t take_number(std::string_view& text, std::size_t least, std::size_t most) {
  const auto end = std::min(text.find(':'), text.size());
  const auto digits = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  const bool fits = digits.size() >= least && digits.size() <= most;
  if (!fits || !std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) != 0; }))
    return -1;
  std::int64_t number = 0;
  for (const char c : digits) number = 10 * number + (c - '0');
  return number;
}

}  // namespace

std::chrono::seconds read_duration(std::string_view key, std::string_view text) {
  using namespace std::chrono;
  auto rest = text;
  const auto d = take_number(rest, 1, most_digits);
  const auto h = take_number(rest, 2, 2);
  const auto m = take_number(rest, 2, 2);
  const auto s = take_number(rest, 2, 2);
  const bool whole = rest.empty() && std::ranges::count(text, ':') == 3;
  if (whole && d > most_days)
    throw user_error(errc::bad_configuration,
                     fmt::format("{} = \"{}\": {} days are too many: give at most {}, or leave it "
                                 "out for no limit",
                                 key, text, d, most_days));
  const auto all = days{d} + hours{h} + minutes{m} + seconds{s};
  if (whole && d >= 0 && h >= 0 && m >= 0 && s >= 0 && all.count() > 0) return all;
  throw user_error(
      errc::bad_configuration,
      fmt::format("{} = \"{}\": give days, hours, minutes and seconds, more than none, "
                  "as DD:HH:MM:SS: 00:01:30:00 is an hour and a half",
                  key, text));
}

}  // namespace troupe::program
