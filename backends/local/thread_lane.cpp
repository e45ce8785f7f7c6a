#include "backends/local/thread_lane.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "backends/learner/run_handler.hpp"
#include "backends/local/fault_drills.hpp"

namespace troupe {

namespace {

struct binding {
  std::shared_ptr<communicator> world;
  generation_id generation;
};
struct closing {
  std::function<void(value, caught)> closed;
};
using order = std::variant<hook_run, binding, closing>;

// All state that the thread uses. It is shared with the lane's handle and outlives the handle if
// user code is stuck.
struct block {
  learner_context context;
  recipe_ptr recipe;
  std::function<std::chrono::nanoseconds()> now;
  // Only the lane's thread uses it. It may wait for the trace's reader, so it is called without
  // `guard`, which the rank's actor takes.
  std::function<void(const hook&)> entered;
  std::atomic<attention> word{attention::none};
  std::atomic<bool> handle_gone{false};

  std::mutex guard;
  std::condition_variable news;
  std::deque<order> orders;
  std::function<void(ran&&)> answered;  // empty once the handle is gone
  bool abandoned = false;
  bool in_flight = false;  // a run is not answered yet
  std::string_view hook;   // in flight
  std::int64_t step = undefined;
  std::chrono::nanoseconds since{0};

  void set_current(const troupe::hook& h) { set_current(name(h), where(h).step); }
  void set_current(std::string_view what, std::int64_t at = undefined) {
    const std::lock_guard lock(guard);
    hook = what;
    step = at;
    since = now();
  }
  void trace(const troupe::hook& h) {
    if (!handle_gone) entered(h);
  }
  void answer(ran&& what) {
    const std::lock_guard lock(guard);
    hook = {};
    in_flight = false;
    if (answered) answered(std::move(what));
  }
  // The next order; none when the handle is gone.
  std::optional<order> next() {
    std::unique_lock lock(guard);
    news.wait(lock, [&] { return abandoned || !orders.empty(); });
    if (abandoned) return std::nullopt;
    auto first = std::move(orders.front());
    orders.pop_front();
    return first;
  }
};

// The thread's function. It creates and destroys the learner.
class lane_body {
public:
  explicit lane_body(std::shared_ptr<block> shared)
      : shared_(std::move(shared)),
        handler_(shared_->context,
                 {&shared_->word, [b = shared_.get()](const hook& h) { b->set_current(h); },
                  shared_->entered
                      ? std::function<void(const hook&)>{[b = shared_.get()](const hook& h) {
                          b->trace(h);
                        }}
                      : nullptr,
                  carry_out_drill, shared_->recipe->text_of_exceptions()}) {}

  void run() {
    shared_->set_current("make");
    make();
    shared_->set_current("");
    while (auto what = shared_->next()) {
      if (auto* end = std::get_if<closing>(&*what)) return close(std::move(*end));
      if (auto* bound = std::get_if<binding>(&*what)) {
        shared_->set_current("bind");
        bind(*bound);
        shared_->set_current("");
      } else {
        handle(std::get<hook_run>(*what));
      }
    }
  }

private:
  void make() {
    try {
      learner_ = shared_->recipe->make(shared_->context);
      if (!learner_)
        throw user_error(errc::bad_usage,
                         "the recipe made no learner: learner_recipe::make returned null; return "
                         "one, or throw the reason");
    } catch (...) {
      broken_ = std::current_exception();
    }
  }

  void bind(const binding& bound) {
    if (!learner_) return;
    try {
      learner_->bind(bound.world, bound.generation);
    } catch (...) {
      broken_ = std::current_exception();
    }
  }

  void handle(const hook_run& run) {
    if (!broken_ && learner_) {
      auto answer = handler_.handle(*learner_, run);
      failed_ = has_failed(failed_, run, answer);
      return shared_->answer(std::move(answer));
    }
    // Creating or binding the learner threw. The first run is answered with this exception; later
    // runs do nothing, except that a rewind is refused.
    if (!broken_) broken_ = refusal_without_learner(run);
    ran answer;
    answer.at = run.at;
    answer.outcome.verdict = broken_ ? run_verdict::failed : run_verdict::proceed;
    if (broken_) {
      answer.failed_with.emplace(caught{recorded(broken_), broken_});
      if (!run.hooks.empty()) answer.failed_with->record.hook = name(run.hooks.front());
      broken_ = nullptr;
      learner_.reset();
      failed_ = true;
    }
    shared_->answer(std::move(answer));
  }

  void close(closing end) {
    value result;
    caught last;
    try {
      if (learner_ && !failed_) result = learner_->result();
      learner_.reset();
    } catch (...) {
      last = {recorded(std::current_exception()), std::current_exception()};
    }
    end.closed(std::move(result), std::move(last));
  }

  failure recorded(const std::exception_ptr& error) const {
    return describe(error, shared_->recipe->text_of_exceptions());
  }

  std::shared_ptr<block> shared_;
  run_handler handler_;
  std::unique_ptr<learner> learner_;
  std::exception_ptr broken_;
  bool failed_ = false;
};

class thread_lane : public lane {
public:
  explicit thread_lane(std::shared_ptr<block> shared)
      : shared_(std::move(shared)), thread_([b = shared_] { lane_body{b}.run(); }) {}

  ~thread_lane() override {
    std::function<void(ran &&)> dropped;
    shared_->handle_gone = true;
    {
      const std::lock_guard lock(shared_->guard);
      dropped = std::exchange(shared_->answered, {});
      shared_->abandoned = !closed_->load();
    }
    shared_->word = attention::generation_closed;
    shared_->news.notify_all();
    if (closed_->load()) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    order what = binding{std::move(world), generation};
    const std::lock_guard lock(shared_->guard);
    auto& waiting = shared_->orders;
    // Generations may end before the lane is free: of several bindings without a run between them
    // the last one counts.
    if (!waiting.empty() && std::holds_alternative<binding>(waiting.back()))
      std::swap(waiting.back(), what);
    else
      push(std::move(what));
  }

  void submit(hook_run run) override {
    const std::lock_guard lock(shared_->guard);
    if (shared_->in_flight) throw internal_error("a lane was given two runs at a time");
    push(std::move(run));
    shared_->in_flight = true;
  }

  void set_attention(attention word) noexcept override { shared_->word = word; }

  lane_status status() const override {
    const std::lock_guard lock(shared_->guard);
    if (!shared_->in_flight) return {};
    if (shared_->hook.empty()) return {true, "bind"};  // its first hook, or `bind`, begins now
    return {true, shared_->hook, shared_->step, shared_->now() - shared_->since};
  }

  void close(std::function<void(value, caught)> closed) override {
    const std::lock_guard lock(shared_->guard);
    push(closing{[done = closed_, closed = std::move(closed)](value result, caught last) {
      done->store(true);
      closed(std::move(result), std::move(last));
    }});
  }

private:
  // The caller holds the guard.
  void push(order what) {
    constexpr std::size_t orders_max = 4;  // a run, the end, and bindings around them
    if (shared_->orders.size() >= orders_max)
      throw internal_error("a lane was given more generations than runs");
    shared_->orders.push_back(std::move(what));
    shared_->news.notify_one();
  }

  std::shared_ptr<block> shared_;
  std::shared_ptr<std::atomic<bool>> closed_ = std::make_shared<std::atomic<bool>>(false);
  std::thread thread_;
};

}  // namespace

std::unique_ptr<lane> thread_lanes::open(const learner_context& context, recipe_ptr recipe,
                                         lane_sink sink) {
  auto shared = std::make_shared<block>();
  shared->context = context;
  shared->context.attention_word = &shared->word;
  shared->recipe = std::move(recipe);
  shared->now = now_;
  shared->answered = std::move(sink.answered);
  shared->entered = std::move(sink.entered);
  return std::make_unique<thread_lane>(std::move(shared));
}

}  // namespace troupe
