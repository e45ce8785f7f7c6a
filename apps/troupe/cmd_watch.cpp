#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/run_files.hpp"
#include "apps/troupe/run_folder.hpp"
#include "apps/troupe/run_status.hpp"
#include "backends/telemetry/rank_figures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>
#include <vector>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

constexpr double live_seconds = 1, line_seconds = 10;
constexpr std::size_t metrics_shown = 8, ranks_shown = 8;

struct watch_question {
  std::string run;
  double seconds = 0;  // 0: by output
  bool json = false;
};

bool is_known(const ordered_json& object, const char* name) {
  return object.contains(name) && !object[name].is_null();
}

std::string metrics_line(const ordered_json& live) {
  std::vector<std::string> all;
  if (live.contains("metrics") && live["metrics"].is_object())
    for (const auto& [name, value] : live["metrics"].items())
      if (all.size() < metrics_shown && !rank_figures::is_one(name))
        all.push_back(value.is_number() ? fmt::format("{} {:.4f}", name, value.get<double>())
                                        : name + " nan");
  return fmt::format("{}", fmt::join(all, "  "));
}

std::vector<std::string> rank_lines(const ordered_json& live) {
  rank_figures figures;
  if (live.contains("metrics") && live["metrics"].is_object())
    for (const auto& [name, value] : live["metrics"].items())
      if (value.is_number()) figures.take(name, value.get<double>());
  return figures.lines(ranks_shown);
}

// `epoch 2/3  batch 17/469  step 485  21933 samples/s`. After the last epoch it is the last one.
std::string progress_text(const ordered_json& live) {
  std::vector<std::string> all;
  const auto counted = [&](const char* name, const char* most) {
    if (!is_known(live, name) || !live[name].is_number_integer()) return;
    auto at = live[name].get<std::int64_t>() + 1;
    const bool known = is_known(live, most) && live[most].is_number_integer();
    if (known) at = std::min(at, live[most].get<std::int64_t>());
    all.push_back(fmt::format("{} {}{}", name, at, known ? "/" + plain(live, most) : ""));
  };
  counted("epoch", "epochs");
  counted("batch", "batches");
  all.push_back("step " + plain(live, "step"));
  if (is_known(live, "samples_per_second") && live["samples_per_second"].is_number())
    all.push_back(fmt::format("{:.0f} samples/s", live["samples_per_second"].get<double>()));
  if (is_known(live, "seconds_left") && live["seconds_left"].is_number())
    all.push_back(fmt::format("{:.0f} s left", live["seconds_left"].get<double>()));
  return fmt::format("{}", fmt::join(all, "  "));
}

std::vector<std::string> picture_of(const ordered_json& all) {
  const auto& live = all["live"];
  if (!live.is_object())
    return {fmt::format("{}: {}; {}", plain(all, "run_folder"), plain(all, "state"),
                        is_job_of_service(plain(all, "run_folder"))
                            ? "ask its troupe_service, on its page or by GET /v1/jobs/NAME"
                        : all["other_host"].is_string() ? text_of_other_host(all)
                                                        : "its program does not answer yet")};
  std::vector<std::string> lines{
      fmt::format("{}: {} ({}), generation {}, ranks {}, shards {}", plain(all, "run_folder"),
                  plain(live, "state"), plain(live, "stage"), plain(live, "generation"),
                  plain(live, "ranks"), plain(live, "shards")),
      progress_text(live)};
  if (const auto metrics = metrics_line(live); !metrics.empty()) lines.push_back(metrics);
  for (auto& line : rank_lines(live)) lines.push_back(std::move(line));
  auto last = fmt::format("checkpoints {}", plain(live, "checkpoints"));
  if (is_known(live, "checkpoint_step"))
    last += fmt::format(" (newest at step {})", plain(live, "checkpoint_step"));
  lines.push_back(last + fmt::format(", restarts {}, left {}, failures {}", plain(live, "restarts"),
                                     plain(live, "restarts_left"), plain(live, "failures")));
  if (live.contains("newest_failures") && live["newest_failures"].is_array() &&
      !live["newest_failures"].empty()) {
    const auto& newest = live["newest_failures"].back();
    lines.push_back(fmt::format("last failure: generation {}: {}", plain(newest, "generation"),
                                plain(newest, "what")));
  }
  return lines;
}

// Shows one status after the other: over the last one on a terminal, as a line otherwise.
class watch_view {
public:
  explicit watch_view(console& screen) : screen_(screen) {}

  void show(const ordered_json& all) {
    if (!screen_.facts().live) {
      const auto& live = all["live"];
      const auto metrics = live.is_object() ? metrics_line(live) : std::string{};
      screen_.result(live.is_object() ? plain(live, "state") + "  " + progress_text(live) +
                                            (metrics.empty() ? "" : "  " + metrics)
                                      : picture_of(all).front());
      return;
    }
    clear();
    const auto columns = std::max<std::size_t>(screen_.facts().columns(), 2) - 1;
    std::string text;
    for (const auto& line : picture_of(all)) {
      text += printable(line).substr(0, columns) + "\n";
      ++rows_;
    }
    screen_.progress(text);
  }

  void clear() {
    if (rows_ > 0) screen_.progress(fmt::format("\x1b[{}A\x1b[J", rows_));
    rows_ = 0;
  }

private:
  // A failure's text may have line ends, and sequences that the terminal would obey.
  static std::string printable(std::string line) {
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
    return line;
  }

  console& screen_;
  std::size_t rows_ = 0;
};

program_end watch(const watch_question& what, console& screen) {
  check_holds_run(what.run);
  const bool live = screen.facts().live && !what.json;
  const std::chrono::duration<double> pause{what.seconds > 0 ? what.seconds
                                            : live           ? live_seconds
                                                             : line_seconds};
  watch_view view{screen};
  boost::asio::io_context loop;
  // A note below the picture would stay there, and with it the first lines of the picture.
  const note_taker note = [&](const std::string& text) {
    view.clear();
    screen.note("note: " + text);
  };
  for (;;) {
    const auto all = status_object(what.run, note);
    const bool runs = all["state"] == "running";
    if (what.json) {
      screen.result(all.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    } else if (runs) {
      view.show(all);
    } else {
      view.clear();
      show_status(all, screen);
    }
    if (!runs) return {};
    boost::asio::steady_timer timer{
        loop, std::chrono::duration_cast<std::chrono::steady_clock::duration>(pause)};
    timer.wait();
  }
}

}  // namespace

void add_watch(const command& app, const context& around, const choose& chosen) {
  auto what = std::make_shared<watch_question>();
  const auto command = app.add_command("watch", "follows a run until it ends");
  command.add("RUN_DIR", what->run, "the run's folder").required();
  command
      .add("--interval", what->seconds,
           "seconds between two looks; by default 1 on a terminal, else 10")
      .check([](const std::string& text) {
        double seconds = 0;
        const auto* end = text.data() + text.size();
        const auto [stopped, error] = std::from_chars(text.data(), end, seconds);
        return error == std::errc{} && stopped == end && seconds >= 0.05 && seconds <= 3600
                   ? ""
                   : "a number of seconds from 0.05 to 3600 is needed";
      })
      .type_name("SECONDS");
  command.add_flag("--json", what->json, "an object per look, as status has it");
  command.on_chosen([=, &around] { chosen([=, &around] { return watch(*what, around.screen); }); });
}

}  // namespace troupe::program
