// A thread of a rank, as LibTorch sees it.
#pragma once

namespace troupe {

/// Made at the top of a lane's (or a loader's) thread: LibTorch's operators started by this thread
/// run in it alone, so that ranks side by side do not fight over cores and sums have one order.
/// Only this thread changes: the host's threads, and threads started later, keep their number of
/// LibTorch threads; rounding and denormals stay as they are. Ends what it began when destroyed, in
/// the same thread.
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
