#include "apps/troupe/process.hpp"

#include "messages/failure.hpp"

#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

extern char** environ;

namespace troupe::program {

namespace {

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

bool is_set(const char* variable) {
  const auto* text = std::getenv(variable);
  return text && *text;
}

std::optional<std::int32_t> number_in(const char* variable) {
  const auto* text = std::getenv(variable);
  if (!text) return std::nullopt;
  std::int32_t number = 0;
  const auto* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, number);
  return error == std::errc{} && rest == end ? std::optional{number} : std::nullopt;
}

}  // namespace

double process_age() {
  std::ifstream in{"/proc/self/stat"};
  const std::string all{std::istreambuf_iterator<char>{in}, {}};
  // The second field is the program's name in parentheses, which may hold anything.
  const auto name_end = all.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields{all.substr(name_end + 1)};
  constexpr int from_name_to_start = 19;
  std::string skipped;
  for (int i = 0; i < from_name_to_start; ++i) fields >> skipped;
  double started = 0;
  timespec now{};
  if (!(fields >> started) || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const auto since_boot = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  return since_boot - started / static_cast<double>(::sysconf(_SC_CLK_TCK));
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
  winsize size{};
  if (facts.live && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    facts.columns = size.ws_col;
  return facts;
}

std::optional<placed_rank> rank_by_mpirun() {
  constexpr std::array<std::array<const char*, 2>, 2> known{
      {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}}};
  for (const auto& [rank, world] : known) {
    const auto own = number_in(rank);
    const auto all = number_in(world);
    if (own && all && *own >= 0 && *own < *all) return placed_rank{*own, *all};
  }
  return std::nullopt;
}

bool mpirun_on_one_host() {
  const auto place = rank_by_mpirun();
  if (!place) return false;
  const auto here = number_in("OMPI_COMM_WORLD_LOCAL_SIZE");
  return (here ? here : number_in("MPI_LOCALNRANKS")) == place->world;
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
