// Where in a run a hook happens.
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

namespace troupe {

/// The part of a run that a hook belongs to.
enum class stage : std::uint8_t {
  start,   ///< setup and teardown, whatever the purpose of the run
  sanity,  ///< the sanity check: a little validation before training
  train,
  validate,
  test,
  predict,
  call,  ///< `session.spawn(function, ...)`
};
std::string_view to_string(stage s);
inline std::ostream& operator<<(std::ostream& out, stage s) { return out << to_string(s); }

/// A number without a meaning here. Written as null.
inline constexpr std::int64_t undefined = -1;

/// Steps count optimizer steps, batches count micro-batches within an epoch (or within a pass over
/// one evaluation loader), epochs count passes; all from 0. `step` is the number of optimizer steps
/// done before the hook.
struct position {
  troupe::stage stage = stage::start;
  std::int64_t epoch = undefined;
  std::int64_t step = undefined;
  std::int64_t batch = undefined;
  std::int32_t dataloader = 0;
  std::int32_t optimizer = 0;
  std::int32_t split = 0;  ///< of the batch, with truncated back-propagation through time

  friend bool operator==(const position&, const position&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, position& x) {
  return f(x.stage, x.epoch, x.step, x.batch, x.dataloader, x.optimizer, x.split);
}

}  // namespace troupe
