#include "backends/learner/run_handler.hpp"

#include "messages/lane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace troupe {

namespace {

const closure no_closure;

}  // namespace

run_handler::run_handler(const learner_context& context, lane_services lane)
    : lane_(std::move(lane)) {
  std::ranges::copy_if(context.options.faults, std::back_inserter(drills_),
                       [&](const fault_drill& d) { return d.rank == context.rank; });
}

ran run_handler::handle(learner& who, const hook_run& run) {
  ran answer;
  answer.at = run.at;
  if (go_on(who, run, answer, run.hooks.size(), false)) return answer;
  current_ = &run.hooks[std::min<std::size_t>(answer.handled, run.hooks.size() - 1)];
  try {
    throw user_error(
        errc::bad_usage,
        "the learner threw not_yet, or returned run_verdict::waits, in a lane that can "
        "wait: wait for the peers in the hook (work::wait); both are for learners of "
        "a simulation");
  } catch (const user_error& error) {
    failed(answer, describe(error));
  }
  current_ = nullptr;
  return answer;
}

bool run_handler::go_on(learner& who, const hook_run& run, ran& answer, std::size_t until,
                        bool again) {
  skip_entry_ = again;
  const std::span<const hook> hooks{run.hooks};
  try {
    while (answer.handled < until) {
      if (stops_before(hooks[answer.handled], answer.outcome)) break;
      const auto before = answer.handled;
      if (!skip_entry_) pass(who, hooks.first(until), answer.handled);
      const std::size_t i = answer.handled;
      if (i == until || (i > before && stops_before(hooks[i], answer.outcome))) break;
      std::size_t inside = 0;
      if (const auto* step = hooks[i].get_if<hooks::optimizer_step>()) inside = step->closure;
      const bool done = inside > 0 ? handle_step(who, hooks.subspan(i), inside, answer.outcome)
                                   : handle_one(who, hooks[i], no_closure, answer.outcome);
      if (!done) {
        current_ = nullptr;
        return false;
      }
      answer.handled += static_cast<std::uint32_t>(1 + inside);
      if (answer.outcome.verdict == run_verdict::skip_epoch) break;
    }
    if (run.keep_point && answer.handled == hooks.size() &&
        answer.outcome.verdict == run_verdict::proceed) {
      current_ = &hooks.back();
      who.keep_point();
    }
  } catch (const not_yet&) {
    current_ = nullptr;
    return false;
  } catch (const std::exception& e) {
    failed(answer, describe(e, lane_.text));
  } catch (...) {
    failed(answer, describe(std::current_exception(), lane_.text));
  }
  current_ = nullptr;
  return true;
}

// Whether the lane's attention ends the run before `next`; then the outcome says so. Once the
// weights of a step are updated, the rest of the run belongs to the state of that step.
bool run_handler::stops_before(const hook& next, hook_outcome& so_far) const {
  if (!lane_.word || lane_.word->load(std::memory_order_acquire) == attention::none) return false;
  if (so_far.samples > 0 || next.is<hooks::lr_scheduler_step, hooks::rewind>()) return false;
  so_far.verdict = run_verdict::attention;
  return true;
}

// Called inside the catch block.
void run_handler::failed(ran& answer, failure what) const {
  answer.outcome.verdict = run_verdict::failed;
  if (current_) {
    what.hook = name(*current_);
    what.epoch = where(*current_).epoch;
    what.step = where(*current_).step;
  }
  answer.failed_with.emplace(caught{std::move(what), std::current_exception()});
}

// Handles the first of `hooks`, with the next `inside` hooks as its closure.
bool run_handler::handle_step(learner& who, std::span<const hook> hooks, std::size_t inside,
                              hook_outcome& into) {
  if (inside > hooks.size() - 1)
    throw internal_error("an optimizer_step's closure reaches beyond its run");
  const auto inner = [&, body = hooks.subspan(1, inside)] {
    for (std::uint32_t handled = 0; pass(who, body, handled), handled < body.size(); ++handled) {
      if (!handle_one(who, body[handled], no_closure, into))
        throw internal_error("a hook inside a closure returned `waits`: it must throw not_yet");
      current_ = &hooks.front();
      if (lane_.current) lane_.current(*current_);
    }
  };
  return handle_one(who, hooks.front(), std::cref(inner), into);  // allocates no memory
}

// Lets the learner skip hooks that do nothing in it. What it throws belongs to the hook it reached.
void run_handler::pass(learner& who, std::span<const hook> hooks, std::uint32_t& handled) {
  if (watched()) return;
  struct came_to {
    ~came_to() {
      if (handled < hooks.size()) current = &hooks[handled];
    }
    const hook*& current;
    std::span<const hook> hooks;
    const std::uint32_t& handled;
  } const there{current_, hooks, handled};
  who.pass(hooks, handled);
  if (handled > hooks.size())
    throw user_error(errc::bad_usage,
                     fmt::format("learner::pass counts {} handled hooks of {}: add those that it "
                                 "has handled, from hooks[handled] on",
                                 handled, hooks.size()));
}

namespace {

// A fit without a training loader would be finished after no step. The loader 0 reports all of its
// stage.
void check_loaders(const hook& h, const hook_outcome& outcome) {
  if (!h.is<hooks::process_dataloader>()) return;
  const auto asked = where(h).stage;
  if (asked == stage::validate || where(h).dataloader > 0) return;  // a module may validate nothing
  const auto is_it = [&](const loader_length& one) { return one.stage == asked; };
  if (std::ranges::none_of(outcome.loaders, is_it))
    throw user_error(errc::bad_usage,
                     fmt::format("the learner reported no loader of the stage {}: add its length "
                                 "to hook_outcome::loaders in process_dataloader",
                                 to_string(asked)));
}

}  // namespace

// False: the hook waits.
bool run_handler::handle_one(learner& who, const hook& h, const closure& inner,
                             hook_outcome& into) {
  current_ = &h;
  if (!std::exchange(skip_entry_, false) && watched()) enter(h);
  auto outcome = who.on(h, inner);
  if (outcome.verdict == run_verdict::waits) return false;
  if (outcome.verdict != run_verdict::proceed && outcome.verdict != run_verdict::skip_epoch)
    throw user_error(errc::bad_usage,
                     "the learner returned a verdict that is not for single hooks: return proceed, "
                     "skip_epoch or waits; throw an exception if the hook has failed");
  check_loaders(h, outcome);
  into.merge(std::move(outcome));
  return true;
}

void run_handler::enter(const hook& h) {
  if (lane_.current) lane_.current(h);
  if (lane_.entered) lane_.entered(h);
  if (!drills_.empty()) drill(h);
}

void run_handler::drill(const hook& h) {
  const auto due = [&](const fault_drill& d) {
    return d.hook == name(h) && (d.step == undefined || d.step == where(h).step);
  };
  const auto found = std::ranges::find_if(drills_, due);
  if (found == drills_.end()) return;
  const auto what = *found;
  drills_.erase(found);
  if (what.what == fault_drill::kind::raise) throw injected_fault(what.text);
  if (!lane_.drill) throw internal_error("this lane has no fire drills but throw");
  lane_.drill(what);
}

namespace {

bool rewinds(const hook_run& run) {
  return !run.hooks.empty() && run.hooks.front().is<hooks::rewind>();
}

}  // namespace

bool has_failed(bool before, const hook_run& run, const ran& answer) {
  if (answer.outcome.verdict != run_verdict::failed) return before && !rewinds(run);
  const bool left = !run.hooks.empty() && run.hooks.front().is<hooks::teardown>() &&
                    answer.failed_with && answer.failed_with->record.follows;
  return before || !left;
}

std::exception_ptr refusal_without_learner(const hook_run& run) {
  if (!rewinds(run)) return nullptr;
  return std::make_exception_ptr(
      user_error(errc::job_failed, "this rank has no learner that could return to a point"));
}

}  // namespace troupe
