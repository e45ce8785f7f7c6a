#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backends/launcher.hpp"
#include "backends/processes/arguments.hpp"
#include "backends/processes/join_info.hpp"
#include "backends/processes/process_looks.hpp"
#include "backends/processes/rank_acceptor.hpp"
#include "backends/processes/remote_process.hpp"
#include "backends/processes/spawning.hpp"

// glibc 2.36 lacks extern "C" around these.
extern "C" {
#include <sys/pidfd.h>
}

namespace troupe {

namespace asio = boost::asio;
using ip_tcp = asio::ip::tcp;
using error_code = boost::system::error_code;

namespace {

// MPI waits 10 s for ranks that have not closed their groups.
constexpr auto shutdown_limit = std::chrono::seconds{15};

process_end ended_as(failure_kind kind, std::string why) {
  return {.what = make_failure(kind, std::move(why))};
}

// The slot of one rank.
struct rank_slot {
  std::optional<ip_tcp::socket> idle;    // its process has connected and waits for its assignment
  std::shared_ptr<remote_process> life;  // the last one
  bool gone = false;                     // its process

  bool awaited() const { return life && !life->over() && !life->begun(); }
};

// Members are for the loop's thread unless their comment says otherwise.
class slot_table {
public:
  explicit slot_table(const placed_options& options)
      : options_(options), rank_slots_(static_cast<std::size_t>(options.world)) {}
  ~slot_table() {
    if (!thread_.joinable()) return;
    asio::post(loop_, [this] { leave(); });
    wait_for_child(shutdown_limit);
    asio::post(loop_, [this] { kill_child(); });
    wait_for_child(shutdown_limit);
    loop_.stop();
    thread_.join();
  }
  slot_table(const slot_table&) = delete;
  slot_table& operator=(const slot_table&) = delete;

  asio::io_context& loop() { return loop_; }

  // Any thread. Refuses impossible requests at once.
  void open() {
    const std::lock_guard lock(guard_);
    if (thread_.joinable()) return;
    door_.emplace(loop_, options_);
    child_lives_ = true;  // about to
    thread_ = std::thread([this] {
      start_child();
      door_->accept(
          [this](std::int32_t rank, ip_tcp::socket from) { come(rank, std::move(from)); });
      loop_.run();
    });
  }

  void place(const std::shared_ptr<remote_process>& life) {
    // A further process would replace one of the launcher's.
    if (life->what().who.number >= options_.world)
      return life->end(
          ended_as(failure_kind::start_failed,
                   "the launcher's processes are not started again; start the job again"));
    auto& at = rank_slot_of(*life);
    const bool gone = at.gone || (rank_slots_[0].gone && !at.idle);
    if (gone || (at.life && !at.life->over())) {
      life->end(
          ended_as(failure_kind::start_failed, gone ? "its process has ended and cannot be started "
                                                      "again; start the job again"
                                                    : "its process is another job's"));
      return;
    }
    at.life = life;
    if (at.idle) assign_rank(at);
  }

  // The rank has ended, in order.
  static void release(remote_process& life) {
    auto end = ended_as(failure_kind::exit, "");
    end.clean = true;
    life.end(std::move(end));
  }

  void give_up(remote_process& life) {
    if (life.over()) return;
    life.end({});
    spoil(rank_slot_of(life));
    if (life.what().who.number == 0) kill_child();
  }

  // Any thread. All ranks' processes start together, so a new connection is progress of all.
  std::int64_t progress() const {
    const pid_t child = child_;
    return arrived_ + (child == 0 ? 0 : processor_time(child));
  }

  void lost(std::int32_t rank, const std::string& why) {
    auto& at = rank_slots_[static_cast<std::size_t>(rank)];
    if (rank == 0 && watch_) return kill_child_after(at.life->what().detect);
    spoil(at);
    at.life->end(
        ended_as(failure_kind::lost, fmt::format("the connection to its process has ended ({}); "
                                                 "its launcher says how the process did",
                                                 why)));
  }

private:
  rank_slot& rank_slot_of(const remote_process& life) {
    return rank_slots_[static_cast<std::size_t>(life.what().who.number)];
  }
  void spoil(rank_slot& at) {
    at.gone = true;
    spoiled_ = true;
  }

  // --- rank 0's process, which dies with the thread that starts it ------------------------------

  void start_child() {
    std::array<int, 2> ends{-1, -1};
    int error = 0;
    pid_t pid = 0;
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      error = errno;
    } else {
      std::vector<file_descriptor> inherited;
      inherited.emplace_back(ends[0]);
      const file_descriptor to{ends[1]};
      const auto text = to_text(door_->where());  // less than a pipe holds
      if (::write(to.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        error = EIO;
      else
        pid = troupe::start_child(inherited, {placed_word, fmt::format("{}", ::getpid())}, error);
    }
    const int watched = pid == 0 ? -1 : ::pidfd_open(pid, 0);
    child_ = pid;
    if (watched < 0) {
      if (pid != 0) error = errno;
      return child_is_gone(ended_as(failure_kind::start_failed, std::strerror(error)));
    }
    watch_.emplace(loop_, watched);
    wait_for_child_end();
  }

  void wait_for_child_end() {
    watch_->async_wait(asio::posix::stream_descriptor::wait_read, [this](const error_code& failed) {
      if (failed) return;
      auto end = reap(watch_->native_handle());
      if (end)
        child_is_gone(std::move(*end));
      else
        wait_for_child_end();
    });
  }

  void child_is_gone(process_end how) {
    watch_.reset();
    limit_.cancel();
    if (!leaving_) spoil(rank_slots_[0]);
    const auto& life = rank_slots_[0].life;
    if (life && !life->over()) {
      life->drain();
      life->end(std::move(how));
    }
    // The other processes cannot learn the address any more.
    for (auto& one : rank_slots_)
      if (one.awaited())
        one.life->end(ended_as(failure_kind::start_failed, "rank 0's process has ended"));
    const std::lock_guard lock(guard_);
    child_lives_ = false;
    news_.notify_all();
  }

  void kill_child() {
    if (watch_) ::pidfd_send_signal(watch_->native_handle(), SIGKILL, nullptr, 0);
  }

  void kill_child_after(std::chrono::nanoseconds grace) {
    limit_.expires_after(grace);
    limit_.async_wait([this](const error_code& error) {
      if (!error) kill_child();
    });
  }

  // Must not be called by the loop's thread, which it waits for.
  void wait_for_child(std::chrono::seconds limit) {
    std::unique_lock lock(guard_);
    news_.wait_for(lock, limit, [this] { return !child_lives_; });
  }

  // --- arrivals ---------------------------------------------------------------------------------

  void come(std::int32_t rank, ip_tcp::socket from) {
    auto& at = rank_slots_[static_cast<std::size_t>(rank)];
    at.idle = std::move(from);
    ++arrived_;
    if (leaving_)
      send(at, {.shutdown = true, .who = {}});
    else if (at.awaited())
      assign_rank(at);
  }

  // The first bytes of a connection always fit into its buffer.
  bool send(rank_slot& at, const assignment& what) {
    error_code error;
    asio::write(*at.idle, asio::buffer(encode_assignment(door_->where().secret, what)), error);
    return !error;
  }

  void assign_rank(rank_slot& at) {
    const auto rank = at.life->what().who.number;
    const bool sent = send(at, {.shutdown = false, .who = at.life->what().who});
    auto socket = std::move(*at.idle);
    at.idle.reset();
    if (!sent) return lost(rank, "before it received what to do");
    try {
      at.life->begin(socket.release());
    } catch (const std::exception& error) {
      spoil(at);
      at.life->end(ended_as(failure_kind::start_failed, error.what()));
    }
  }

  void leave() {
    leaving_ = true;
    if (spoiled_) return kill_child();
    for (auto& one : rank_slots_)
      if (one.idle) send(one, {.shutdown = true, .who = {}});
  }

  const placed_options options_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(loop_);
  std::optional<rank_acceptor> door_;
  std::vector<rank_slot> rank_slots_;
  bool leaving_ = false;
  bool spoiled_ = false;  // a process was lost or killed: no shutdown message
  std::optional<asio::posix::stream_descriptor> watch_;
  asio::steady_timer limit_{loop_};
  std::atomic<pid_t> child_{0};  // rank 0's process
  std::atomic<std::int64_t> arrived_{0};

  std::mutex guard_;  // of what follows
  std::condition_variable news_;
  bool child_lives_ = false;
  std::thread thread_;
};

class held_life : public rank_process {
public:
  held_life(std::shared_ptr<slot_table> home, std::shared_ptr<remote_process> held)
      : home_(std::move(home)), held_(std::move(held)) {}
  ~held_life() override {
    held_->forget_sink();
    asio::post(home_->loop(), [h = home_.get(), life = held_] { h->give_up(*life); });
  }

  void send(link_message what) override { held_->send(std::move(what)); }

  void release(std::chrono::nanoseconds) override {
    asio::post(home_->loop(), [life = held_] { slot_table::release(*life); });
  }
  std::int64_t progress() const override { return home_->progress(); }

private:
  std::shared_ptr<slot_table> home_;
  std::shared_ptr<remote_process> held_;
};

class placed_ranks : public rank_launcher {
public:
  explicit placed_ranks(const placed_options& options)
      : table_(std::make_shared<slot_table>(options)) {}

  std::unique_ptr<rank_process> start(process_start what, process_sink sink) override {
    table_->open();
    const auto rank = what.who.number;
    auto life = std::make_shared<remote_process>(
        table_->loop(), std::move(what), std::move(sink),
        [h = table_.get(), rank](const std::string& why) { h->lost(rank, why); });
    asio::post(table_->loop(), [h = table_.get(), life] { h->place(life); });
    return std::make_unique<held_life>(table_, std::move(life));
  }
  bool replaces() const override { return false; }

private:
  std::shared_ptr<slot_table> table_;
};

}  // namespace

std::shared_ptr<rank_launcher> placed_launcher(const placed_options& options) {
  return std::make_shared<placed_ranks>(options);
}

}  // namespace troupe
