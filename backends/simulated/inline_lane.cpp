#include "backends/simulated/inline_lane.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "backends/learner/run_handler.hpp"
#include "backends/simulated/baton.hpp"
#include "backends/simulated/blocking_communicator.hpp"

namespace troupe {

namespace {

bool may_wait(const hook& h) {
  return h.is<hooks::optimizer_step, hooks::barrier, hooks::teardown, hooks::model_to_device,
              hooks::dispatch, hooks::restore_state>();
}

// Scheduled events share ownership, so destroying a lane leaves no dangling reference.
class body : public std::enable_shared_from_this<body> {
public:
  body(const learner_context& context, recipe_ptr recipe, lane_sink sink,
       std::shared_ptr<const inline_lane_options> options)
      : options_(std::move(options)),
        sink_(std::move(sink)),
        recipe_(std::move(recipe)),
        context_(context) {
    context_.attention_word = &word;
    handler_ = std::make_unique<run_handler>(
        context_, run_handler::lane_services{&word, nullptr, sink_.entered, nullptr,
                                             recipe_->text_of_exceptions()});
    if (options_->thread) thread_ = options_->thread();
  }

  ~body() { learner_.reset(); }  // before the members it refers to

  void bind(std::shared_ptr<communicator> world, generation_id generation) {
    if (thread_) world = blocking_communicator(std::move(world), thread_);
    in_lane([&] {
      ensure_learner();
      try {
        if (learner_) learner_->bind(std::move(world), generation);
      } catch (...) {
        broken_ = std::current_exception();
      }
    });
  }

  // `self` owns this object and is shared by scheduled events.
  void submit(const std::shared_ptr<body>& self, hook_run run) {
    if (now_) throw internal_error("a lane was given two runs at a time");
    auto& free = runs_[0] ? runs_[1] : runs_[0];
    now_ = &free.emplace(std::move(run));
    schedule_next(self);
  }

  lane_status status() const {
    if (!now_) return {};
    const auto& h = now_->run.hooks[now_->answer.handled];
    return {true, name(h), where(h).step, options_->now() - since_};
  }

  void close(std::function<void(value, caught)> closed) {
    auto end = [self = shared_from_this(), closed = std::move(closed)] {
      value result;
      caught last;
      try {
        self->in_lane([&] {
          if (self->learner_ && !self->failed_) result = self->learner_->result();
          self->learner_.reset();
        });
      } catch (...) {
        last = {describe(std::current_exception()), std::current_exception()};
      }
      closed(std::move(result), std::move(last));
    };
    options_->later(std::chrono::nanoseconds{0}, std::move(end));
  }

  void leave() {
    gone_ = true;
    sink_ = {};
    if (options_->bell) options_->bell->wait(nullptr);
    if (thread_) thread_->abandon();
    in_lane([&] { learner_.reset(); });
  }

  std::atomic<attention> word{attention::none};

private:
  struct in_flight {
    explicit in_flight(hook_run what) : run(std::move(what)) { answer.at = run.at; }
    hook_run run;
    ran answer;
  };

  // For calls that do not wait.
  template <class F>
  void in_lane(F what) {
    if (!thread_) return what();
    if (!thread_->run(what)) throw internal_error("a learner waits where no lane may");
  }

  void ensure_learner() {
    if (learner_ || broken_ || made_) return;
    made_ = true;
    try {
      learner_ = recipe_->make(context_);
    } catch (...) {
      broken_ = std::current_exception();
    }
  }

  // Schedules the next hooks that happen at one moment. An optimizer_step includes its closure.
  void schedule_next(const std::shared_ptr<body>& self) {
    since_ = options_->now();
    const std::span<const hook> hooks{now_->run.hooks};
    const auto handled = now_->answer.handled;
    until_ = handled;
    for (bool waited = false; until_ < hooks.size();) {
      if (may_wait(hooks[until_]) && std::exchange(waited, true)) break;
      const auto* step = hooks[until_].get_if<hooks::optimizer_step>();
      until_ = std::min(until_ + 1 + (step ? step->closure : 0), hooks.size());
      if (!options_->in_spans) break;
    }
    std::chrono::nanoseconds cost{0};
    if (options_->cost)
      cost = options_->cost(context_.rank, hooks.subspan(handled, until_ - handled));
    options_->later(cost, [self = self] { self->handle_next(self, false); });
  }

  void handle_next(const std::shared_ptr<body>& self, bool again) {
    if (gone_ || !now_) return;
    if (!again) in_lane([&] { ensure_learner(); });
    if (broken_ || !learner_) return answer_broken();
    if (!again) since_ = options_->now();
    if (!went_on(again)) {
      auto retry = [self = self] { self->handle_next(self, true); };
      options_->bell ? options_->bell->wait(std::move(retry))
                     : options_->later(options_->poll, std::move(retry));
      return;
    }
    const auto& answer = now_->answer;
    const bool more =
        answer.handled < now_->run.hooks.size() && answer.outcome.verdict == run_verdict::proceed;
    more ? schedule_next(self) : finish();
  }

  // Returns false when the hook waits and has to be called again.
  bool went_on(bool again) {
    const auto call = [this, again] {
      went_on_ = handler_->go_on(*learner_, now_->run, now_->answer, until_, again);
    };
    if (!thread_) {
      call();
      return went_on_;
    }
    return (thread_->resting() ? thread_->go_on() : thread_->run(call)) && went_on_;
  }

  void answer_broken() {
    if (!broken_) broken_ = refusal_without_learner(now_->run);
    auto& answer = now_->answer;
    answer.outcome.verdict = broken_ ? run_verdict::failed : run_verdict::proceed;
    if (broken_) {
      auto& failed = answer.failed_with.emplace(caught{describe(broken_), broken_});
      failed.record.hook = name(now_->run.hooks.front());
      broken_ = nullptr;
    }
    in_lane([&] { learner_.reset(); });
    finish();
  }

  void finish() {
    auto& done = runs_[0] && now_ == &*runs_[0] ? runs_[0] : runs_[1];
    now_ = nullptr;
    failed_ = has_failed(failed_, done->run, done->answer);
    if (sink_.answered) sink_.answered(std::move(done->answer));
    done.reset();
  }

  // The members that each event reads come first.
  std::unique_ptr<run_handler> handler_;
  std::unique_ptr<learner> learner_;
  std::shared_ptr<const inline_lane_options> options_;
  in_flight* now_ = nullptr;
  // the run in flight, and one whose answer is being taken
  std::array<std::optional<in_flight>, 2> runs_;
  std::size_t until_ = 0;  // hooks to handle at the scheduled moment
  std::chrono::nanoseconds since_{0};
  bool made_ = false;
  bool failed_ = false;
  bool gone_ = false;
  bool went_on_ = false;
  std::exception_ptr broken_;
  std::shared_ptr<baton_thread> thread_;  // null: the learner runs on the simulation's thread
  lane_sink sink_;
  recipe_ptr recipe_;
  learner_context context_;
};

class inline_lane : public lane {
public:
  explicit inline_lane(std::shared_ptr<body> inner) : inner_(std::move(inner)) {}
  ~inline_lane() override { inner_->leave(); }

  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    inner_->bind(std::move(world), generation);
  }
  void submit(hook_run run) override { inner_->submit(inner_, std::move(run)); }
  void set_attention(attention word) noexcept override { inner_->word = word; }
  lane_status status() const override { return inner_->status(); }
  void close(std::function<void(value, caught)> closed) override {
    inner_->close(std::move(closed));
  }

private:
  std::shared_ptr<body> inner_;
};

}  // namespace

std::unique_ptr<lane> inline_lanes::open(const learner_context& context, recipe_ptr recipe,
                                         lane_sink sink) {
  return std::make_unique<inline_lane>(
      std::make_shared<body>(context, std::move(recipe), std::move(sink), options_));
}

}  // namespace troupe
