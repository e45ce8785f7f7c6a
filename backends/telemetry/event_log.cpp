#include "backends/telemetry/event_log.hpp"

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

namespace troupe {

std::string utc(std::chrono::system_clock::time_point when) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(when);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(when - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), rest.count());
}

event_log::event_log(std::string path, wall_clock now)
    : file_(std::move(path), line_file::start::append), now_(std::move(now)) {}

void event_log::on(const observation& what) {
  if (const auto* event = std::get_if<seen::lifecycle>(&what)) add(*event);
}

void event_log::finish(std::uint64_t dropped) {
  if (dropped > 0)
    add({.event = lifecycle_kind::observations_dropped,
         .details = {{"count", std::to_string(dropped)}}});
}

void event_log::add(const seen::lifecycle& what) {
  const auto all = lost_;
  ++lost_;
  if (all > 0)
    file_.add(line_of(
        {.event = lifecycle_kind::events_lost, .details = {{"count", std::to_string(all)}}}));
  lost_ = 1;
  file_.add(line_of(what));
  lost_ = 0;
}

std::string event_log::line_of(const seen::lifecycle& what) const {
  using nlohmann::ordered_json;
  const auto defined = [](auto x, bool is) { return is ? ordered_json(x) : ordered_json(nullptr); };
  const ordered_json line{
      {"time", utc(now_())},
      {"event", to_string(what.event)},
      {"rank", defined(what.rank, what.rank >= 0)},
      {"generation", defined(what.generation, what.generation > 0)},
      {"step", defined(what.step, what.step != undefined)},
      {"details", what.details},
  };
  // The text of a user's exception may not be UTF-8.
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace troupe
