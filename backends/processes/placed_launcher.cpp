#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
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
#include <utility>
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

// MPI waits 10 s for ranks that have not closed their groups. Others come back at once.
constexpr auto shutdown_limit = std::chrono::seconds{15};

process_end ended_as(failure_kind kind, std::string why) {
  return {.what = make_failure(kind, std::move(why))};
}

// The slot of one process of the launcher.
struct process_slot {
  std::optional<ip_tcp::socket> idle;    // its process has connected and waits for its assignment
  std::shared_ptr<remote_process> life;  // the last one
  bool came = false;                     // its process has connected once
  bool gone = false;                     // its process has ended
  bool dismissed = false;                // its process has its shutdown message

  bool used() const { return life && !life->over(); }
  bool awaited() const { return used() && !life->begun(); }
};

// Members are for the loop's thread unless their comment says otherwise.
class slot_table {
public:
  explicit slot_table(const placed_options& options)
      : options_(options),
        slots_(static_cast<std::size_t>(options.world)),
        living_(options.world) {}
  ~slot_table() {
    if (!thread_.joinable()) return;
    asio::post(loop_, [this] { leave(); });
    wait_for_processes(shutdown_limit);
    asio::post(loop_, [this] { give_up_all(); });
    wait_for_processes(shutdown_limit);
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

  // Any thread. How many processes have not ended.
  std::int32_t number() const { return living_; }

  void place(const std::shared_ptr<remote_process>& life) {
    auto* at = slot_for(life->what().who.number);
    if (!at)
      return life->end(
          ended_as(failure_kind::start_failed,
                   "the launcher's processes are not started again; start the job again"));
    if (at->used())
      return life->end(ended_as(failure_kind::start_failed, "its process is another job's"));
    at->life = life;
    if (at->idle) assign(*at);
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
    auto& at = slot_of(life);
    spoil(at);
    if (&at == &slots_[0]) kill_child();
  }

  // Any thread. All processes start together, so a new connection is progress of all.
  std::int64_t progress() const {
    const pid_t child = child_;
    return arrived_ + (child == 0 ? 0 : processor_time(child));
  }

  void lost(incarnation_id who, const std::string& why) {
    const auto at = std::ranges::find_if(slots_, [&](const process_slot& one) {
      return one.life && one.life->what().who.incarnation == who;
    });
    if (at == slots_.end()) return;
    if (at == slots_.begin() && watch_) return kill_child_after(at->life->what().detect);
    spoil(*at);
    at->life->end(
        ended_as(failure_kind::lost, fmt::format("the connection to its process has ended ({}); "
                                                 "its launcher says how the process did",
                                                 why)));
  }

private:
  process_slot& slot_of(const remote_process& life) {
    return *std::ranges::find_if(slots_,
                                 [&](const process_slot& one) { return one.life.get() == &life; });
  }

  // The slot for process `number` of a job. Null: its process has ended, and so has every other one
  // that could take its place.
  process_slot* slot_for(std::int32_t number) {
    const auto own = number < options_.world ? &slots_[static_cast<std::size_t>(number)] : nullptr;
    const bool lives = own && !own->gone && (own->idle || !out_of_reach());
    if (!options_.outlive_loss) return lives ? own : nullptr;
    if (lives && !own->used()) return own;
    const auto other = std::ranges::find_if(
        slots_, [](const process_slot& one) { return !one.gone && !one.used(); });
    return other == slots_.end() ? nullptr : &*other;
  }
  // A process that has not come cannot learn the address any more: the first one has ended before
  // it passed the address on, or MPI, by which it does, has ended with it.
  bool out_of_reach() const { return slots_[0].gone && !(options_.outlive_loss && slots_[0].came); }

  void spoil(process_slot& at) {
    if (!std::exchange(at.gone, true)) --living_;
    at.idle.reset();
    look_again();
  }
  // The thread that waits for the processes looks at them again.
  void look_again() {
    const auto waits = [&](const process_slot& one) {
      return one.came && !one.gone && !one.dismissed && sends_shutdown();
    };
    const std::lock_guard lock(guard_);
    to_leave_ = std::ranges::any_of(slots_, waits);
    news_.notify_all();
  }
  // Whether the processes get a shutdown message. MPI's would then wait for those that have ended.
  bool sends_shutdown() const { return options_.outlive_loss || living_ == options_.world; }

  // --- process 0, which dies with the thread that starts it -------------------------------------

  void start_child() {
    std::array<int, 2> ends{-1, -1};
    int error = 0;
    pid_t pid = 0;
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      error = errno;
    } else {
      std::vector<file_descriptor> inherited;
      inherited.emplace_back(ends[0]);
      if (options_.keep) keep(*options_.keep, inherited);
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

  // Without the descriptor, which may be closed, MPI says what it lacks.
  static void keep(int descriptor, std::vector<file_descriptor>& inherited) {
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, kept_descriptor + 1);
    if (copy >= 0) inherited.emplace_back(copy);
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
    if (leaving_)
      slots_[0].dismissed = true;
    else
      spoil(slots_[0]);
    const auto& life = slots_[0].life;
    if (life && !life->over()) {
      life->drain();
      life->end(std::move(how));
    }
    if (out_of_reach())
      for (auto& one : slots_)
        if (one.awaited())
          one.life->end(ended_as(failure_kind::start_failed, "rank 0's process has ended"));
    {
      const std::lock_guard lock(guard_);
      child_lives_ = false;
    }
    look_again();
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
  void wait_for_processes(std::chrono::seconds limit) {
    std::unique_lock lock(guard_);
    news_.wait_for(lock, limit, [this] { return !child_lives_ && leaving_ && !to_leave_; });
  }

  // --- arrivals ---------------------------------------------------------------------------------

  void come(std::int32_t number, ip_tcp::socket from) {
    auto& at = slots_[static_cast<std::size_t>(number)];
    if (at.gone) return;  // its connection was lost, and the process was not
    at.idle = std::move(from);
    at.came = true;
    ++arrived_;
    if (leaving_)
      dismiss(at);
    else if (at.awaited())
      assign(at);
  }

  // The first bytes of a connection always fit into its buffer.
  bool send(process_slot& at, const assignment& what) {
    error_code error;
    asio::write(*at.idle, asio::buffer(encode_assignment(door_->where().secret, what)), error);
    return !error;
  }

  void assign(process_slot& at) {
    const bool sent = send(at, {.shutdown = false, .who = at.life->what().who});
    auto socket = std::move(*at.idle);
    at.idle.reset();
    if (!sent) return lost(at.life->what().who.incarnation, "before it received what to do");
    try {
      at.life->begin(socket.release());
    } catch (const std::exception& error) {
      spoil(at);
      at.life->end(ended_as(failure_kind::start_failed, error.what()));
    }
  }

  void leave() {
    leaving_ = true;
    if (!sends_shutdown()) {
      kill_child();
      return look_again();
    }
    for (auto& one : slots_)
      if (one.idle) dismiss(one);
    look_again();
  }

  void dismiss(process_slot& at) {
    send(at, {.shutdown = true, .who = {}});
    at.dismissed = true;
    look_again();
  }

  // The time to leave is over.
  void give_up_all() {
    kill_child();
    for (auto& one : slots_) one.dismissed = true;
    look_again();
  }

  const placed_options options_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(loop_);
  std::optional<rank_acceptor> door_;
  std::vector<process_slot> slots_;
  std::optional<asio::posix::stream_descriptor> watch_;
  asio::steady_timer limit_{loop_};
  std::atomic<bool> leaving_{false};
  std::atomic<pid_t> child_{0};  // process 0
  std::atomic<std::int64_t> arrived_{0};
  std::atomic<std::int32_t> living_;  // processes that have not ended

  std::mutex guard_;  // of what follows
  std::condition_variable news_;
  bool child_lives_ = false;
  bool to_leave_ = false;  // a process has not had its shutdown message
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

  void release(std::chrono::nanoseconds grace) override {
    const bool kills = grace <= std::chrono::nanoseconds{0};
    asio::post(home_->loop(), [h = home_.get(), life = held_, kills] {
      if (kills)
        h->give_up(*life);
      else
        slot_table::release(*life);
    });
  }
  // A process that sends heartbeats while it makes its recipe may be reading much data.
  std::int64_t progress() const override { return home_->progress() + held_->received(); }
  std::int64_t snapshot_bytes() const override { return held_->received_attached(); }

private:
  std::shared_ptr<slot_table> home_;
  std::shared_ptr<remote_process> held_;
};

class placed_ranks : public rank_launcher {
public:
  explicit placed_ranks(const placed_options& options)
      : table_(std::make_shared<slot_table>(options)), outlive_loss_(options.outlive_loss) {}

  std::unique_ptr<rank_process> start(process_start what, process_sink sink) override {
    table_->open();
    const auto who = what.who.incarnation;
    auto life = std::make_shared<remote_process>(
        table_->loop(), std::move(what), std::move(sink),
        [h = table_.get(), who](const std::string& why) { h->lost(who, why); });
    asio::post(table_->loop(), [h = table_.get(), life] { h->place(life); });
    return std::make_unique<held_life>(table_, std::move(life));
  }
  std::optional<placed_processes> placed() const override {
    return placed_processes{.number = table_->number(), .outlive_loss = outlive_loss_};
  }

private:
  std::shared_ptr<slot_table> table_;
  const bool outlive_loss_;
};

}  // namespace

std::shared_ptr<rank_launcher> placed_launcher(const placed_options& options) {
  return std::make_shared<placed_ranks>(options);
}

}  // namespace troupe
