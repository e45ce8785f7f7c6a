#include "actors/time_knob.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {

using namespace std::chrono_literals;

void refuse_unless_inside(std::string_view inner, deadlines::duration i, std::string_view outer,
                          deadlines::duration o) {
  if (i >= o)
    throw user_error(errc::bad_configuration,
                     fmt::format("{} ({} s) must end before {} ({} s): raise "
                                 "time.hook_limit_seconds or lower time.detect_seconds",
                                 inner, std::chrono::duration<double>(i).count(), outer,
                                 std::chrono::duration<double>(o).count()));
}

}  // namespace

deadlines derive(const time_knob& knob) {
  const auto d = knob.detect;
  deadlines all;
  all.detect = d;
  all.tick = d;
  all.form = std::max<deadlines::duration>(4 * d, 10s);
  all.close = 4 * d;
  all.settle = d;
  all.teardown = 4 * d;
  all.hook_limit = knob.hook_limit > 0ns ? knob.hook_limit : 600 * d;
  all.form_most = 8 * all.hook_limit;
  all.collective = all.hook_limit + 2 * d;
  all.orderly_teardown = all.collective + 4 * d;
  all.flush = all.hook_limit;
  return all;
}

void check(const time_knob& knob) {
  if (knob.detect < 1ms || knob.detect > 1h)
    throw user_error(errc::bad_configuration,
                     fmt::format("time.detect_seconds is {}, but must be from 0.001 to 3600 s",
                                 std::chrono::duration<double>(knob.detect).count()));
  constexpr auto year = 365 * 24h;
  if (knob.hook_limit < 0ns || knob.hook_limit > year)
    throw user_error(errc::bad_configuration,
                     fmt::format("time.hook_limit_seconds is {}, but must be 0 (600 times "
                                 "time.detect_seconds) or up to a year",
                                 std::chrono::duration<double>(knob.hook_limit).count()));
  const auto all = derive(knob);
  refuse_unless_inside("the check of a running hook (time.detect_seconds)", all.tick,
                       "time.hook_limit_seconds", all.hook_limit);
  refuse_unless_inside("a hook at its limit", all.hook_limit + all.tick,
                       "the deadline of collectives", all.collective);
  refuse_unless_inside("the wait for a first cause", all.settle, "closing a generation", all.close);
}

}  // namespace troupe
