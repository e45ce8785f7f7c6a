#include "apps/troupe/trouble_report.hpp"

#include "troupe/observer.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

namespace troupe::program {

struct trouble_report::state {
  explicit state(console& to) : screen(to) {}

  console& screen;
  std::mutex guard;
  std::set<std::string> reported;  // texts of the exceptions that ended observers
  bool checkpoints_fail = false;   // the last checkpoint could not be written
  bool removals_fail = false;      // an old checkpoint could not be removed
  bool warned = false;
  std::string warned_of_place;

  void checkpoint_failed(const seen::lifecycle& what);
  void checkpoint_written(const seen::lifecycle& what);
  void generation_forming(const seen::lifecycle& what);
  void warn_of_place(const std::function<std::string()>& misplaced);
  void look_at(const seen::metrics& what);
  void remember(const std::string& text) {
    const std::lock_guard hold{guard};
    reported.insert(text);
  }
};

void trouble_report::state::checkpoint_failed(const seen::lifecycle& what) {
  const std::lock_guard hold{guard};
  const auto found = what.details.find("what");
  const auto why = found == what.details.end() ? "unknown" : found->second;
  if (what.cause && what.cause->hook == "remove_checkpoint") {
    if (std::exchange(removals_fail, true)) return;
    return screen.warning(
        fmt::format("a checkpoint that is no longer kept could not be removed: {}; the run goes on "
                    "and tries it again with the next ones",
                    why));
  }
  if (std::exchange(checkpoints_fail, true)) return;
  screen.error(fmt::format("the checkpoint of step {} was not written: {}", what.step, why));
}

void trouble_report::state::checkpoint_written(const seen::lifecycle& what) {
  const std::lock_guard hold{guard};
  if (std::exchange(checkpoints_fail, false))
    screen.note(fmt::format("checkpoints are written again: step {}", what.step));
}

void trouble_report::state::warn_of_place(const std::function<std::string()>& misplaced) {
  const std::lock_guard hold{guard};
  const auto text = misplaced();
  if (text.empty() || text == warned_of_place) return;
  warned_of_place = text;
  screen.warning(text);
}

void trouble_report::state::generation_forming(const seen::lifecycle& what) {
  const auto cause = what.details.find("cause");
  if (cause == what.details.end()) return;  // the first generation
  const auto why = cause->second == "left"     ? "a process has left"
                   : cause->second == "scaled" ? "a change of the number of ranks"
                                               : "a failure";
  screen.note(fmt::format("generation {}: the job goes on after {}", what.generation, why));
}

void trouble_report::state::look_at(const seen::metrics& what) {
  const std::lock_guard hold{guard};
  if (warned) return;
  std::string which;
  for (const auto& [name, number] : what.logged)
    if (!std::isfinite(number) && which.empty()) which = fmt::format("{} is {}", name, number);
  if (what.logged.contains(non_finite_steps)) which = "the loss is not finite";
  if (which.empty()) return;
  warned = true;
  screen.warning(
      fmt::format("{} at step {}; the run goes on, but its weights may be of no use: try a smaller "
                  "--learning-rate, or --gradient-clip-val",
                  which, what.at.step));
}

namespace {

// Hands each observation to a function of the report.
class listener : public observer {
public:
  explicit listener(std::function<void(const observation&)> handle) : handle_(std::move(handle)) {}
  void on(const observation& what) override { handle_(what); }

private:
  std::function<void(const observation&)> handle_;
};

class file_observer : public observer {
public:
  file_observer(std::unique_ptr<observer> inner, std::string file, console& screen,
                std::function<void(const std::string&)> remember)
      : inner_(std::move(inner)),
        file_(std::move(file)),
        screen_(screen),
        remember_(std::move(remember)) {}

  bool wants_hooks() const override { return inner_->wants_hooks(); }
  void on(const observation& what) override {
    guarded([&] { inner_->on(what); });
  }
  void finish(std::uint64_t dropped) override {
    guarded([&] { inner_->finish(dropped); });
    if (lost_ > 0)
      screen_.error(fmt::format("{} lacks {} {}", file_, lost_, lost_ == 1 ? "entry" : "entries"));
  }

private:
  template <class F>
  void guarded(F f) {
    try {
      f();
    } catch (const std::system_error& error) {
      lost(error.what());
    } catch (const user_error& error) {
      lost(error.what());
    } catch (const std::exception& error) {
      screen_.error(error.what());
      remember_(error.what());
      throw;
    }
  }

  void lost(std::string_view why) {
    if (++lost_ > 1) return;
    screen_.error(
        fmt::format("{}; the run goes on, and {} lacks what cannot be written", why, file_));
  }

  std::unique_ptr<observer> inner_;
  std::string file_;
  console& screen_;
  std::function<void(const std::string&)> remember_;
  std::uint64_t lost_ = 0;
};

}  // namespace

trouble_report::trouble_report(console& screen) : state_(std::make_shared<state>(screen)) {}

observer_factory trouble_report::watch(std::function<std::string()> misplaced) const {
  return [s = state_, misplaced = std::move(misplaced)] {
    return std::make_unique<listener>([s, misplaced](const observation& what) {
      if (const auto* metrics = std::get_if<seen::metrics>(&what)) return s->look_at(*metrics);
      const auto* event = std::get_if<seen::lifecycle>(&what);
      if (!event) return;
      if (event->event == lifecycle_kind::checkpoint_failed) s->checkpoint_failed(*event);
      if (event->event == lifecycle_kind::checkpoint_written) s->checkpoint_written(*event);
      if (event->event == lifecycle_kind::checkpoint_written && misplaced)
        s->warn_of_place(misplaced);
      if (event->event == lifecycle_kind::generation_forming) s->generation_forming(*event);
    });
  };
}

observer_factory trouble_report::around(observer_factory make, std::string file) const {
  return
      [s = state_, make = std::move(make), file = std::move(file)]() -> std::unique_ptr<observer> {
        const auto remember = [s](const std::string& text) { s->remember(text); };
        try {
          return std::make_unique<file_observer>(make(), file, s->screen, remember);
        } catch (const std::exception& error) {
          s->screen.error(error.what());
          s->remember(error.what());
          throw;
        }
      };
}

bool trouble_report::reported(const failure& late) const {
  if (late.hook == hooks::save_checkpoint::name) return true;
  const std::lock_guard hold{state_->guard};
  return state_->reported.contains(late.what);
}

}  // namespace troupe::program
