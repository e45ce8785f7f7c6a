#include "backends/simulated/baton.hpp"

#include <utility>

#include "troupe/failure.hpp"

namespace troupe {

baton_thread::baton_thread() : thread_([this] { work(); }) {}

baton_thread::~baton_thread() {
  abandon();
  over_ = true;
  to_it_.release();
  thread_.join();
}

void baton_thread::work() {
  for (to_it_.acquire(); !over_; to_it_.acquire()) {
    try {
      const coverage_scope scope{coverage_};
      call_();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    call_ = nullptr;
    back_.release();
  }
}

bool baton_thread::hand_over() {
  resting_ = false;
  to_it_.release();
  back_.acquire();
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return !resting_;
}

bool baton_thread::run(std::function<void()> call) {
  if (resting_) throw internal_error("a baton thread got a call while another one rests");
  call_ = std::move(call);
  coverage_ = coverage::sink;
  return hand_over();
}

bool baton_thread::go_on() {
  if (!resting_) throw internal_error("no call of the baton thread rests");
  return hand_over();
}

void baton_thread::abandon() noexcept {
  abandoned_ = true;
  while (resting_) {
    try {
      hand_over();
    } catch (...) {  // the exception of an abandoned call
    }
  }
}

void baton_thread::rest() {
  if (!inside()) throw internal_error("only a call in the baton thread can rest");
  if (abandoned_) throw generation_closed("its rank is gone");
  resting_ = true;
  back_.release();
  to_it_.acquire();
  if (abandoned_) throw generation_closed("its rank is gone");
}

}  // namespace troupe
