#include "actors/time_knob.hpp"

<<<<<<< HEAD
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "messages/failure.hpp"

namespace troupe {

using namespace std::chrono_literals;

namespace {

std::string milliseconds(std::chrono::nanoseconds t) {
  return fmt::format("{} ms", std::chrono::duration<double, std::milli>(t).count());
=======
#include "messages/failure.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe {

namespace {

using namespace std::chrono_literals;

double seconds(deadlines::duration d) { return std::chrono::duration<double>(d).count(); }

void refuse_unless_inside(std::string_view inner, deadlines::duration i, std::string_view outer,
                          deadlines::duration o) {
  if (i >= o)
    throw user_error(errc::bad_configuration,
                     fmt::format("{} ({} s) must end before {} ({} s): raise time.hook_limit or "
                                 "lower time.detect",
                                 inner, seconds(i), outer, seconds(o)));
>>>>>>> fit
}

}  // namespace

deadlines derive(const time_knob& knob) {
<<<<<<< HEAD
  const auto detect = knob.detect;
  if (detect <= 0ns || detect > 1h)
    throw user_error(errc::bad_configuration,
                     fmt::format("time.detect is {}: it must be above 0 and at most an hour",
                                 milliseconds(detect)));
  const auto hook = knob.hook_limit == 0ns ? 600 * detect : knob.hook_limit;
  if (hook < detect)
    throw user_error(
        errc::bad_configuration,
        fmt::format("time.hook_limit is {}, less than time.detect ({}): a hook would be "
                    "reported before anyone looks at it",
                    milliseconds(hook), milliseconds(detect)));
  deadlines limits;
  limits.tick = detect;
  limits.hook = hook;
  limits.collective = hook + 4 * detect;
  limits.form = std::max<std::chrono::nanoseconds>(20 * detect, 10s);
  limits.settle = detect;
  limits.close = 4 * detect;
  limits.teardown = 4 * detect;
  limits.orderly_teardown = hook + 4 * detect;
  limits.flush = hook;
  check(limits);
  return limits;
}

void check(const deadlines& limits) {
  struct pair {
    std::string_view inner;
    std::chrono::nanoseconds inner_value;
    std::string_view outer;
    std::chrono::nanoseconds outer_value;
  };
  const std::array pairs{
      pair{"tick", limits.tick, "hook", limits.hook},
      pair{"hook + tick", limits.hook + limits.tick, "collective", limits.collective},
      pair{"settle", limits.settle, "close", limits.close},
      pair{"tick", limits.tick, "teardown", limits.teardown},
      pair{"hook", limits.hook, "orderly_teardown", limits.orderly_teardown},
  };
  for (const auto& p : pairs)
    if (p.inner_value > p.outer_value)
      throw user_error(
          errc::bad_configuration,
          fmt::format("the deadline {} ({}) outlasts {} ({}), which should end it", p.inner,
                      milliseconds(p.inner_value), p.outer, milliseconds(p.outer_value)));
=======
  const auto d = knob.detect;
  deadlines all;
  all.detect = d;
  all.tick = d;
  all.vote = 2 * d;
  all.form = std::max<deadlines::duration>(4 * d, 2s);
  all.close = 4 * d;
  all.teardown = 4 * d;
  all.hook_limit = knob.hook_limit > 0ns ? knob.hook_limit : 600 * d;
  all.collective = all.hook_limit + 2 * d;
  all.flush = all.hook_limit;
  return all;
}

void check(const time_knob& knob) {
  if (knob.detect < 1ms || knob.detect > 1h)
    throw user_error(
        errc::bad_configuration,
        fmt::format("time.detect is {} s, but must be from 0.001 to 3600 s", seconds(knob.detect)));
  constexpr auto year = 365 * 24h;
  if (knob.hook_limit < 0ns || knob.hook_limit > year)
    throw user_error(errc::bad_configuration,
                     fmt::format("time.hook_limit is {} s, but must be 0 (600 times time.detect) "
                                 "or up to a year",
                                 seconds(knob.hook_limit)));
  const auto all = derive(knob);
  refuse_unless_inside("a look at the hook in flight (time.detect)", all.tick, "time.hook_limit",
                       all.hook_limit);
  refuse_unless_inside("a hook at its limit", all.hook_limit + all.tick,
                       "the deadline of collectives", all.collective);
  refuse_unless_inside("a vote", all.vote, "closing a generation", all.close);
>>>>>>> fit
}

}  // namespace troupe
