// LibTorch's settings of a rank's thread.
#pragma once

namespace troupe {

/// Created at the start of a lane's (or a loader's) thread. LibTorch's operators called by this
/// thread then run in it alone, so that ranks do not compete for cores and sums have one order.
/// No other thread changes: the program's threads, and threads started later, keep their number of
/// LibTorch threads. Rounding and denormals do not change. The destructor, in the same thread,
/// restores the settings.
class lane_thread {
public:
  lane_thread();
  ~lane_thread();
  lane_thread(const lane_thread&) = delete;
  lane_thread& operator=(const lane_thread&) = delete;

private:
  int before_ = 0;
};

}  // namespace troupe
