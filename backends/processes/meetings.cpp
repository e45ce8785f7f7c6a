#include "backends/processes/meetings.hpp"

#include <sys/random.h>

#include "backends/processes/address_board.hpp"
#include "backends/shm/shm.hpp"

namespace troupe {

namespace {

int only(const std::vector<int>& descriptors) {
  if (descriptors.size() != 1) throw internal_error("a rank's process inherited no meeting");
  return descriptors.front();
}

class shm_place : public meeting {
public:
  std::vector<int> descriptors() const override { return {place_.descriptor()}; }

private:
  shm_meeting place_ = shm_meeting::create();
};

class shm_kind : public meeting_kind {
public:
  std::string_view name() const override { return "shm"; }
  std::string unusable() const override { return shm_unusable(); }
  std::shared_ptr<meeting> arrange() const override { return std::make_shared<shm_place>(); }
  std::shared_ptr<communicator_backend> join(const std::string&,
                                             const std::vector<int>& descriptors) const override {
    return std::make_shared<shm_backend>(shm_meeting::adopt(only(descriptors)));
  }
};

std::array<std::uint8_t, 32> fresh_secret() {
  std::array<std::uint8_t, 32> secret{};
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    throw internal_error("the kernel gave no random numbers");
  return secret;
}

class tcp_place : public meeting {
public:
  std::vector<int> descriptors() const override { return {board_->descriptor()}; }

private:
  std::shared_ptr<address_board> board_ = address_board::create(fresh_secret());
};

class tcp_kind : public meeting_kind {
public:
  std::string_view name() const override { return "tcp"; }
  std::string unusable() const override { return tcp_backend{}.unusable(); }
  std::shared_ptr<meeting> arrange() const override { return std::make_shared<tcp_place>(); }
  std::shared_ptr<communicator_backend> join(const std::string&,
                                             const std::vector<int>& descriptors) const override {
    const auto board = address_board::adopt(only(descriptors));
    tcp_options options;
    options.secret = board->secret();
    options.rendezvous = board;
    return std::make_shared<tcp_backend>(options);
  }
};

}  // namespace

std::vector<std::shared_ptr<meeting_kind>> process_meetings() {
  return {std::make_shared<shm_kind>(), std::make_shared<tcp_kind>()};
}

}  // namespace troupe
