// Goal: a file or a peer that only looks like a rendezvous is refused, or works as one. Nothing is
// left open.
#include "backends/shm/control_segment.hpp"
#include "backends/shm/shm.hpp"
#include "tests/support/minutes.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace troupe::testing {
namespace {

using bytes = std::vector<std::byte>;

const bytes& sound_rendezvous() {
  static const bytes content = [] {
    const auto rendezvous =
        shm_rendezvous::create({.slot_bytes = 4096, .registered_bytes = 2u << 20});
    bytes read(sizeof(shm::control_segment_words));
    REQUIRE(pread(rendezvous.descriptor(), read.data(), read.size(), 0) ==
            static_cast<ssize_t>(read.size()));
    return read;
  }();
  return content;
}

// Damage to what is looked at before the rendezvous is trusted, or the wrong length.
file_descriptor damaged_rendezvous(std::mt19937_64& draw) {
  auto content = sound_rendezvous();
  constexpr std::size_t head = offsetof(shm::control_segment_words, mutex);
  for (auto hits = draw() % 3; hits > 0; --hits)
    content[draw() % head] = static_cast<std::byte>(draw());
  if (draw() % 4 == 0) content.resize(draw() % content.size());
  file_descriptor file{memfd_create("damaged", MFD_CLOEXEC)};
  REQUIRE(pwrite(file.get(), content.data(), content.size(), 0) ==
          static_cast<ssize_t>(content.size()));
  return file;
}

void adopt_damaged(std::mt19937_64& draw) {
  const auto file = damaged_rendezvous(draw);
  try {
    shm_backend backend{shm_rendezvous::adopt(file.get())};
    std::vector<std::shared_ptr<communicator>> ranks;
    for (std::int32_t rank = 0; rank < 2; ++rank)
      ranks.push_back(backend.open({.generation = generation_id{1}, .rank = rank, .world = 2}));
    std::vector<work_ptr> works;
    for (const auto& rank : ranks) works.push_back(rank->barrier("sound after all"));
    for (const auto& work : works) work->wait();
  } catch (const user_error&) {
  }
}

// A peer owns the rendezvous name and answers with arbitrary content: nothing, bytes, wrong files,
// two files.
void ask_a_liar(std::mt19937_64& draw) {
  const auto key = "hostile-rendezvous-" + std::to_string(draw());
  const auto text = "troupe-shm-" + key;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const file_descriptor door{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  REQUIRE(bind(door.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0);
  REQUIRE(listen(door.get(), 4) == 0);
  std::thread liar{[&door, plan = draw(), seed = draw()] {
    std::mt19937_64 own{seed};
    const file_descriptor guest{accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    const auto count = plan % 4;  // of files
    std::vector<file_descriptor> files;
    for (std::uint64_t i = 0; i < count; ++i)
      files.emplace_back(i == 0 ? damaged_rendezvous(own)
                                : file_descriptor{open("/dev/null", O_RDWR | O_CLOEXEC)});
    char byte = 1;
    iovec data{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(3 * sizeof(int))> room{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (count != 0) {
      message.msg_control = room.data();
      message.msg_controllen = CMSG_SPACE(count * sizeof(int));
      auto* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(count * sizeof(int));
      for (std::size_t i = 0; i < count; ++i) {
        const int file = files[i].get();
        std::memcpy(CMSG_DATA(head) + i * sizeof file, &file, sizeof file);
      }
    }
    if (plan % 5 != 0) sendmsg(guest.get(), &message, MSG_NOSIGNAL);
    shutdown(door.get(), SHUT_RDWR);
  }};
  try {
    shm_rendezvous::by_name(key, std::chrono::milliseconds{2});
  } catch (const user_error&) {
  }
  shutdown(door.get(), SHUT_RDWR);
  liar.join();
}

std::ptrdiff_t open_files() {
  std::ptrdiff_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

void meet_hostility(std::mt19937_64& draw) {
  adopt_damaged(draw);
  ask_a_liar(draw);
}

TEST_CASE("a damaged rendezvous is refused or works and leaves no descriptor open") {
  sound_rendezvous();
  const auto files = open_files();
  std::mt19937_64 draw{20261121};
  for (int round = 0; round < 150; ++round) {
    CAPTURE(round);
    meet_hostility(draw);
  }
  CHECK(open_files() == files);
}

TEST_CASE("damaged rendezvous files are opened for a minute: no descriptor stays open",
          "[.minutes]") {
  sound_rendezvous();
  const auto files = open_files();
  for_a_while(meet_hostility);
  CHECK(open_files() == files);
}

}  // namespace
}  // namespace troupe::testing
