#include "backends/simulated/inline_lane.hpp"

#include <utility>
#include <variant>

#include "backends/run_handler.hpp"

namespace troupe {

namespace {

// What is scheduled holds it, so a lane that is destroyed leaves nothing behind that could be
// touched.
class body : public std::enable_shared_from_this<body> {
public:
  body(const learner_context& context, recipe_ptr recipe, lane_sink sink, later_fn later,
       std::function<std::chrono::nanoseconds()> now, hook_cost_fn cost,
       std::chrono::nanoseconds poll)
      : context_(context),
        recipe_(std::move(recipe)),
        sink_(std::move(sink)),
        later_(std::move(later)),
        now_(std::move(now)),
        cost_(std::move(cost)),
        poll_(poll) {
    context_.attention_word = &word;
    handler_ = std::make_unique<run_handler>(
        context_, run_handler::surroundings{&word, nullptr, sink_.entered, nullptr});
  }

  void bind(std::shared_ptr<communicator> world, generation_id generation) {
    ensure_learner();
    try {
      if (learner_) learner_->bind(std::move(world), generation);
    } catch (...) {
      broken_ = std::current_exception();
    }
  }

  void submit(hook_run run) {
    if (running_) throw internal_error("an inline lane was given two runs at a time");
    running_ = std::move(run);
    answer_ = {};
    answer_.at = running_->at;
    since_ = now_();
    schedule_next();
  }

  lane_status status() const {
    if (!running_) return {};
    const auto& h = running_->hooks[answer_.handled];
    return {true, std::string{name(h)}, where(h).step, now_() - since_};
  }

  void close(std::function<void(value, caught)> closed) {
    later_(std::chrono::nanoseconds{0}, [self = shared_from_this(), closed = std::move(closed)] {
      value result;
      caught last;
      try {
        if (self->learner_ && !self->failed_) result = self->learner_->result();
        self->learner_.reset();
      } catch (...) {
        last = {describe(std::current_exception()), std::current_exception()};
      }
      closed(std::move(result), std::move(last));
    });
  }

  void leave() {
    gone_ = true;
    sink_ = {};
    learner_.reset();
  }

  std::atomic<attention> word{attention::none};

private:
  void ensure_learner() {
    if (learner_ || broken_ || made_) return;
    made_ = true;
    try {
      learner_ = recipe_->make(context_);
    } catch (...) {
      broken_ = std::current_exception();
    }
  }

  std::size_t next() const { return answer_.handled; }

  void schedule_next() {
    const auto cost =
        cost_ ? cost_(context_.rank, running_->hooks[next()]) : std::chrono::nanoseconds{0};
    later_(cost, [self = shared_from_this()] { self->handle_next(false); });
  }

  // One hook (an optimizer_step with its closure) at a time, so that others run in between.
  void handle_next(bool again) {
    if (gone_ || !running_) return;
    ensure_learner();
    if (broken_ || !learner_) return answer_broken();
    hook_run one{running_->at, {running_->hooks[next()]}};
    if (const auto* step = std::get_if<hooks::optimizer_step>(&running_->hooks[next()]))
      for (std::size_t i = 1; i <= step->closure; ++i)
        one.hooks.push_back(running_->hooks.at(next() + i));
    since_ = again ? since_ : now_();
    ran part;
    try {
      part = handler_->handle(*learner_, one, again);
    } catch (const not_yet&) {
      later_(poll_, [self = shared_from_this()] { self->handle_next(true); });
      return;
    }
    answer_.handled += part.handled;
    answer_.outcome.merge(std::move(part.outcome));
    answer_.failed_with = std::move(part.failed_with);
    const bool more = next() < running_->hooks.size() && answer_.outcome.word == run_word::proceed;
    more ? schedule_next() : finish();
  }

  void answer_broken() {
    answer_.outcome.word = broken_ ? run_word::failed : run_word::proceed;
    if (broken_) answer_.failed_with = caught{describe(broken_), std::exchange(broken_, nullptr)};
    answer_.failed_with.record.hook = name(running_->hooks.front());
    learner_.reset();
    finish();
  }

  void finish() {
    running_.reset();
    failed_ = failed_ || answer_.outcome.word == run_word::failed;
    if (sink_.answered) sink_.answered(std::move(answer_));
  }

  learner_context context_;
  recipe_ptr recipe_;
  lane_sink sink_;
  later_fn later_;
  std::function<std::chrono::nanoseconds()> now_;
  hook_cost_fn cost_;
  std::chrono::nanoseconds poll_;
  std::unique_ptr<run_handler> handler_;
  std::unique_ptr<learner> learner_;
  std::exception_ptr broken_;
  bool made_ = false;
  bool failed_ = false;
  bool gone_ = false;
  std::optional<hook_run> running_;
  ran answer_;
  std::chrono::nanoseconds since_{0};
};

class inline_lane : public lane {
public:
  explicit inline_lane(std::shared_ptr<body> inner) : inner_(std::move(inner)) {}
  ~inline_lane() override { inner_->leave(); }

  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    inner_->bind(std::move(world), generation);
  }
  void submit(hook_run run) override { inner_->submit(std::move(run)); }
  void set_attention(attention word) noexcept override { inner_->word = word; }
  lane_status status() const override { return inner_->status(); }
  void close(std::function<void(value, caught)> closed) override {
    inner_->close(std::move(closed));
  }

private:
  std::shared_ptr<body> inner_;
};

}  // namespace

inline_lanes::inline_lanes(later_fn later, std::function<std::chrono::nanoseconds()> now,
                           hook_cost_fn cost, std::chrono::nanoseconds poll)
    : later_(std::move(later)), now_(std::move(now)), cost_(std::move(cost)), poll_(poll) {}

std::unique_ptr<lane> inline_lanes::open(const learner_context& context, recipe_ptr recipe,
                                         lane_sink sink) {
  return std::make_unique<inline_lane>(std::make_shared<body>(
      context, std::move(recipe), std::move(sink), later_, now_, cost_, poll_));
}

}  // namespace troupe
