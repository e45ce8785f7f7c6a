#include "tests/conformance/replaceable_ranks.hpp"

#include "backends/processes/rendezvous_kinds.hpp"

#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {

namespace {

constexpr int patience_ms = 60'000;

/// One rank in its process: the lane is the main thread, and a second thread receives orders.
class rank_of_test {
public:
  rank_of_test(std::int32_t rank, std::int32_t world, std::shared_ptr<communicator_backend> backend,
               int socket)
      : rank_(rank), world_(world), backend_(std::move(backend)), socket_(socket) {}

  [[noreturn]] void live() {
    std::thread{[this] { listen(); }}.detach();
    for (;;) {
      const auto now = next();
      try {
        act(now);
      } catch (const std::exception& error) {
        report("error: " + std::string{error.what()});
      }
    }
  }

private:
  void listen() {
    for (rank_order what; read(socket_, &what, sizeof what) == sizeof what;) {
      const std::lock_guard hold{mutex_};
      if (what.what == rank_order::act::abort) {
        if (newest_) newest_->abort("the test ends this generation");
        continue;
      }
      orders_.push_back(what);
      came_.notify_all();
    }
    _exit(0);
  }
  rank_order next() {
    std::unique_lock hold{mutex_};
    came_.wait(hold, [&] { return !orders_.empty(); });
    const auto what = orders_.front();
    orders_.pop_front();
    return what;
  }

  void act(const rank_order& now) {
    switch (now.what) {
      case rank_order::act::open: return open(now.generation);
      case rank_order::act::reduce: return reduce(now);
      case rank_order::act::sum: return sum(now);
      case rank_order::act::forget:
        while (older_ && !older_->quiescent()) std::this_thread::yield();
        older_.reset();
        return report("forgotten");
      case rank_order::act::fill: ballast_.assign(now.bytes, '\1'); return report("filled");
      case rank_order::act::measure: return measure();
      case rank_order::act::abort: return;
    }
  }

  void open(std::uint64_t generation) {
    auto fresh = backend_->open({.job = job_id{3},
                                 .generation = generation_id{generation},
                                 .rank = rank_,
                                 .world = world_,
                                 .deadline = std::chrono::milliseconds{patience_ms}});
    std::shared_ptr<communicator> older;  // closed without the lock
    {
      const std::lock_guard hold{mutex_};
      older = std::exchange(older_, std::exchange(newest_, std::move(fresh)));
    }
    older.reset();
    report("opened");
  }

  // Memory of either kind, filled with rank + 1.
  std::shared_ptr<void> memory_for(const rank_order& now) {
    const auto count = now.bytes / sizeof(float);
    auto memory = now.registered ? newest_->allocate(now.bytes)
                                 : std::shared_ptr<void>{std::make_shared<float[]>(count)};
    std::fill_n(static_cast<float*>(memory.get()), count, static_cast<float>(rank_ + 1));
    return memory;
  }
  // Returns why the group was closed; empty if it was not.
  std::string all_reduce(const rank_order& now, void* data, reduction how) {
    try {
      newest_->all_reduce({data, now.bytes / sizeof(float), dtype::f32}, how)->wait();
    } catch (const generation_closed& error) {
      closed_at_ = replaceable_ranks::clock::now();
      return error.what();
    }
    return {};
  }
  void reduce(const rank_order& now) {
    const auto memory = memory_for(now);
    for (int i = 0;; ++i) {
      if (i == 3) report("at work");
      const auto why = all_reduce(now, memory.get(), reduction::max);
      if (!why.empty()) return report_closed(why);
    }
  }
  void sum(const rank_order& now) {
    const auto memory = memory_for(now);
    const auto why = all_reduce(now, memory.get(), reduction::sum);
    if (!why.empty()) return report_closed(why);
    const auto* data = static_cast<const float*>(memory.get());
    const auto count = static_cast<std::ptrdiff_t>(now.bytes / sizeof(float));
    const auto wanted = static_cast<float>(world_ * (world_ + 1) / 2);
    report(std::count(data, data + count, wanted) == count ? "ok" : "wrong");
  }

  void measure() {
    using std::filesystem::directory_iterator;
    rank_report now;
    now.descriptors = std::distance(directory_iterator{"/proc/self/fd"}, {});
    now.threads = std::distance(directory_iterator{"/proc/self/task"}, {});
    std::ifstream maps{"/proc/self/maps"};
    now.mappings =
        std::count(std::istreambuf_iterator<char>{maps}, std::istreambuf_iterator<char>{}, '\n');
    now.heap = static_cast<std::int64_t>(mallinfo2().uordblks);
    report("measured", now);
  }

  void report_closed(const std::string& why) {
    rank_report how;
    how.at = closed_at_.time_since_epoch().count();
    how.quiescent = newest_->quiescent();
    report("closed: " + why, how);
  }
  void report(const std::string& text, rank_report what = {}) {
    if (what.at == 0) what.at = replaceable_ranks::clock::now().time_since_epoch().count();
    std::copy_n(text.data(), std::min(text.size(), what.text.size() - 1), what.text.data());
    if (write(socket_, &what, sizeof what) != sizeof what) _exit(2);
  }

  const std::int32_t rank_;
  const std::int32_t world_;
  const std::shared_ptr<communicator_backend> backend_;
  const int socket_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<rank_order> orders_;
  std::shared_ptr<communicator> newest_;  // written by the lane, with the lock
  std::shared_ptr<communicator> older_;
  std::string ballast_;
  replaceable_ranks::clock::time_point closed_at_;
};

}  // namespace

replaceable_ranks::replaceable_ranks(const std::string& kind, std::int32_t world) {
  for (const auto& one : process_rendezvous_kinds())
    if (one->name() == kind) kind_ = one;
  REQUIRE(kind_);
  REQUIRE(kind_->unusable().empty());
  place_ = kind_->arrange({});
  processes_.resize(static_cast<std::size_t>(world));
}

replaceable_ranks::~replaceable_ranks() {
  for (auto& one : processes_) reap(one);
}

void replaceable_ranks::start(std::int32_t rank) {
  reap(rank);
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  file_descriptor ours{ends[0]};
  file_descriptor theirs{ends[1]};
  const auto parent = getpid();
  const auto pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(300);  // a rank that waits forever fails instead of hanging
    if (getppid() != parent) _exit(3);
    for (auto& other : processes_) other.orders = file_descriptor{};
    ours = file_descriptor{};
    rank_of_test{rank, world(), kind_->join(place_->address(), place_->descriptors()),
                 theirs.release()}
        .live();
  }
  at(rank) = {pid, std::move(ours)};
}

void replaceable_ranks::start_all() {
  for (std::int32_t rank = 0; rank < world(); ++rank) start(rank);
}

void replaceable_ranks::signal(std::int32_t rank, int number) {
  REQUIRE(kill(pid(rank), number) == 0);
}

replaceable_ranks::process replaceable_ranks::take(std::int32_t rank) {
  return std::exchange(at(rank), process{});
}

void replaceable_ranks::reap(process& which) {
  if (which.pid <= 0) return;
  kill(which.pid, SIGKILL);
  waitpid(which.pid, nullptr, 0);
  which = process{};
}

void replaceable_ranks::order(const process& whom, const rank_order& what) {
  REQUIRE(send(whom.orders.get(), &what, sizeof what, MSG_NOSIGNAL) == sizeof what);
}

rank_report replaceable_ranks::next_report(const process& whom) {
  rank_report said;
  pollfd from{whom.orders.get(), POLLIN, 0};
  REQUIRE(poll(&from, 1, patience_ms) == 1);
  REQUIRE(read(whom.orders.get(), &said, sizeof said) == sizeof said);
  return said;
}

void replaceable_ranks::all(const rank_order& what, const std::string& wanted,
                            std::int32_t without) {
  for (std::int32_t rank = 0; rank < world(); ++rank)
    if (rank != without) order(rank, what);
  for (std::int32_t rank = 0; rank < world(); ++rank) {
    if (rank == without) continue;
    INFO("rank " << rank);
    REQUIRE(next_report(rank).text.data() == wanted);
  }
}

}  // namespace troupe::testing
