#include "backends/shm/control_segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

namespace troupe {

namespace {

using clock = std::chrono::steady_clock;

[[noreturn]] void refuse(std::string_view what, int error) {
  throw user_error(errc::device, fmt::format("shm: {}: {}", what, std::strerror(error)));
}

file_descriptor make_file() {
  file_descriptor file{memfd_create("troupe", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (file.get() < 0) refuse("the kernel gives no memory file", errno);
  // The seal: no process can shrink the file while others have it mapped.
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) refuse("no seal", errno);
  return file;
}

struct address {
  sockaddr_un name{};
  socklen_t length = 0;
};

// An abstract name: it is in no file system and goes with the socket.
address address_of(std::string_view key) {
  if (key.size() < 16 || key.size() > 64)
    throw std::invalid_argument("shm: the key of a rendezvous has 16 to 64 bytes");
  const auto text = fmt::format("troupe-shm-{}", key);
  address at;
  at.name.sun_family = AF_UNIX;
  std::memcpy(at.name.sun_path + 1, text.data(), text.size());
  at.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return at;
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

bool send_descriptor(int socket, int file) {
  char byte = 1;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof file)> room{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  auto* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof file);
  std::memcpy(CMSG_DATA(head), &file, sizeof file);
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

// A signal whose handler returns interrupts calls of the kernel.
template <class F>
auto unless_interrupted(const F& call) {
  for (;;)
    if (const auto result = call(); result >= 0 || errno != EINTR) return result;
}

file_descriptor receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // room for a second one would let it in
  const auto flags = MSG_CMSG_CLOEXEC | MSG_DONTWAIT;
  if (unless_interrupted([&] { return recvmsg(socket, &message, flags); }) != 1)
    return file_descriptor{};
  const auto* head = CMSG_FIRSTHDR(&message);
  if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
      head->cmsg_len != CMSG_LEN(sizeof(int)))
    return file_descriptor{};
  int file = -1;
  std::memcpy(&file, CMSG_DATA(head), sizeof file);
  return file_descriptor{file};
}

/// Answers processes that ask for a rendezvous by name: sends them its file.
class usher {
public:
  usher(file_descriptor socket, int file)
      : socket_(std::move(socket)), stop_(eventfd(0, EFD_CLOEXEC)), file_(file) {
    if (stop_.get() < 0) refuse("no descriptor", errno);
    thread_ = std::thread{[this] { run(); }};
  }
  ~usher() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  usher(const usher&) = delete;
  usher& operator=(const usher&) = delete;

private:
  void run() noexcept {
    constexpr int pause = 50;  // milliseconds
    for (;;) {
      std::array<pollfd, 2> files{{{stop_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}}};
      if (poll(files.data(), files.size(), -1) < 0 && errno != EINTR) return;
      if (files[0].revents != 0) return;
      if (files[1].revents == 0) continue;
      const file_descriptor guest{accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      if (guest.get() >= 0 && same_user(guest.get())) send_descriptor(guest.get(), file_);
      if (guest.get() < 0) poll(files.data(), 1, pause);  // no descriptor is left, for example
    }
  }

  const file_descriptor socket_;
  const file_descriptor stop_;
  const int file_;
  std::thread thread_;
};

file_descriptor stream() {
  file_descriptor socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (socket.get() < 0) refuse("no socket", errno);
  return socket;
}

// The file of the process that has bound the name; none if it does not answer before `until`.
file_descriptor ask(const address& at, clock::time_point until) {
  const auto socket = stream();
  const auto* name = reinterpret_cast<const sockaddr*>(&at.name);
  if (unless_interrupted([&] { return connect(socket.get(), name, at.length); }) != 0)
    return file_descriptor{};
  if (!same_user(socket.get())) throw user_error(errc::device, "shm: the key is another user's");
  pollfd answer{socket.get(), POLLIN, 0};
  unless_interrupted([&] {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    return poll(&answer, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
  });
  return receive_descriptor(socket.get());
}

}  // namespace

shm_rendezvous shm_rendezvous::create(const shm_sizes& sizes) {
  return shm_rendezvous{std::make_shared<control_segment>(make_file(), &sizes)};
}

shm_rendezvous shm_rendezvous::adopt(int given) {
  file_descriptor own{fcntl(given, F_DUPFD_CLOEXEC, 0)};
  if (own.get() < 0) refuse("the descriptor of the rendezvous is not open", errno);
  return shm_rendezvous{std::make_shared<control_segment>(std::move(own), nullptr)};
}

shm_rendezvous shm_rendezvous::by_name(std::string_view key, std::chrono::nanoseconds patience,
                                       const shm_sizes& sizes) {
  const auto at = address_of(key);
  const auto until = clock::now() + patience;
  do {
    auto own = stream();
    const auto* name = reinterpret_cast<const sockaddr*>(&at.name);
    if (bind(own.get(), name, at.length) == 0) {
      auto made = create(sizes);
      if (listen(own.get(), SOMAXCONN) != 0) refuse("no rendezvous", errno);
      made.control_segment_->answer(std::make_shared<usher>(std::move(own), made.descriptor()));
      return made;
    }
    if (errno != EADDRINUSE) refuse("no rendezvous", errno);
    auto file = ask(at, until);
    if (file.get() >= 0)
      return shm_rendezvous{std::make_shared<control_segment>(std::move(file), nullptr)};
    std::this_thread::yield();  // bound, but not listening yet; or gone since
  } while (clock::now() < until);
  throw user_error(errc::membership,
                   fmt::format("shm: waited {:g} s for the process that holds the rendezvous to "
                               "answer; it may be stopped",
                               std::chrono::duration<double>(patience).count()));
}

shm_rendezvous shm_rendezvous::find(std::string_view key, std::chrono::nanoseconds patience) {
  auto file = ask(address_of(key), clock::now() + patience);
  if (file.get() >= 0)
    return shm_rendezvous{std::make_shared<control_segment>(std::move(file), nullptr)};
  throw user_error(errc::membership,
                   "shm: the process that holds the rendezvous does not answer on this host: it "
                   "has ended, it is stopped, or it is in another network namespace (another "
                   "container): the ranks of a host must share its network");
}

int shm_rendezvous::descriptor() const { return control_segment_->file(); }

std::string shm_unusable() {
  try {
    make_file();
  } catch (const user_error& error) {
    return error.what();
  }
  const file_descriptor self{static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))};
  if (self.get() < 0) return "the kernel notifies no process of another's end (pidfd: Linux 5.3)";
  return {};
}

}  // namespace troupe
