#include "troupe/loggers.hpp"

#include "backends/telemetry/csv_logger.hpp"
#include "backends/telemetry/event_log.hpp"
#include "backends/telemetry/metrics_once.hpp"
#include "backends/telemetry/progress_line.hpp"
#include "backends/telemetry/tensorboard_logger.hpp"
#include "backends/telemetry/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <ostream>
#include <utility>

namespace troupe {

namespace {

// Makes the logger when the job's first event says where a fit begins: `undefined` for other jobs.
class begun_with_job : public observer {
public:
  using make_logger = std::function<std::unique_ptr<observer>(std::int64_t fit_begins)>;

  explicit begun_with_job(make_logger make) : make_(std::move(make)) {}
  void on(const observation& what) override {
    if (!logger_) {
      const auto* first = std::get_if<seen::lifecycle>(&what);
      if (!first || first->event != lifecycle_kind::generation_forming) return;
      const bool fits = first->details.at("stage") == to_string(stage::train);
      logger_ = std::make_unique<metrics_once>(make_(fits ? first->step : undefined));
    }
    logger_->on(what);
  }
  void finish(std::uint64_t dropped) override {
    if (logger_) logger_->finish(dropped);
  }

private:
  make_logger make_;
  std::unique_ptr<observer> logger_;
};

void make_folders(const std::filesystem::path& folder) {
  std::error_code why;
  if (!folder.empty()) std::filesystem::create_directories(folder, why);
  if (why)
    throw user_error(errc::bad_configuration,
                     "cannot make the folder " + folder.string() + ": " + why.message());
}

std::unique_ptr<observer> begin_csv(const std::string& path, std::int64_t fit_begins) {
  auto logger = std::make_unique<csv_logger>(path);  // refuses a file of another kind
  if (fit_begins == undefined) return logger;
  if (fit_begins == 0)
    std::filesystem::remove(path);
  else
    cut_metrics(path, fit_begins);
  return std::make_unique<csv_logger>(path);
}

tensorboard_logger::setting hyper_parameter(const value& of) {
  if (const auto* truth = of.get_if<bool>()) return *truth;
  if (const auto* integer = of.get_if<std::int64_t>()) return static_cast<double>(*integer);
  if (const auto* number = of.get_if<double>()) return *number;
  if (const auto* text = of.get_if<std::string>()) return *text;
  return to_string(of);
}

// The cursor stays at the end of a live text, which may have a line for each rank.
class drawn_anew {
public:
  explicit drawn_anew(std::ostream& to) : to_(to) {}
  void operator()(std::string_view text) {
    if (text.starts_with('\r')) {
      const auto below = static_cast<std::size_t>(std::ranges::count(text, '\n'));
      if (below_ > 0) to_ << fmt::format("\x1b[{}A{}", below_, below < below_ ? "\r\x1b[J" : "");
      below_ = below;
    }
    to_ << text << std::flush;
  }

private:
  std::ostream& to_;
  std::size_t below_ = 0;  // lines of the last text, without its first
};

std::chrono::system_clock::time_point wall_time() { return std::chrono::system_clock::now(); }

}  // namespace

observer_factory log_csv(std::string path) {
  return [path = std::move(path)] {
    return std::make_unique<begun_with_job>([path](std::int64_t fit_begins) {
      make_folders(std::filesystem::path{path}.parent_path());
      return begin_csv(path, fit_begins);
    });
  };
}

observer_factory log_tensorboard(std::string folder, value_map settings) {
  tensorboard_logger::facts about;
  for (const auto& [name, of] : settings.items) about.settings.emplace(name, hyper_parameter(of));
  return [folder = std::move(folder), about = std::move(about)] {
    return std::make_unique<begun_with_job>([folder, about](std::int64_t fit_begins) {
      make_folders(folder);
      auto of_job = about;
      of_job.resumed_at = fit_begins;
      return std::make_unique<tensorboard_logger>(folder, of_job, wall_time);
    });
  };
}

observer_factory log_events(std::string path) {
  return [path = std::move(path)] {
    make_folders(std::filesystem::path{path}.parent_path());
    return std::make_unique<event_log>(path, wall_time);
  };
}

observer_factory show_progress(const trainer_options& options, std::ostream& to, int terminal) {
  auto how = progress_line::style::of(options);
  if (terminal >= 0 && ::isatty(terminal) == 1) {
    how.live = true;
    how.columns = [terminal] { return size_of_terminal(terminal).columns; };
    how.rows = [terminal] { return size_of_terminal(terminal).rows; };
  }
  return [how, &to] {
    return std::make_unique<progress_line>(
        how, [] { return std::chrono::steady_clock::now().time_since_epoch(); }, drawn_anew{to});
  };
}

}  // namespace troupe
