#include "apps/troupe/cmd_fit.hpp"

#include "actors/job_check.hpp"
#include "apps/http/prometheus_text.hpp"
#include "apps/troupe/build_facts.hpp"
#include "apps/troupe/config_text.hpp"
#include "apps/troupe/exit_code.hpp"
#include "apps/troupe/exit_status.hpp"
#include "apps/troupe/job_parts.hpp"
#include "apps/troupe/job_runner.hpp"
#include "apps/troupe/launched.hpp"
#include "apps/troupe/result_file.hpp"
#include "apps/troupe/run_control.hpp"
#include "apps/troupe/run_folder.hpp"
#include "apps/troupe/run_loggers.hpp"
#include "apps/troupe/run_plan.hpp"
#include "apps/troupe/trouble_report.hpp"
#include "backends/entropy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>

namespace troupe::program {

namespace {

// What the user has to know of where the checkpoints are.
std::string wrong_with_place(const run_folder& at) {
  namespace fs = std::filesystem;
  if (!at.is_in_place())
    return fmt::format(
        "the run folder {0} was moved or removed while the job runs: what is written from now on "
        "is in a new folder {0}, and the checkpoints before are where the other one is now",
        at.path());
  const auto link = fs::path{at.path()} / checkpoints_folder / latest_link;
  std::error_code ignored;
  if (fs::symlink_status(link, ignored).type() != fs::file_type::not_found) return {};
  return fmt::format(
      "{} is not there: something has removed it, or this file system has no symbolic links; "
      "--resume latest goes on with the newest checkpoint",
      link.string());
}

class fit_call {
public:
  // Reports errors in the settings or the checkpoint before it creates a folder or writes a file.
  fit_call(run_plan plan, const context& around)
      : plan_(std::move(plan)),
        around_(around),
        shared_(shared_job(plan_.settings, around,
                           [this](learning& of, trainer_options&) { add_callbacks(of); })),
        folder_(accepted()) {}

  program_end run() {
    job_runner runner{around_.world(), [this](int signal, int count) {
                        around_.screen.note(signal_note(signal, count, left_by_stops()));
                      }};
    serve_metrics(runner);
    const auto traces = add_traces(plan_.settings, shared_);
    if (plan_.resumes) folder_->resume_at(plan_.step);
    folder_->write(config_file, saved_configuration(plan_.settings));
    serve(runner);
    const auto started = around_.age();
    auto outcome = runner.run(fit_job());
    // A rank that failed may have taken the last values with it.
    if (!outcome.ok()) outcome.last.merge(live_.as_status().last);
    auto result = result_of(outcome, shared_.options);
    std::erase_if(result.metrics, [this](const auto& one) { return hidden_.hides(one.first); });
    if (outcome.figures.seconds_to_first_step > 0)
      result.seconds_to_first_step = started + outcome.figures.seconds_to_first_step;
    report_outcome(outcome);
    report_profile(around_.screen, outcome);
    if (wants_test(outcome)) {
      outcome = runner.stopped() ? without_test(outcome) : test(runner, outcome);
      add_test(outcome, result);
    }
    runner.serve_no_more();
    report_traces(around_.screen, traces);
    job_runner::ignore_later_signals();
    return close(result, outcome, runner);
  }

private:
  // What other settings need of callbacks.
  void add_callbacks(learning& of) {
    if (plan_.settings.text("profiler") == "torch")
      of.callbacks.push_back("torch_profiler,path=" + place_of("torch_trace.json"));
    const auto loggers = plan_.settings.get<std::vector<std::string>>("logger");
    if (std::ranges::find(loggers, "tensorboard") != loggers.end())
      of.callbacks.push_back("tensorboard,folder=" + place_of("model"));
    const auto given = [&](const char* name) {
      return std::ranges::find(of.callbacks, name) != of.callbacks.end();
    };
    hidden_ = {.of_ranks = !given("ranks"), .of_run = !given("figures")};
    if (hidden_.of_ranks && shows_live(plan_.settings, around_)) of.callbacks.push_back("ranks");
    if (hidden_.of_run) of.callbacks.push_back("figures");
  }
  // In the run's folder, as the value of a callback's option.
  std::string place_of(const char* name) const {
    auto path = (std::filesystem::absolute(plan_.folder) / name).string();
    if (path.find(',') == path.npos) return path;
    throw user_error(
        errc::bad_configuration,
        fmt::format("a callback cannot write {}: choose a --run-dir without commas", path));
  }

  // The folder of a job that would not be refused.
  std::shared_ptr<run_folder> accepted() {
    if (plan_.checkpoint.empty()) add_init_weights(plan_.settings, shared_);
    take_place(shared_, around_.place);
    check_job(plain_job(), around_.world());
    check_traces(plan_.settings);
    return plan_.held ? plan_.held : std::make_shared<run_folder>(plan_.folder);
  }

  // A port that is not free ends the call, before it changes a file of the run.
  void serve_metrics(job_runner& runner) const {
    if (!plan_.settings.is_set("metrics_port")) return;
    const auto wanted = static_cast<std::uint16_t>(plan_.settings.integer("metrics_port"));
    const auto port = runner.serve_metrics(wanted, [this, &runner] {
      return prometheus_head("troupe_info", "gauge", "The program and its run") +
             fmt::format("troupe_info{{version={},run={}}} 1\n",
                         prometheus_label(build_facts::version), prometheus_label(plan_.folder)) +
             prometheus_text({{.labels = "", .status = live_.as_json()}});
    });
    const auto place = fmt::format("metrics on http://127.0.0.1:{}/metrics", port);
    // Only this line says which port 0 has become.
    if (wanted == 0)
      around_.screen.answer(place);
    else
      around_.screen.note(place);
  }

  // A run without a control socket goes on.
  void serve(job_runner& runner) const {
    const auto note = [this](const std::string& text) { around_.screen.note(text); };
    try {
      runner.serve(plan_.folder, [this, &runner, note](const std::string& line) {
        return answer_request(line, runner, live_,
                              {shared_.options, around_.place, left_by_stops()}, note);
      });
    } catch (const user_error& error) {
      around_.screen.warning(error.what());
    }
  }

  // Without the observers of a fit.
  job plain_job() const {
    auto fit = shared_;
    fit.purpose = stage::train;
    // Without a folder the job has no checkpointer, and returns the last weights all the same.
    if (plan_.settings.flag("enable_checkpointing"))
      fit.run_folder = std::filesystem::absolute(plan_.folder).lexically_normal().string();
    if (!plan_.checkpoint.empty()) fit.resume = absolute_checkpoint().string();
    return fit;
  }

  // A link may lead to the folder: a checkpoint of the run itself is named as one.
  std::filesystem::path absolute_checkpoint() const {
    namespace fs = std::filesystem;
    const auto folder = fs::absolute(plan_.folder).lexically_normal();
    const auto one = folder / checkpoints_folder / fs::path{plan_.checkpoint}.filename();
    std::error_code ignored;
    return fs::equivalent(one, plan_.checkpoint, ignored)
               ? one
               : fs::absolute(plan_.checkpoint).lexically_normal();
  }

  job fit_job() {
    auto fit = plain_job();
    add(progress_of(plan_.settings, around_), fit);
    fit.started = [this](const job_handle& held) { live_.hold(held); };
    fit.observers.push_back(
        report_.watch([folder = folder_] { return wrong_with_place(*folder); }));
    add_loggers({.folder = plan_.folder,
                 .restarts = fit.options.elastic.enabled(),
                 .resumed_at = plan_.resumes ? plan_.step : undefined,
                 .hidden = hidden_},
                fit);
    fit.observers.push_back(events());
    return fit;
  }

  static void add(std::vector<observer_factory> more, job& to) {
    for (auto& make : more) to.observers.push_back(std::move(make));
  }
  void add_loggers(const logged_job& about, job& to) const {
    add(loggers_of(plan_.settings, about, report_, around_.wall), to);
  }
  void log_test(const seen::metrics& what) const {
    const logged_job test{.folder = plan_.folder, .is_test = true};
    for (const auto& make : loggers_of(plan_.settings, test, report_, around_.wall)) {
      try {
        const auto logger = make();
        logger->on(what);
        logger->finish(0);
      } catch (const std::exception&) {
        // report_ has shown it.
      }
    }
  }

  observer_factory events() const {
    const auto path = folder_->file(events_file);
    return report_.around(
        [path, wall = around_.wall] { return std::make_unique<event_log>(path, wall); }, path);
  }

  void report_outcome(const job_outcome& outcome) const {
    report_troubles(around_.screen, outcome,
                    [this](const failure& late) { return report_.reported(late); });
  }

  bool wants_test(const job_outcome& outcome) const {
    if (outcome.status != job_outcome::ending::finished || !outcome.weights) return false;
    const auto& limit = shared_.options.limit_test_batches;
    const bool none = std::visit([](auto x) { return x == 0; }, limit);
    return !none && shared_.options.max_steps != 0 &&
           around_.learning.has_test(learning_of(plan_.settings), shared_.options.seed);
  }

  // A stop came when the steps were done, so the run ends before its test.
  static job_outcome without_test(job_outcome fitted) {
    fitted.status = job_outcome::ending::stopped;
    return fitted;
  }

  // Tests the trained weights.
  job_outcome test(job_runner& runner, const job_outcome& fitted) {
    auto test = shared_;
    test.purpose = stage::test;
    test.initial = fitted.weights;
    add(progress_of(plan_.settings, around_), test);
    test.started = [this](const job_handle& held) { live_.hold(held); };
    test.observers.push_back(events());
    auto outcome = runner.run(std::move(test));
    report_outcome(outcome);
    outcome.survivors.insert(outcome.survivors.end(), fitted.survivors.begin(),
                             fitted.survivors.end());
    return outcome;
  }

  // Adds how the test ended to the result of the fit. The metrics of a test that was stopped or
  // failed are those of a part of its data: neither the result nor the loggers get them.
  void add_test(const job_outcome& tested, run_result& result) {
    result.status = tested.status;
    if (tested.failed_with) result.failed_with = tested.failed_with->record;
    untested_ = tested.status != job_outcome::ending::finished;
    if (untested_) return;
    seen::metrics all;
    all.logged = figures_of(tested);
    // At the end of an epoch, training continues with the next one.
    const auto& at = result.loop;
    all.at.step = at.steps;
    all.at.epoch = at.epoch - (at.batch == 0 && at.epoch > 0 ? 1 : 0);
    for (const auto& [name, number] : all.logged) result.metrics[name] = number;
    log_test(all);
  }

  program_end close(run_result& result, const job_outcome& last, job_runner& runner) const {
    result.seconds_total = around_.age();
    auto code = exit_status_of(last, runner.signal());
    const auto text = result_text(result);
    try {
      folder_->write(result_file, text + "\n");
    } catch (const user_error& error) {
      around_.screen.error(error.what());
      if (code == exits::done) code = static_cast<int>(error.code());
    }
    const bool aborted = result.status == job_outcome::ending::failed && runner.ended_at_once();
    if (aborted || (result.failed_with && result.failed_with->code == errc::checkpoint))
      around_.screen.note(
          saved_note(result.loop.steps, newest_checkpoint(), plan_.folder, around_.name));
    try {
      print(result, text, aborted);
    } catch (const user_error&) {
      // After SIGHUP the terminal is closed, after SIGINT perhaps the pipe: no output.
      if (runner.signal() == 0) throw;
    }
    return {code, !last.survivors.empty()};
  }

  // The step of the newest good checkpoint in the folder, of this run or an earlier one.
  std::optional<std::int64_t> newest_checkpoint() const {
    std::optional<std::int64_t> step;
    if (!std::filesystem::exists(folder_->file(checkpoints_folder))) return step;
    const checkpoint_reader checkpoints{around_.learning.checkpoints()};
    for (const auto& one : checkpoints.list(plan_.folder)) {
      if (!one.damage.empty()) continue;
      step = one.step;
      if (one.latest) break;
    }
    return step;
  }

  void print(const run_result& result, const std::string& text, bool aborted) const {
    auto& screen = around_.screen;
    if (result.status == job_outcome::ending::stopped) screen.note(stopped_note(result.loop.steps));
    if (result.non_finite_steps > 0)
      screen.warning(fmt::format("the loss of {} of {} steps was not finite",
                                 result.non_finite_steps, result.loop.steps));
    if (plan_.settings.flag("json")) return screen.result(text);
    if (!screen.quiet()) summarize(result, aborted ? "ended at once" : to_string(result.status));
    const auto accuracy = result.metrics.find("test/accuracy");
    screen.result(
        accuracy == result.metrics.end()
            ? fmt::format("run folder {}", plan_.folder)
            : fmt::format("test accuracy {:.4f}, run folder {}", accuracy->second, plan_.folder));
  }

  bool saves() const {
    return plan_.settings.flag("enable_checkpointing") && shared_.options.fast_dev_run == 0;
  }

  // The test after the fit saves nothing.
  left_by_stop left_by_stops() const {
    return saves() && live_.as_status().purpose == stage::train ? left_by_stop::checkpoint
                                                                : left_by_stop::nothing;
  }

  std::string stopped_note(std::int64_t steps) const {
    auto note = fmt::format("stopped after {} steps", steps);
    if (untested_) note += ", which are all of them, but before the end of the test";
    if (!saves()) return note + ", without a checkpoint";
    return note + fmt::format("; go on with: {} fit --run-dir {} --resume latest", around_.name,
                              plan_.folder);
  }

  void summarize(const run_result& result, std::string_view how) const {
    auto line =
        fmt::format("{} after {} epochs, {} steps, {} samples in {:.1f} s", how, result.loop.epoch,
                    result.loop.steps, result.loop.samples, result.seconds_total);
    if (result.history && result.history->restarts > 0)
      line += fmt::format(", {} restart{}", result.history->restarts,
                          result.history->restarts == 1 ? "" : "s");
    if (result.samples_per_second > 0)
      line += fmt::format(", {:.0f} samples/s", result.samples_per_second);
    around_.screen.result(line);
    if (!result.metrics.empty()) around_.screen.result(metrics_text(result.metrics));
  }

  run_plan plan_;
  const context& around_;
  hidden_figures hidden_;
  bool untested_ = false;  // the fit has done its steps, and its test has not ended
  job shared_;
  std::shared_ptr<run_folder> folder_;
  trouble_report report_{around_.screen};
  live_status live_{shared_.options, plan_.step, {.of_run = hidden_.of_run}};
};

}  // namespace

program_end fit(const schema& all, given what, const context& around) {
  const checkpoint_reader checkpoints{around.learning.checkpoints()};
  auto plan = plan_fit(all, std::move(what), checkpoints, [&](const std::string& model) {
    return fresh_run_folder(model, around.wall(), around.world().random->draw());
  });
  if (plan.settings.flag("quiet")) around.screen.be_quiet();
  refuse_copies(around.cluster, around.place);
  take_place(plan.settings, around.place);
  if (around.place) around.screen.note(place_note(*around.place, plan.settings));
  for (const auto& note : plan.notes) around.screen.note(note);
  return fit_call{std::move(plan), around}.run();
}

}  // namespace troupe::program
