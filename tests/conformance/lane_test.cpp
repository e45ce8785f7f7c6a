// Goal: every adapter keeps the contract of the lane port. One thread handles runs in order and
// answers each once. An exception is reported with its hook and step. Attention stops a run between
// two hooks. Closing returns the learner's result. Destroying a handle never waits for user code
// that hangs.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backends/local/thread_lane.hpp"
#include "backends/simulated/inline_lane.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// Queue of a lane's outputs. `get` waits for the next output, or runs `step` until it is there.
template <class T>
class inbox {
public:
  void put(T what) {
    const std::lock_guard lock{guard_};
    all_.push_back(std::move(what));
    news_.notify_all();
  }
  T get(const std::function<bool()>& step) {
    std::unique_lock lock{guard_};
    while (step && all_.empty()) {
      lock.unlock();
      if (!step()) throw std::runtime_error("nothing is left to do");
      lock.lock();
    }
    news_.wait(lock, [&] { return !all_.empty(); });
    auto first = std::move(all_.front());
    all_.pop_front();
    return first;
  }
  bool empty() {
    const std::lock_guard lock{guard_};
    return all_.empty();
  }

private:
  std::mutex guard_;
  std::condition_variable news_;
  std::deque<T> all_;
};

/// What the scripted learner does at each hook, and what it recorded.
struct script {
  std::function<hook_outcome(const hook&, const learner_context&)> at_hook;
  std::function<value()> at_end;
  std::function<void()> at_make;
  std::function<void()> at_bind;
  std::mutex guard;
  std::vector<std::string> hooks;
  std::vector<std::thread::id> threads;
  int alive = 0;

  void note(const std::string& what) {
    const std::lock_guard lock{guard};
    hooks.push_back(what);
    threads.push_back(std::this_thread::get_id());
  }
};

class scripted final : public learner {
public:
  scripted(std::shared_ptr<script> by, learner_context about)
      : script_(std::move(by)), about_(std::move(about)) {
    script_->note("made");
    ++script_->alive;
  }
  ~scripted() override {
    script_->note("gone");
    --script_->alive;
  }
  void bind(std::shared_ptr<communicator>, generation_id g) override {
    script_->note("bound " + std::to_string(g.value()));
    if (script_->at_bind) script_->at_bind();
  }
  hook_outcome on(const hook& h, const closure& inner) override {
    script_->note(std::string{name(h)});
    if (inner) inner();
    return script_->at_hook ? script_->at_hook(h, about_) : hook_outcome{};
  }
  value result() override { return script_->at_end ? script_->at_end() : value{"result"}; }

private:
  std::shared_ptr<script> script_;
  learner_context about_;
};

struct scripted_recipe final : learner_recipe {
  explicit scripted_recipe(std::shared_ptr<script> by) : by(std::move(by)) {}
  std::unique_ptr<learner> make(const learner_context& about) const override {
    if (by->at_make) by->at_make();
    return std::make_unique<scripted>(by, about);
  }
  /// Keeps only the first line of the text.
  exception_text text_of_exceptions() const override {
    return [](const std::exception& error) {
      const std::string text = error.what();
      return text.substr(0, text.find('\n'));
    };
  }
  std::shared_ptr<script> by;
};

/// One adapter, and the function that makes it progress.
struct adapter {
  std::shared_ptr<lane_backend> lanes;
  std::function<bool()> step;  ///< empty: the adapter progresses by itself
};

adapter threads() {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
  return {std::make_shared<thread_lanes>(now), {}};
}

adapter in_line() {
  using due = std::multimap<std::chrono::nanoseconds, later_call>;
  auto waiting = std::make_shared<due>();
  auto time = std::make_shared<std::chrono::nanoseconds>(0);
  const later_fn later{[=](std::chrono::nanoseconds delay) {
    return &waiting->emplace(*time + delay, later_call{})->second;
  }};
  const auto cost = [](std::int32_t, std::span<const hook> all) {
    return std::chrono::nanoseconds{10} * static_cast<std::int64_t>(all.size());
  };
  inline_lane_options how;
  how.later = later;
  how.now = [=] { return *time; };
  how.cost = cost;
  return {std::make_shared<inline_lanes>(std::move(how)), [=] {
            if (waiting->empty()) return false;
            auto first = waiting->extract(waiting->begin());
            *time = first.key();
            first.mapped()();
            return true;
          }};
}

/// A lane with its learner's script and its answers.
struct stage_of_lane {
  explicit stage_of_lane(adapter on, const std::function<void(const hook&)>& trace = {},
                         std::function<void()> at_make = {})
      : by(std::move(on)) {
    what->at_make = std::move(at_make);
    lane_sink sink;
    sink.answered = [in = answers](ran&& what) { in->put(std::move(what)); };
    sink.entered = [in = entered](const hook& h) { in->put(std::string{name(h)}); };
    if (trace) sink.entered = trace;
    work = by.lanes->open({}, std::make_shared<scripted_recipe>(what), std::move(sink));
  }
  ran answer() { return answers->get(by.step); }
  void submit(std::vector<hook> hooks) {
    hook_run run;
    run.at.sequence = sequence_id{++runs};
    run.hooks = std::move(hooks);
    work->submit(std::move(run));
  }
  std::pair<value, caught> close() {
    auto end = std::make_shared<inbox<std::pair<value, caught>>>();
    work->close([end](value result, caught last) { end->put({std::move(result), last}); });
    return end->get(by.step);
  }

  adapter by;
  std::shared_ptr<script> what = std::make_shared<script>();
  std::shared_ptr<inbox<ran>> answers = std::make_shared<inbox<ran>>();
  std::shared_ptr<inbox<std::string>> entered = std::make_shared<inbox<std::string>>();
  std::unique_ptr<lane> work;
  std::uint64_t runs = 0;
};

position at_step(std::int64_t step) { return {stage::train, 0, step, step}; }

template <class... Hooks>
std::vector<hook> hooks_at(std::int64_t step) {
  return {hook{Hooks{{at_step(step)}}}...};
}

using adapter_maker = adapter (*)();

}  // namespace

TEST_CASE("one thread handles runs in order and answers each of them once", "[lane]") {
  const auto make = GENERATE(adapter_maker{threads}, adapter_maker{in_line});
  stage_of_lane on(make());
  on.work->bind(nullptr, generation_id{3});
  on.submit(hooks_at<hooks::connect, hooks::setup_environment>(0));
  const auto first = on.answer();
  CHECK(first.at.sequence == sequence_id{1});
  CHECK(first.handled == 2);
  CHECK(first.outcome.verdict == run_verdict::proceed);
  on.submit({hooks::optimizer_step{at_step(1), 2}, hooks::pre_backward{{at_step(1)}},
             hooks::post_backward{{at_step(1)}}, hooks::on_train_batch_end{{at_step(1)}}});
  const auto second = on.answer();
  CHECK(second.at.sequence == sequence_id{2});
  CHECK(second.handled == 4);
  CHECK(on.close().first == value{"result"});
  on.work.reset();
  CHECK(on.answers->empty());
  CHECK(on.what->hooks == std::vector<std::string>{
                              "made", "bound 3", "connect", "setup_environment", "optimizer_step",
                              "pre_backward", "post_backward", "on_train_batch_end", "gone"});
  for (const auto& id : on.what->threads) CHECK(id == on.what->threads.front());
  CHECK((on.what->threads.front() == std::this_thread::get_id()) == bool(on.by.step));
  CHECK(on.entered->get({}) == "connect");
}

TEST_CASE("submitting a second run is refused while the first continues", "[lane]") {
  const auto make = GENERATE(adapter_maker{threads}, adapter_maker{in_line});
  stage_of_lane on(make());
  inbox<bool> gate;
  on.what->at_hook = [&](const hook&, const learner_context&) {
    if (!on.by.step) gate.get({});  // the inline adapter runs this later anyway
    return hook_outcome{};
  };
  on.submit(hooks_at<hooks::connect>(0));
  CHECK_THROWS_AS(on.submit(hooks_at<hooks::setup_environment>(0)), internal_error);
  for (int i = 0; i < 3; ++i) gate.put(true);
  const auto first = on.answer();
  CHECK(first.at.sequence == sequence_id{1});
  CHECK(first.handled == 1);
  on.submit(hooks_at<hooks::on_train_start>(0));  // an answered run leaves room for the next
  CHECK(on.answer().at.sequence == sequence_id{3});
  on.close();
  CHECK(on.answers->empty());
  CHECK(on.what->hooks == std::vector<std::string>{"made", "connect", "on_train_start", "gone"});
}

TEST_CASE("many generations end before the lane is free: the last one is bound", "[lane]") {
  stage_of_lane on(threads());
  inbox<bool> gate;
  on.what->at_hook = [&](const hook& h, const learner_context&) {
    if (h.is<hooks::connect>()) gate.get({});
    return hook_outcome{};
  };
  on.submit(hooks_at<hooks::connect>(0));
  CHECK(on.entered->get({}) == "connect");
  for (std::uint64_t g = 2; g <= 20; ++g) on.work->bind(nullptr, generation_id{g});
  gate.put(true);
  on.answer();
  on.submit(hooks_at<hooks::on_train_start>(0));
  on.answer();
  on.close();
  CHECK(on.what->hooks ==
        std::vector<std::string>{"made", "connect", "bound 20", "on_train_start", "gone"});
}

TEST_CASE("a failure record holds the exception text as the recipe extracts it", "[lane]") {
  const auto make = GENERATE(adapter_maker{threads}, adapter_maker{in_line});
  stage_of_lane on(make());
  on.what->at_hook = [](const hook& h, const learner_context&) -> hook_outcome {
    if (name(h) == "pre_backward") throw std::domain_error("disk full\nframe #0");
    return {};
  };
  on.submit(hooks_at<hooks::on_train_start, hooks::pre_backward>(7));
  const auto bad = on.answer();
  CHECK(bad.failed_with->record.type == "std::domain_error");
  CHECK(bad.failed_with->record.what == "disk full");
}

TEST_CASE("an exception in a hook is reported with its type and hook and step", "[lane]") {
  const auto make = GENERATE(adapter_maker{threads}, adapter_maker{in_line});
  stage_of_lane on(make());
  on.what->at_hook = [](const hook& h, const learner_context&) -> hook_outcome {
    if (name(h) == "pre_backward") throw std::domain_error("disk full");
    return {};
  };
  on.submit(hooks_at<hooks::on_train_start, hooks::pre_backward, hooks::post_backward>(7));
  const auto bad = on.answer();
  CHECK(bad.handled == 1);
  CHECK(bad.outcome.verdict == run_verdict::failed);
  CHECK(bad.failed_with->record.type == "std::domain_error");
  CHECK(bad.failed_with->record.hook == "pre_backward");
  CHECK(bad.failed_with->record.step == 7);
  CHECK_THROWS_AS(std::rethrow_exception(bad.failed_with->original), std::domain_error);
  // on_exception and teardown still run, but there is no result.
  on.submit({hooks::on_exception{{}, "std::domain_error", "disk full"}});
  CHECK(on.answer().outcome.verdict == run_verdict::proceed);
  CHECK(on.close().first.empty());
}

TEST_CASE("attention stops a run between two hooks and the rest can be resubmitted", "[lane]") {
  const auto make = GENERATE(adapter_maker{threads}, adapter_maker{in_line});
  stage_of_lane on(make());
  on.what->at_hook = [&](const hook& h, const learner_context& about) -> hook_outcome {
    hook_outcome outcome;
    if (name(h) == "pre_backward") on.work->set_attention(attention::generation_closed);
    // the learner sees the attention word too
    outcome.stop = about.attention_word->load() != attention::none;
    return outcome;
  };
  on.submit(hooks_at<hooks::on_train_start, hooks::pre_backward, hooks::post_backward>(0));
  const auto cut = on.answer();
  CHECK(cut.handled == 2);
  CHECK(cut.outcome.verdict == run_verdict::attention);
  CHECK(cut.outcome.stop);
  on.submit(hooks_at<hooks::post_backward>(0));
  CHECK(on.answer().handled == 0);
  on.work->set_attention(attention::none);
  on.submit(hooks_at<hooks::post_backward>(0));
  CHECK(on.answer().handled == 1);
  on.close();
}

TEST_CASE("an exception while the learner makes its result is returned by close", "[lane]") {
  const auto make = GENERATE(adapter_maker{threads}, adapter_maker{in_line});
  stage_of_lane on(make());
  on.what->at_end = []() -> value { throw std::domain_error("no result"); };
  on.submit(hooks_at<hooks::connect>(0));
  on.answer();
  const auto [result, last] = on.close();
  CHECK(result.empty());
  CHECK(last.record.what == "no result");
}

TEST_CASE("a lane reports the hook in flight and is destroyed without waiting for it", "[lane]") {
  inbox<bool> reached, gate, done;
  {
    stage_of_lane on(threads());
    on.what->at_hook = [&](const hook&, const learner_context&) {
      reached.put(true);
      gate.get({});
      return hook_outcome{};
    };
    CHECK_FALSE(on.work->status().busy);
    on.submit(hooks_at<hooks::on_train_batch_end>(5));
    reached.get({});
    const auto status = on.work->status();
    CHECK(status.busy);
    CHECK(status.hook == "on_train_batch_end");
    CHECK(status.step == 5);
    const auto answers = on.answers;
    const auto what = on.what;
    on.work.reset();  // returns at once
    CHECK(what->alive == 1);
    CHECK(answers->empty());
    // The learner is destroyed when its code returns. It reports nothing after that.
    std::thread watch([&] {
      for (bool gone = false; !gone;) {
        const std::lock_guard lock{what->guard};
        gone = what->hooks.back() == "gone";
        std::this_thread::yield();
      }
      done.put(true);
    });
    gate.put(true);
    done.get({});
    watch.join();
    CHECK(answers->empty());
  }
}

TEST_CASE("a learner waits while it is made or bound: the status names it and its time", "[lane]") {
  const std::string in = GENERATE("make", "bind");
  inbox<bool> reached, gate;
  std::atomic<std::int64_t> seconds = 0;
  const adapter on_threads{
      std::make_shared<thread_lanes>([&] { return std::chrono::seconds{seconds.load()}; }), {}};
  const auto wait = [&] {
    reached.put(true);
    gate.get({});
  };
  stage_of_lane on(on_threads, {}, in == "make" ? wait : std::function<void()>{});
  if (in == "bind") on.what->at_bind = wait;
  on.work->bind(nullptr, generation_id{2});
  reached.get({});
  CHECK_FALSE(on.work->status().busy);
  on.submit(hooks_at<hooks::restore_state>(0));
  seconds = 7;
  const auto status = on.work->status();
  CHECK(status.busy);
  CHECK(status.hook == in);
  CHECK(status.step == undefined);
  CHECK(status.since == 7s);
  gate.put(true);
  on.answer();
  on.close();
}

TEST_CASE("a trace that waits for its reader: the lane reports its status and can be destroyed",
          "[lane]") {
  inbox<bool> reached, gate;
  std::atomic<int> traced = 0;
  stage_of_lane on(threads(), [&](const hook&) {
    ++traced;
    reached.put(true);
    gate.get({});
  });
  on.submit(hooks_at<hooks::on_train_batch_start, hooks::on_train_batch_end>(5));
  reached.get({});
  const auto status = on.work->status();  // returns at once
  CHECK(status.hook == "on_train_batch_start");
  CHECK(status.step == 5);
  const auto what = on.what;
  on.work.reset();  // returns at once, too
  gate.put(true);
  for (bool gone = false; !gone;) {
    const std::lock_guard lock{what->guard};
    gone = !what->hooks.empty() && what->hooks.back() == "gone";
    std::this_thread::yield();
  }
  CHECK(traced == 1);
  CHECK(on.answers->empty());
}
