#include "backends/local/fault_drills.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "troupe/failure.hpp"

namespace troupe {

void carry_out_drill(const fault_drill& what) {
  switch (what.what) {
    case fault_drill::kind::raise: throw injected_fault(what.text);
    case fault_drill::kind::stall: std::this_thread::sleep_for(what.lasts); return;
    case fault_drill::kind::abort: std::abort();
    case fault_drill::kind::segv:
      std::signal(SIGSEGV, SIG_DFL);
      std::raise(SIGSEGV);
      return;
    case fault_drill::kind::exit: _exit(1);
    case fault_drill::kind::kill: kill(getpid(), SIGKILL); return;
    // Sent to this thread, so that it does not continue.
    case fault_drill::kind::stop: std::raise(SIGSTOP); return;
  }
}

}  // namespace troupe
