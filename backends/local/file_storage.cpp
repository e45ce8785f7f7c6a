#include "backends/local/file_storage.hpp"

#include "backends/local/file_operations.hpp"
#include "backends/storage/storage_queue.hpp"
#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

namespace troupe {

namespace {

struct open_folder {
  explicit open_folder(int fd) : fd(fd) {}
  ~open_folder() { ::close(fd); }
  open_folder(const open_folder&) = delete;
  open_folder& operator=(const open_folder&) = delete;
  const int fd;
};

// A signal's handler must not run on the storage thread.
class signals_blocked {
public:
  signals_blocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

private:
  sigset_t before_{};
};

}  // namespace

// Shared with the thread, which may outlive the storage when it is destroyed inside an answer.
struct file_storage::state {
  std::filesystem::path root;
  std::mutex guard;
  std::condition_variable changed;
  storage_queue waiting;
  bool closing = false;
  std::thread thread;

  void run() {
    std::unique_lock lock{guard};
    while (true) {
      changed.wait(lock, [&] { return closing || !waiting.empty(); });
      if (waiting.empty()) return;
      auto next = waiting.pop();
      lock.unlock();
      auto result = next.op ? perform(root, *next.op) : storage_queue::refusal();
      // Releases the written memory before the answer is sent.
      next.op.reset();
      next.done(std::move(result));
      next.done = nullptr;
      lock.lock();
    }
  }
};

file_storage::file_storage(const std::string& root) : state_(std::make_shared<state>()) {
  auto path = std::filesystem::absolute(root).lexically_normal();
  state_->root = path.has_filename() || path == path.root_path() ? path : path.parent_path();
  const signals_blocked now;
  state_->thread = std::thread{[held = state_] { held->run(); }};
}

file_storage::~file_storage() {
  {
    const std::lock_guard lock{state_->guard};
    state_->closing = true;
  }
  state_->changed.notify_all();
  if (state_->thread.get_id() == std::this_thread::get_id())
    state_->thread.detach();
  else
    state_->thread.join();
}

void file_storage::submit(storage_op op, std::function<void(storage_result)> done) {
  {
    const std::lock_guard lock{state_->guard};
    state_->waiting.push(std::move(op), std::move(done));
  }
  state_->changed.notify_one();
}

std::shared_ptr<const void> file_storage::claim(const std::string& path, bool create) {
  if (create && perform(state_->root, storage_ops::make_folder{path}).error) return {};
  const auto folder = state_->root / path;
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return {};
  auto kept = std::make_shared<const open_folder>(opened);
  if (::flock(opened, LOCK_EX | LOCK_NB) == 0) return kept;
  if (errno != EWOULDBLOCK) return {};
  throw user_error(errc::bad_configuration,
                   fmt::format("{}: a job of another session or program writes its checkpoints "
                               "there; choose another run_folder, or wait until that job has ended",
                               folder.string()));
}

}  // namespace troupe
