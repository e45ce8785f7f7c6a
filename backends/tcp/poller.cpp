#include "backends/tcp/poller.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace troupe::tcp {

namespace {

constexpr long delay_ns = 500'000;

file_descriptor opened(int fd, const char* what) {
  if (fd < 0 && lacks_descriptors(errno)) throw user_error(errc::device, no_descriptor(what));
  if (fd < 0) throw std::system_error{errno, std::system_category(), what};
  return file_descriptor{fd};
}

void control(int set, int how, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(set, how, fd, &event) != 0 && how != EPOLL_CTL_DEL)
    throw std::system_error{errno, std::system_category(), "watching a socket"};
}

}  // namespace

bool lacks_descriptors(int error) { return error == EMFILE || error == ENFILE; }

std::string no_descriptor(std::string_view what) {
  return fmt::format(
      "no descriptor is left for {}: raise the limit of the process (ulimit -n), or use fewer "
      "ranks or shards",
      what);
}

poller::poller()
    : set_(opened(epoll_create1(EPOLL_CLOEXEC), "a set of sockets")),
      timer_(opened(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "a timer")) {
  control(set_.get(), EPOLL_CTL_ADD, timer_.get(), EPOLLIN);
}

void poller::take() {
  std::array<epoll_event, 16> events;
  int count = 0;
  do {
    count = epoll_wait(set_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      if (events[static_cast<std::size_t>(i)].data.fd != timer_.get()) continue;
      std::uint64_t times = 0;
      // Fails when the timer was set again since it had expired: then it will wake the thread.
      if (read(timer_.get(), &times, sizeof times) < 0) continue;
      // After the read: else the read could take an expiry that was set in between, and `soon`
      // would take the timer for set ever after.
      timer_set_.store(false, std::memory_order_seq_cst);
    }
  } while (count == static_cast<int>(events.size()));
}

void poller::watch(int socket) {
  control(set_.get(), EPOLL_CTL_ADD, socket, EPOLLIN | EPOLLONESHOT);
}

void poller::forget(int socket) { control(set_.get(), EPOLL_CTL_DEL, socket, 0); }

void poller::arm(int socket, bool backlog) {
  control(set_.get(), EPOLL_CTL_MOD, socket,
          EPOLLONESHOT | EPOLLIN | (backlog ? std::uint32_t{EPOLLOUT} : 0));
}

void poller::soon() noexcept {
  if (timer_set_.exchange(true, std::memory_order_seq_cst)) return;
  const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = delay_ns}};
  timerfd_settime(timer_.get(), 0, &when, nullptr);
}

void poller::now() noexcept {
  timer_set_.store(true, std::memory_order_seq_cst);
  const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1}};
  timerfd_settime(timer_.get(), 0, &when, nullptr);
}

waker::waker() : event_(opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "an event")) {}

void waker::ring() noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is at its maximum, and then the event is already pending.
  [[maybe_unused]] const auto written = write(event_.get(), &one, sizeof one);
}

void waker::clear() noexcept {
  std::uint64_t rings = 0;
  [[maybe_unused]] const auto taken = read(event_.get(), &rings, sizeof rings);
}

}  // namespace troupe::tcp
