#include "actors/time_knob.hpp"

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
}

}  // namespace

deadlines derive(const time_knob& knob) {
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
}

}  // namespace troupe
