#include "backends/hier/steps.hpp"

#include "backends/collective/submission.hpp"

namespace troupe::hier {

work_result end_of(const work_ptr& what) {
  try {
    what->wait();
  } catch (const std::exception&) {  // poll returns the same error, with the missing ranks
  }
  return what->poll();
}

struct steps::task {
  body what;
  std::string text;
  work_result result;
  bool over() const { return result.status != work_status::pending; }
};

class steps::waited final : public work {
public:
  waited(std::shared_ptr<steps> in, std::shared_ptr<task> what)
      : in_(std::move(in)), what_(std::move(what)) {}

  work_result poll() override {
    const std::lock_guard hold{in_->mutex_};
    return what_->result;
  }
  void wait() override {
    in_->await([&] { return what_->over(); });
    if (auto how = poll(); how.status != work_status::ok) raise(how);
  }

private:
  const std::shared_ptr<steps> in_;
  const std::shared_ptr<task> what_;
};

void steps::await(const std::function<bool()>& over) const {
  std::unique_lock hold{mutex_};
  waiting_.store(true, std::memory_order_relaxed);
  changed_.wait(hold, over);
  waiting_.store(false, std::memory_order_relaxed);
}

void steps::await_idle() const {
  await([&] { return tasks_.empty(); });
}

void steps::close() {
  {
    const std::lock_guard hold{mutex_};
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void steps::begin() {
  thread_ = std::thread{[this] { run(); }};
}

work_ptr steps::add(body what, std::string text) {
  const std::lock_guard hold{mutex_};
  collectives::check_in_flight(text, tasks_.size());
  auto added = std::make_shared<task>();
  added->what = std::move(what);
  added->text = std::move(text);
  tasks_.push_back(added);
  changed_.notify_all();
  return std::make_shared<waited>(shared_from_this(), std::move(added));
}

void steps::run() {
  std::unique_lock hold{mutex_};
  for (;;) {
    changed_.wait(hold, [&] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto now = tasks_.front();
    hold.unlock();
    work_result result;
    try {
      result = now->what();
    } catch (const std::exception& error) {
      result = {work_status::aborted, error.what(), {}};
    }
    if (result.status != work_status::ok) failed_(result);
    hold.lock();
    now->what = nullptr;
    now->result = std::move(result);
    tasks_.pop_front();
    changed_.notify_all();
  }
}

std::string steps::oldest() const {
  const std::lock_guard hold{mutex_};
  return tasks_.empty() ? std::string{} : tasks_.front()->text;
}

}  // namespace troupe::hier
