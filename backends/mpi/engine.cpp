#include "backends/mpi/engine.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace troupe::mpi {

namespace {

using namespace std::chrono_literals;
constexpr auto shutdown_limit = 10s;

}  // namespace

engine::engine(placed_rank place) : place_(place), thread_([this] { run(); }) {}

engine::~engine() {
  ending_.store(true);
  wake();
  thread_.join();
}

void engine::add(std::shared_ptr<group> fresh) {
  {
    const std::lock_guard hold{bell_};
    fresh_.push_back(std::move(fresh));
  }
  wake();
}

std::string engine::share(const std::string& text) {
  std::array<char, 4096> said{};
  if (text.size() >= said.size())
    throw internal_error("too much to be said to all of mpirun's ranks");
  std::copy(text.begin(), text.end(), said.begin());
  for (int turns = 0; !ready_.load(); ++turns) relax(turns);
  const std::lock_guard hold{mutex_};
  if (!trouble_.empty()) throw user_error(errc::device, trouble_);
  MPI_Bcast(said.data(), static_cast<int>(said.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  return {said.data(), ::strnlen(said.data(), said.size())};
}

bool engine::pump() {
  if (!ready_.load()) return false;
  const std::unique_lock hold{mutex_, std::try_to_lock};
  if (!hold) return false;
  pump_all();
  return true;
}

void engine::wake() noexcept {
  {
    const std::lock_guard hold{bell_};
    woken_ = true;
  }
  rung_.notify_one();
}

void engine::relax(int turns) {
  constexpr int spins = 200;
  constexpr int yields = 5000;
  if (turns > yields)
    std::this_thread::sleep_for(20us);
  else if (turns > spins)
    ::sched_yield();
}

// Nothing to do: sleeps until `wake`, for at most 1 ms, because other ranks' messages do not wake.
void engine::rest(int idle_turns) {
  constexpr int eager_turns = 100;
  if (idle_turns < eager_turns && waiters_.load() == 0) {
    ::sched_yield();
    return;
  }
  std::unique_lock hold{bell_};
  const bool away = idle_turns < 0 || waiters_.load() > 0;
  rung_.wait_for(hold, away ? std::chrono::microseconds{1000} : std::chrono::microseconds{50},
                 [&] { return woken_; });
  woken_ = false;
}

void engine::run() {
  {
    const std::lock_guard hold{mutex_};
    if (!start()) refuse(trouble_);
    ready_.store(true);
  }
  int turns = 0;
  std::optional<std::chrono::steady_clock::time_point> until;
  for (;;) {
    bool busy = false;
    bool none = false;
    {
      const std::lock_guard hold{mutex_};
      busy = pump_all();
      none = groups_.empty();
    }
    if (ending_.load()) {
      const auto now = std::chrono::steady_clock::now();
      if (!until) until = now + shutdown_limit;
      if (none || now > *until || !trouble_.empty()) break;
    }
    turns = busy ? turns + 1 : -1;
    rest(turns);
  }
  const std::lock_guard hold{mutex_};
  finish();
}

bool engine::start() {
  int running = 0;
  MPI_Initialized(&running);
  int provided = 0;
  int wanted = MPI_THREAD_SERIALIZED;
  if (running == 0) {
    MPI_Init_thread(nullptr, nullptr, wanted, &provided);
    mine_ = true;
  } else {
    // The program initialised MPI, and its own threads may call MPI at any time.
    wanted = MPI_THREAD_MULTIPLE;
    MPI_Query_thread(&provided);
  }
  if (provided < wanted) {
    trouble_ = "this MPI does not allow calls from several threads";
    return false;
  }
  // Groups have communicators of their own; those of a program that started MPI stay as they are.
  if (mine_) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != place_.rank || size != place_.world) {
    trouble_ =
        fmt::format("MPI says this is rank {} of {}, the launcher's variables said rank {} of {}",
                    rank, size, place_.rank, place_.world);
    return false;
  }
  arithmetic_.emplace();
  return true;
}

void engine::refuse(const std::string& why) {
  for (const auto& one : groups_) one->abort(why);
}

// Moves all groups on. True while one of them has an operation or a message in flight.
bool engine::pump_all() {
  {
    const std::lock_guard hold{bell_};
    for (auto& one : fresh_) groups_.push_back(std::move(one));
    fresh_.clear();
  }
  if (!trouble_.empty()) {
    refuse(trouble_);
    return false;
  }
  // One at a time: Open MPI mixes up communicators that are made at once from the same one.
  while (opened_ < groups_.size() && (opened_ == 0 || groups_[opened_ - 1]->opened()))
    groups_[opened_++]->open(MPI_COMM_WORLD);
  bool busy = false;
  for (const auto& one : groups_) {
    try {
      one->pump(*arithmetic_);
    } catch (const std::exception& error) {  // no memory, or a broken invariant
      one->abort(error.what());
    }
    busy = busy || one->busy();
  }
  std::erase_if(groups_, [this](const std::shared_ptr<group>& one) {
    if (!one->over()) return false;
    one->free();
    --opened_;
    return true;
  });
  return busy;
}

// MPI_Finalize waits for all processes. So it is called only if all of them have closed their
// groups; a failed process has not.
void engine::finish() {
  if (!trouble_.empty() || !groups_.empty()) return;
  arithmetic_.reset();
  if (mine_) MPI_Finalize();
}

}  // namespace troupe::mpi
