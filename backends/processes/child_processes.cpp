#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "backends/launcher.hpp"
#include "backends/local/process_life.hpp"
#include "backends/processes/arguments.hpp"
#include "backends/processes/black_box.hpp"
#include "backends/processes/link_stream.hpp"
#include "backends/processes/process_looks.hpp"
#include "backends/processes/spawning.hpp"

// glibc 2.36 lacks extern "C" around these.
extern "C" {
#include <sys/pidfd.h>
}

namespace troupe {

namespace asio = boost::asio;

namespace {

// A killed process is reaped at once, unless the kernel holds it back (a disk that does not
// answer); then it is left to init.
constexpr auto reaping_limit = std::chrono::seconds{10};

[[noreturn]] void refuse(const std::string& what) {
  throw user_error(errc::job_failed,
                   fmt::format("{}: {}; fewer ranks may help", what, std::strerror(errno)));
}

// A copy whose number is larger than those of the child's descriptors.
file_descriptor copy_of(int descriptor, std::size_t others) {
  const int lowest = first_other_descriptor + static_cast<int>(others);
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, lowest);
  if (copy < 0) refuse("no descriptor for a rank's process");
  return file_descriptor{copy};
}

// Between two looks at the lives of all processes. One look reads a word for each.
constexpr auto look_at_lives_every = std::chrono::milliseconds{20};

class child;

// The loop, its thread, and the processes that live. Children die with the thread that started
// them (PR_SET_PDEATHSIG), so it is this one, which lives as long as the launcher.
struct process_table {
  asio::io_context loop{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(loop);
  std::mutex guard;
  std::condition_variable news;
  std::set<std::shared_ptr<child>> living;
  std::thread thread;  // started with the first child
  asio::steady_timer next_look{loop};

  void take(std::shared_ptr<child> one) {
    const std::lock_guard lock(guard);
    living.insert(std::move(one));
    if (living.size() == 1) asio::post(loop, [this] { look_at_lives(); });
    if (!thread.joinable()) thread = std::thread([this] { loop.run(); });
  }
  void look_at_lives();  // until no process is left
  void bury(const std::shared_ptr<child>& one) {
    const std::lock_guard lock(guard);
    living.erase(one);
    news.notify_all();
  }
};

class child : public std::enable_shared_from_this<child> {
public:
  child(process_table& table, process_start what, int socket, black_box box,
        std::vector<file_descriptor> inherited, process_sink sink)
      : table_(table),
        what_(std::move(what)),
        box_(std::move(box)),
        inherited_(std::move(inherited)),
        link_(table.loop, socket, {what_.who.job, what_.who.incarnation},
              {.patience = silence_limit(what_.detect)}),
        limit_(table.loop),
        stops_(what_.detect),
        next_look_(table.loop),
        sink_(std::move(sink)) {
    link_.carry(what_.tensors);
  }

  link_stream& control() { return link_; }

  void forget_sink() {
    const std::lock_guard lock(sink_guard_);
    sink_ = {};
  }

  // --- on the loop's thread --------------------------------------------------------------------

  void begin() {
    int error = 0;
    pid_ = start_child(inherited_, words(), error);
    inherited_.clear();
    if (pid_ == 0) {
      process_end end;
      end.what = make_failure(failure_kind::start_failed, std::strerror(error));
      return over(std::move(end));
    }
    const int watched = ::pidfd_open(pid_, 0);
    if (watched < 0) return wait_without_watch();
    watch_.emplace(table_.loop, watched);
    wait_for_end();
    link_.listen({[self = weak_from_this()](link_message&& m) {
                    if (const auto alive = self.lock()) alive->deliver(std::move(m));
                  },
                  [self = weak_from_this()](const std::string& why) {
                    if (const auto alive = self.lock()) alive->lost(why);
                  }});
    keep_looking();
  }

  // The kernel wakes the watch before the last thread has ended, and then not again.
  void wait_for_end() {
    watch_->async_wait(asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& e) {
                         if (e || !self->watch_ || self->reap()) return;
                         self->soon_ = 100;
                         self->wait_for_end();
                         self->keep_looking();
                       });
  }

  // The kernel may need seconds to release the memory of a process that was killed. Its end is
  // reported before. A small process is reaped between two looks.
  void look_at_life() {
    if (!watch_ || let_go_) return;
    if (!life_ended_) {
      life_ended_ = box_.life_ended();
      return;
    }
    if (const auto status = process_life::of_child(pid_).exiting_with())
      report(complete(end_of(*status)));
  }

  // The rank has ended. Its process gets more time as long as it makes progress.
  void let_go(std::chrono::nanoseconds grace, int graces = rank_process::graces_max) {
    let_go_ = true;
    if (grace.count() == 0) {
      given_up_ = true;
      return kill();
    }
    const auto before = progress();
    limit_.expires_after(grace);
    limit_.async_wait([=, self = shared_from_this()](const boost::system::error_code& e) {
      if (e || !self->watch_) return;
      if (graces > 1 && self->progress() != before) return self->let_go(grace, graces - 1);
      self->given_up_ = true;
      self->kill();
    });
  }

  void kill_after(std::chrono::nanoseconds grace) {
    if (!watch_) return;
    limit_.expires_after(grace);
    limit_.async_wait([self = shared_from_this()](const boost::system::error_code& e) {
      if (!e) self->kill();
    });
  }

  void kill() {
    if (watch_) ::pidfd_send_signal(watch_->native_handle(), SIGKILL, nullptr, 0);
  }

  // Any thread.
  std::int64_t progress() const {
    const pid_t pid = pid_;
    return pid == 0 ? 0 : processor_time(pid);
  }

private:
  void lost(const std::string& why) {
    silent_ = why.starts_with(link_silent);
    if (!silent_ && why != link_closed_by_peer) broken_ = why;
    kill_after(silent_ ? std::chrono::nanoseconds{0} : what_.detect);
  }

  // Without a handler of SIGCHLD the loop gets no event when a child was stopped.
  void keep_looking() {
    const std::chrono::nanoseconds at_once = std::chrono::milliseconds{10};
    next_look_.expires_after(soon_ > 0 ? at_once : stops_.between());
    soon_ = std::max(0, soon_ - 1);
    next_look_.async_wait([self = shared_from_this()](const boost::system::error_code& e) {
      if (e || !self->watch_ || self->reap()) return;
      if (self->soon_ > 0 || !self->stops_.look(is_stopped(self->pid_)))
        return self->keep_looking();
      self->stopped_ = true;
      self->kill();
    });
  }

  std::vector<std::string> words() const {
    const auto& all = what_.descriptors;
    return arguments_of({what_.who, ::getpid(), static_cast<int>(all.size())});
  }

  // A kernel without pidfds: processes cannot be supervised.
  void wait_without_watch() {
    process_end end;
    end.what =
        make_failure(failure_kind::start_failed,
                     fmt::format("this kernel does not watch processes: {}", std::strerror(errno)));
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    over(std::move(end));
  }

  // False while it lives.
  bool reap() {
    auto ended = troupe::reap(watch_->native_handle());
    if (!ended) return false;
    over(complete(std::move(*ended)));
    return true;
  }

  // Adds to the end of the process what the launcher knows of it.
  process_end complete(process_end end) {
    link_.drain();
    end.given_up = given_up_;
    if (stopped_) {
      end.what = make_failure(
          failure_kind::deadline,
          fmt::format(
              "its process was stopped (SIGSTOP) for {:.1f} s and was killed; let a stopped rank "
              "go on sooner (SIGCONT), or raise time.detect_seconds",
              std::chrono::duration<double>(stops_.limit()).count()));
      end.what.signal = "SIGSTOP";
    } else if (silent_) {
      end.what = make_failure(
          failure_kind::lost,
          fmt::format(
              "its process sent nothing for {:.1f} s and was killed; if a debugger held it, "
              "or the machine was overloaded, raise time.detect_seconds",
              std::chrono::duration<double>(silence_limit(what_.detect)).count()));
    } else {
      add_reason(end);
    }
    end.hooks = box_.read();
    return end;
  }

  // Of a link that this side or the process itself has given up.
  void add_reason(process_end& end) const {
    const auto own = box_.why_left();
    if (!broken_.empty() && end.what.signal == "SIGKILL")
      end.what = make_failure(
          failure_kind::lost,
          fmt::format("the link to its process broke, and the process was killed: {}", broken_));
    else if (end.what.kind == failure_kind::exit && !end.clean && !own.empty())
      end.what.what += fmt::format(", because it lost its link to this process: {}", own);
  }

  // None of its code runs any more. The first report counts.
  void report(process_end end) {
    if (std::exchange(reported_, true)) return;
    const std::lock_guard lock(sink_guard_);
    if (sink_.ended) sink_.ended(std::move(end));
  }

  void over(process_end end) {
    report(std::move(end));
    limit_.cancel();
    next_look_.cancel();
    watch_.reset();
    table_.bury(shared_from_this());
  }

  void deliver(link_message what) {
    const std::lock_guard lock(sink_guard_);
    if (sink_.received) sink_.received(std::move(what));
  }

  process_table& table_;
  process_start what_;
  black_box box_;
  std::vector<file_descriptor> inherited_;  // until it is started
  link_stream link_;
  asio::steady_timer limit_;
  stop_watch stops_;
  asio::steady_timer next_look_;
  std::optional<asio::posix::stream_descriptor> watch_;
  std::atomic<pid_t> pid_{0};
  int soon_ = 0;           // looks that follow each other quickly, because it is ending
  bool stopped_ = false;   // for too long
  bool silent_ = false;    // for too long
  std::string broken_;     // why the link was lost, if the process did not end it
  bool given_up_ = false;  // after its grace
  bool let_go_ = false;
  bool life_ended_ = false;
  bool reported_ = false;
  std::mutex sink_guard_;  // guards the sink: held while it is called
  process_sink sink_;
};

void process_table::look_at_lives() {
  std::set<std::shared_ptr<child>> all;
  {
    const std::lock_guard lock(guard);
    all = living;
  }
  for (const auto& one : all) one->look_at_life();
  if (all.empty()) return;
  next_look.expires_after(look_at_lives_every);
  next_look.async_wait([this](const boost::system::error_code& e) {
    if (!e) look_at_lives();
  });
}

class held_child : public rank_process {
public:
  held_child(std::shared_ptr<process_table> table, std::shared_ptr<child> held)
      : table_(std::move(table)), held_(std::move(held)) {}
  ~held_child() override {
    held_->forget_sink();
    asio::post(table_->loop, [c = held_] { c->kill(); });
  }

  void send(link_message what) override { held_->control().send(std::move(what)); }

  void release(std::chrono::nanoseconds grace) override {
    held_->control().close();
    asio::post(table_->loop, [c = held_, grace] { c->let_go(grace); });
  }
  std::int64_t progress() const override { return held_->progress(); }
  std::int64_t snapshot_bytes() const override { return held_->control().received_attached(); }

private:
  std::shared_ptr<process_table> table_;
  std::shared_ptr<child> held_;
};

class children : public rank_launcher {
public:
  ~children() override {
    asio::post(table_->loop, [h = table_.get()] {
      const std::lock_guard lock(h->guard);
      for (const auto& one : h->living) one->kill();
    });
    {
      std::unique_lock lock(table_->guard);
      table_->news.wait_for(lock, reaping_limit, [&] { return table_->living.empty(); });
    }
    table_->loop.stop();
    if (table_->thread.joinable()) table_->thread.join();
  }

  std::string unusable() const override {
    if (main_knows_ranks()) return {};
    return "main of this program does not begin with `if (const auto code = "
           "troupe::run_rank_if_child(argc, argv, make_recipe)) return *code;` "
           "(<troupe/trainer.hpp>): add that line, or use placement \"threads\"";
  }

  std::unique_ptr<rank_process> start(process_start what, process_sink sink) override {
    if (const auto why_not = unusable(); !why_not.empty())
      throw user_error(errc::bad_configuration, why_not);
    std::array<int, 2> ends{-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      refuse("no socket for a rank's process");
    file_descriptor ours{ends[0]};
    file_descriptor theirs{ends[1]};
    auto box = black_box::create();
    const auto others = what.descriptors.size();
    std::vector<file_descriptor> inherited;
    inherited.push_back(copy_of(theirs.get(), others));
    inherited.push_back(copy_of(box.descriptor(), others));
    for (const auto one : what.descriptors) inherited.push_back(copy_of(one, others));
    auto born = std::make_shared<child>(*table_, std::move(what), ours.release(), std::move(box),
                                        std::move(inherited), std::move(sink));
    table_->take(born);
    asio::post(table_->loop, [born] { born->begin(); });
    return std::make_unique<held_child>(table_, std::move(born));
  }

private:
  std::shared_ptr<process_table> table_ = std::make_shared<process_table>();
};

}  // namespace

std::shared_ptr<rank_launcher> child_launcher() { return std::make_shared<children>(); }

}  // namespace troupe
