#include "backends/shm/progress_thread.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

namespace troupe::shm {

namespace {

using std::chrono::microseconds;

constexpr microseconds nap_least{200};
constexpr microseconds nap_most{2000};
constexpr microseconds look_for_members_every{20000};
constexpr std::chrono::milliseconds look_at_late_every{10};
constexpr int late_from = 3;    // looks: the first and the third are 20 ms apart
constexpr int late_most = 16;   // processes at one look, some 50 us each
constexpr int quiet_most = 64;  // naps without anything in flight, before it goes to sleep

file_descriptor make_alarm() {
  file_descriptor file{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (file.get() < 0)
    throw user_error(errc::device,
                     fmt::format("shm: no descriptor for a communicator: {}; raise the limit "
                                 "(ulimit -n)",
                                 std::strerror(errno)));
  return file;
}

// Blocks all signals while the progress thread is started, which inherits that. So signals of the
// process go to the program's own threads.
class signals_blocked {
public:
  signals_blocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

private:
  sigset_t before_{};
};

}  // namespace

progress_thread::progress_thread(std::shared_ptr<member> of,
                                 std::shared_ptr<shm_rendezvous::control_segment> control_segment,
                                 admission at)
    : member_(std::move(of)),
      control_segment_(std::move(control_segment)),
      at_(std::move(at)),
      alarm_(make_alarm()),
      known_(static_cast<std::size_t>(member_->who().world), false) {
  const signals_blocked while_it_starts;
  try {
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& error) {
    throw user_error(errc::device, fmt::format("shm: no thread for a communicator: {}; raise the "
                                               "limit (ulimit -u)",
                                               error.what()));
  }
}

progress_thread::~progress_thread() {
  stopped_.store(true);
  eventfd_write(alarm_.get(), 1);
  member_->bell().ring();
  thread_.join();
}

void progress_thread::call() noexcept {
  if (watching_.load(std::memory_order_relaxed)) return;
  if (!watching_.exchange(true)) eventfd_write(alarm_.get(), 1);
}

void progress_thread::run() noexcept {
  while (!stopped_.load()) {
    try {
      if (!all_known_) look_for_members();
      sleep();
      if (!stopped_.load() && watching_.load()) serve();
    } catch (const std::exception& error) {
      member_->abort(fmt::format("rank {}: {}", member_->name_of(member_->rank()), error.what()));
    }
  }
}

// Ranks open a generation in any order. Once all of them are known there is nothing to look for. A
// rank that cannot be watched, for want of a descriptor, is looked for until one is free.
void progress_thread::look_for_members() {
  for (std::size_t r = 0; r < known_.size(); ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    if (known_[r]) continue;
    const auto life = control_segment_->life(at_, rank);
    known_[r] = life.has_value() || member_->departed(rank);
    if (!life || life->pid == getpid() || !life->visible()) continue;
    watched who{rank, *life, life->watch()};
    if (who.file.get() >= 0)
      peers_.push_back(std::move(who));
    else if (life->over())
      lost(who);
    else
      known_[r] = false;
  }
  all_known_ = std::all_of(known_.begin(), known_.end(), [](bool known) { return known; });
}

// Until it is called, a process ends, or it is time to look around.
void progress_thread::sleep() {
  std::vector<pollfd> files{{alarm_.get(), POLLIN, 0}};
  for (const auto& who : peers_) files.push_back({who.file.get(), POLLIN, 0});
  std::optional<microseconds> most;
  if (watching_.load())
    most = nap_;
  else if (!all_known_)
    most = look_for_members_every;
  timespec left{};
  if (most) left.tv_nsec = std::chrono::nanoseconds(*most).count();
  if (ppoll(files.data(), files.size(), most ? &left : nullptr, nullptr) <= 0) return;
  if (files[0].revents != 0) {
    eventfd_t ignored = 0;
    eventfd_read(alarm_.get(), &ignored);
    nap_ = nap_least;
    quiet_ = 0;
  }
  for (std::size_t i = peers_.size(); i-- > 0;)
    if (files[i + 1].revents != 0) {
      lost(peers_[i]);
      peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
    }
}

void progress_thread::lost(const watched& who) noexcept {
  if (member_->departed(who.rank)) return;
  member_->abort(
      fmt::format("rank {} is lost: its process {} ended without closing its communicator",
                  member_->name_of(who.rank), who.life.pid));
}

// Several looks may find a member late in different operations: then it is looked at in vain, which
// costs little.
void progress_thread::look_at_late_members() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + look_at_late_every;
  const auto late = member_->late();
  int most = late_most;
  for (std::size_t i = 0, count = peers_.size(); i < count && most > 0; ++i) {
    next_peer_ = (next_peer_ + 1) % count;
    auto& who = peers_[next_peer_];
    who.late = contains(late, who.rank) ? who.late + 1 : 0;
    if (who.late < late_from) continue;
    --most;
    if (!who.life.exiting()) continue;
    lost(who);
    peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(next_peer_));
    return;
  }
}

void progress_thread::serve() {
  look_at_late_members();
  if (member_->attend()) {
    nap_ = nap_least;
    quiet_ = 0;
    auto& bell = member_->bell();
    const auto seen = bell.now();
    bell.sleep(seen, shared_bell::clock::now() + nap_most,
               [&] { return stopped_.load() || !member_->attend(); });
    nap_ = microseconds{0};  // looks for ended processes in between, without waiting for them
    return;
  }
  nap_ = std::clamp(nap_ * 2, nap_least, nap_most);
  quiet_ = member_->idle() ? quiet_ + 1 : 0;
  if (quiet_ < quiet_most) return;
  quiet_ = 0;
  watching_.store(false);
  if (!member_->idle()) watching_.store(true);  // submitted while `watching_` was still true
}

}  // namespace troupe::shm
