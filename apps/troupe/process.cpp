#include "apps/troupe/process.hpp"

#include "backends/telemetry/terminal.hpp"
#include "troupe/failure.hpp"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

extern char** environ;

namespace troupe::program {

namespace {

// When this program began. The kernel's start time (/proc/self/stat) is unusable: exec keeps it, so
// it includes the minutes in which a shell compiled before it became this program.
timespec first_moment{};

// The linker's table of functions that run before the constructors of LibTorch and of all other
// libraries, which take most of the time until main. No sanitizer is ready then.
__attribute__((no_sanitize("address", "undefined"))) void note_first_moment(int, char**, char**) {
  ::clock_gettime(CLOCK_MONOTONIC, &first_moment);
}
using early_function = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] const early_function first_function =
    note_first_moment;

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::size_t columns_of_standard_error() { return size_of_terminal(STDERR_FILENO).columns; }
std::size_t rows_of_standard_error() { return size_of_terminal(STDERR_FILENO).rows; }

// A pipe with room takes a line of up to 4096 bytes at once. One without a reader is an error at
// once.
bool standard_error_has_room(std::chrono::milliseconds wait) {
  pollfd file{STDERR_FILENO, POLLOUT, 0};
  int ready = 0;
  do ready = ::poll(&file, 1, static_cast<int>(wait.count()));
  while (ready < 0 && errno == EINTR);
  return ready != 0;
}

bool is_set(const char* variable) {
  const auto* text = std::getenv(variable);
  return text && *text;
}

}  // namespace

double process_age() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - first_moment.tv_sec) +
         static_cast<double>(now.tv_nsec - first_moment.tv_nsec) * 1e-9;
}

console::writer standard_output() {
  return [](std::string_view text) {
    if (!write_all(STDOUT_FILENO, text))
      throw user_error(errc::job_failed,
                       std::string{"cannot write to standard output: "} + std::strerror(errno));
  };
}

console::writer standard_error() {
  return [](std::string_view text) { write_all(STDERR_FILENO, text); };
}

console::terminal terminal_of_standard_error() {
  console::terminal facts;
  const auto* kind = std::getenv("TERM");
  const bool dumb = !kind || std::string_view{kind} == "dumb";
  facts.live = ::isatty(STDERR_FILENO) == 1 && !dumb;
  facts.colour = facts.live && !is_set("NO_COLOR");
  if (facts.live) facts.columns = columns_of_standard_error;
  if (facts.live) facts.rows = rows_of_standard_error;
  facts.has_room = standard_error_has_room;
  return facts;
}

cluster_facts cluster_facts_of_process() {
  cluster_facts facts;
  facts.variable = [](const std::string& name) -> std::optional<std::string> {
    const auto* text = std::getenv(name.c_str());
    return text ? std::optional<std::string>{text} : std::nullopt;
  };
  facts.lines = [](const std::string& path) {
    std::vector<std::string> all;
    std::ifstream file{path};
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  };
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) facts.host = name.data();
  return facts;
}

std::map<std::string, std::string> troupe_variables() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text{*entry};
    const auto equals = text.find('=');
    if (text.starts_with("TROUPE_") && equals != std::string_view::npos)
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

}  // namespace troupe::program
