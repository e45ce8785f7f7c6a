#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>

#include "backends/local/file_descriptor.hpp"
#include "backends/processes/arguments.hpp"
#include "backends/processes/black_box.hpp"
#include "backends/processes/linked_client.hpp"

namespace troupe {

namespace {

constexpr std::string_view rank_word = "--troupe-rank";

std::atomic<bool> parent_of_was_called{false};

template <class T>
T number(std::string_view text, T low) {
  T x{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc{} || end != text.data() + text.size() || x < low)
    throw internal_error(
        fmt::format("{} is for the program's own use: \"{}\" is no number of it", rank_word, text));
  return x;
}

// SIGTERM is blocked in all threads of this process from exec on, and read from a descriptor: no
// handler interrupts a lane.
file_descriptor terminations() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
  file_descriptor from{::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK)};
  if (!from) throw internal_error(fmt::format("no descriptor for SIGTERM: {}", errno));
  return from;
}

class child_client : public linked_client {
public:
  explicit child_client(const rank_arguments& what)
      // The kernel ends this process with its parent, however that ends. A parent that is only
      // stopped, or that a debugger holds, is to find its ranks again.
      : linked_client(what.who, link_descriptor, false),
        box_(black_box::adopt(black_box_descriptor)),
        terminated_(loop(), terminations().release()) {
    box_.show_life();
    for (int i = 0; i < what.descriptors; ++i) others_.push_back(first_other_descriptor + i);
    // Processes that this one starts must not hold them open.
    for (int one = link_descriptor; one < first_other_descriptor + what.descriptors; ++one)
      ::fcntl(one, F_SETFD, FD_CLOEXEC);
  }

  const std::vector<int>& descriptors() const override { return others_; }
  void enter(std::int32_t rank, const hook& what) noexcept override { box_.enter(rank, what); }

  bool serve(std::function<void(link_message&&)> received) override {
    // One message is enough, because the supervisor remembers it: later signals are not read.
    terminated_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [this](const boost::system::error_code& error) {
                             if (!error) control().send(process_leaves{"SIGTERM"});
                           });
    return linked_client::serve(std::move(received));
  }

protected:
  void lost(const std::string& why) noexcept override { box_.leave(why); }

private:
  black_box box_;
  boost::asio::posix::stream_descriptor terminated_;
  std::vector<int> others_;
};

}  // namespace

void die_with(int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before prctl
}

void leave_to_parent(std::initializer_list<int> signals) {
  sigset_t ignored;
  sigemptyset(&ignored);
  for (const auto one : signals) {
    std::signal(one, SIG_IGN);
    sigaddset(&ignored, one);
  }
  sigprocmask(SIG_UNBLOCK, &ignored, nullptr);
}

std::vector<std::string> arguments_of(const rank_arguments& what) {
  return {std::string{rank_word},
          fmt::format("{}", what.who.number),
          fmt::format("{}", what.who.world),
          fmt::format("{}", what.who.job.value()),
          fmt::format("{}", what.who.incarnation.value()),
          fmt::format("{}", what.parent),
          fmt::format("{}", what.descriptors)};
}

std::optional<rank_arguments> read_arguments(int count, const char* const* arguments) {
  constexpr int all = 8;
  if (count < 2 || arguments[1] != rank_word) return std::nullopt;
  if (count != all) throw internal_error(fmt::format("{} is for the program's own use", rank_word));
  rank_arguments what;
  what.who.number = number<std::int32_t>(arguments[2], 0);
  what.who.world = number<std::int32_t>(arguments[3], 1);
  what.who.job = job_id{number<std::uint64_t>(arguments[4], 0)};
  what.who.incarnation = incarnation_id{number<std::uint64_t>(arguments[5], 0)};
  what.parent = number<int>(arguments[6], 1);
  what.descriptors = number<int>(arguments[7], 0);
  return what;
}

bool main_knows_ranks() { return parent_of_was_called; }

bool started_as_rank() {
  static const bool is_rank = [] {
    std::ifstream words{"/proc/self/cmdline", std::ios::binary};
    std::string word;
    std::getline(words, word, '\0');  // the program's name
    return std::getline(words, word, '\0') && (word == rank_word || word == placed_word);
  }();
  return is_rank;
}

std::unique_ptr<launcher_client> launcher_client_of(int count, const char* const* arguments) {
  parent_of_was_called = true;
  const auto what = read_arguments(count, arguments);
  if (!what) return nullptr;
  die_with(what->parent);
  leave_to_parent({SIGINT, SIGHUP});
  return std::make_unique<child_client>(*what);
}

}  // namespace troupe
