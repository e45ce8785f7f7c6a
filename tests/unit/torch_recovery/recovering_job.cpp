#include "tests/unit/torch_recovery/recovering_job.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "actors/fit_machine.hpp"
#include "backends/forwarding_communicator.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/learner/run_handler.hpp"
#include "backends/solo_communicator.hpp"

#include "tests/support/catch.hpp"

namespace troupe::testing {

namespace {

/// Counts the collectives of one rank, and fails in the chosen one.
class counted final : public forwarding_communicator {
public:
  counted(std::shared_ptr<communicator> inner, std::int64_t breaks_at)
      : forwarding_communicator(std::move(inner)), breaks_at_(breaks_at) {}

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    count();
    return forwarding_communicator::all_reduce(data, operation, among);
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    count();
    return forwarding_communicator::broadcast(data, root, among);
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    count();
    return forwarding_communicator::all_gather(in, out, among);
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    count();
    return forwarding_communicator::barrier(label, deadline, among);
  }
  bool decide(bool yes, decision by, const subgroup& among) override {
    count();
    return forwarding_communicator::decide(yes, by, among);
  }

  std::int64_t number = 0;

private:
  void count() {
    if (number++ != breaks_at_) return;
    // A submission that throws frees the memory of earlier ones, which peers may still read.
    abort("injected");
    while (!quiescent()) std::this_thread::yield();
    throw std::runtime_error("injected");
  }
  std::int64_t breaks_at_;
};

[[noreturn]] void wrong(const std::string& what) { throw std::logic_error(what); }

/// The thread of a rank: a learner is made, called and destroyed in it.
class rank_thread {
public:
  rank_thread() : thread_([this] { serve(); }) {}
  ~rank_thread() {
    post(nullptr);
    thread_.join();
  }
  void post(std::function<void()> what) {
    {
      const std::lock_guard lock{guard_};
      tasks_.push_back(std::move(what));
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock{guard_};
    changed_.wait(lock, [this] { return tasks_.empty(); });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  void run(std::function<void()> what) {
    post(std::move(what));
    wait();
  }

private:
  void serve() {
    std::unique_lock lock{guard_};
    while (true) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const auto task = tasks_.front();
      if (!task) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex guard_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::exception_ptr error_;
  std::thread thread_;
};

class one_rank {
public:
  one_rank(const recipe_ptr& recipe, const trainer_options& options, std::int32_t rank,
           recovered_job& into, const rank_clock& now)
      : recipe_(recipe), into_(into), plan_(make_plan(options, stage::train, {})) {
    context_.rank = rank;
    context_.world = options.ranks;
    context_.job = job_id{1};
    context_.options = options;
    if (now) context_.now = [now, rank] { return now(rank); };
    begin_anew();
  }

  void begin_anew() {
    who_.reset();  // first: it restores the thread's settings
    who_ = recipe_->make(context_);
    machine_.emplace(plan_);
    next_.reset();
    word_ = attention::none;
    failed = false;
  }

  void join(const group_description& group, bool trained) {
    who_->bind(solo_communicator(group), group.generation);
    take(machine_->on(fit_events::set_up{trained}));
    go_on(nullptr);
    if (failed) wrong("set-up alone failed: " + text);
  }

  void bind(std::shared_ptr<communicator> group, generation_id generation, std::int64_t breaks_at) {
    auto counts = std::make_shared<counted>(std::move(group), breaks_at);
    group_ = counts;
    who_->bind(counts, generation);
    word_ = attention::none;
    failed = false;
  }

  void start(const injected* change) {
    take(machine_->on(fit_events::begin{}));
    if (!change || change->pause_at < 0) return;
    stop_at order;
    order.at.step = step_id{change->pause_at};
    order.pause = true;
    take(machine_->on(order));
  }
  void resume(const resume_point& from) {
    if (machine_->point().number > 0) machine_->rewind();
    if (machine_->point().number != from.number) machine_->adopt(from);
    take(machine_->on(fit_events::resume{}));
  }

  /// Runs until the machine waits or has finished, or a hook fails.
  void go_on(const injected* failure) {
    failure_ = failure;
    while (next_ && !failed) {
      auto run = std::move(*next_);
      next_.reset();
      const auto answer = handle(run);
      if (answer.outcome.verdict == run_verdict::failed ||
          answer.outcome.verdict == run_verdict::attention) {
        std::vector<fit_action> last;
        machine_->settle(answer.handled, answer.outcome, last);
        take(std::move(last));
        next_.reset();
        failed = true;
        if (answer.failed_with) text = answer.failed_with->record.what;
        return;
      }
      take(machine_->on(fit_events::ran{answer.handled, answer.outcome}));
    }
  }

  /// The digest, or nothing if the rank holds no point.
  std::optional<std::string> rewind() {
    next_.reset();
    failure_ = nullptr;
    if (machine_->point().number == 0) return std::nullopt;
    const auto answer = handle({{hook{hooks::rewind{}}}, false});
    if (answer.outcome.state_digest.empty()) {
      if (answer.failed_with) text = answer.failed_with->record.what;
      return std::nullopt;
    }
    machine_->rewind();
    return answer.outcome.state_digest;
  }

  std::string restore(const resume_point& base, const std::vector<std::int32_t>& donors) {
    hooks::restore_state h;
    h.at.epoch = base.loop.epoch;
    h.at.step = base.loop.steps;
    h.at.batch = base.loop.batch;
    h.cursor = base.loop.cursor;
    h.donors = donors;
    const auto answer = handle({{hook{h}}, true});
    if (answer.outcome.verdict != run_verdict::proceed) {
      failed = true;
      if (answer.failed_with) text = answer.failed_with->record.what;
      return {};
    }
    return answer.outcome.state_digest;
  }

  /// What the supervisor shows of a rank that holds the base: rank 0 may not have come so far.
  void show_rows(const resume_point& base) {
    for (const auto& row : rows_)
      if (row.at.step <= base.loop.steps) show(row);
  }
  const resume_point& point() const { return machine_->point(); }
  bool finished() const { return machine_->finished(); }
  std::int64_t collectives() const { return group_->number; }
  void stop() { word_ = attention::generation_closed; }

  bool failed = false;
  bool injected_here = false;
  std::string text;

private:
  ran handle(const fit_actions::run& what) {
    hook_run run;
    run.hooks = what.hooks;
    run.keep_point = what.keep_point;
    run_handler handler{context_, {.word = &word_, .current = {}, .entered = [this](const hook& h) {
                                     fail_in(h);
                                   }}};
    return handler.handle(*who_, run);
  }

  void fail_in(const hook& h) {
    if (!failure_ || failure_->hook.empty() || injected_here) return;
    if (name(h) != failure_->hook || where(h).step != failure_->step) return;
    injected_here = true;
    throw std::runtime_error("injected");
  }

  void show(const fit_actions::metrics_known& row) {
    for (const auto& [name, number] : row.logged) into_.rows[row.at.step][name] = number;
  }

  void take(std::vector<fit_action> actions) {
    for (auto& action : actions) {
      if (auto* run = std::get_if<fit_actions::run>(&action)) next_ = std::move(*run);
      const auto* known = std::get_if<fit_actions::metrics_known>(&action);
      if (known) {
        if (context_.rank == 0) show(*known);
        rows_.push_back(*known);
      }
      const auto* finished = std::get_if<fit_actions::finished>(&action);
      if (finished && context_.rank == 0) {
        into_.last = finished->loop.last;
        into_.steps = finished->loop.steps;
      }
    }
  }

  const recipe_ptr& recipe_;
  recovered_job& into_;
  fit_plan plan_;
  learner_context context_;
  std::atomic<attention> word_{attention::none};
  std::unique_ptr<learner> who_;
  std::optional<fit_machine> machine_;
  std::shared_ptr<counted> group_;
  std::optional<fit_actions::run> next_;
  std::vector<fit_actions::metrics_known> rows_;
  const injected* failure_ = nullptr;
};

class whole_job {
public:
  whole_job(const recipe_ptr& recipe, const trainer_options& options, const injected* failure,
            const rank_clock& now)
      : options_(options), failure_(failure) {
    for (std::int32_t r = 0; r < options.ranks; ++r) {
      threads_.push_back(std::make_unique<rank_thread>());
      ranks_.emplace_back();
      in_lane(r, [&] { ranks_[r] = std::make_unique<one_rank>(recipe, options, r, out_, now); });
    }
  }
  ~whole_job() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) in_lane(r, [&] { ranks_[r].reset(); });
  }

  recovered_job run() {
    form([](std::int32_t) { return true; });
    on_all([&](one_rank& one) { one.start(failure_); });
    while (true) {
      for (const auto& one : ranks_)
        if (generation_ == 1) out_.collectives.push_back(one->collectives());
      if (std::ranges::all_of(ranks_, [](const auto& one) { return one->finished(); })) break;
      if (!failure_) wrong("an undisturbed rank failed: " + ranks_[0]->text + ranks_[1]->text);
      if (++generation_ > 4) wrong("too many generations: " + ranks_[0]->text);
      recover();
    }
    out_.generations = generation_;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto digest = rewind(r);
      if (!digest) wrong("a rank has no state at the end: " + ranks_[r]->text);
      if (out_.digest.empty()) out_.digest = *digest;
      if (out_.digest != *digest) wrong("ranks end with different states");
    }
    return out_;
  }

private:
  template <class F>
  void in_lane(std::size_t rank, F what) {
    threads_[rank]->run(what);
  }
  std::optional<std::string> rewind(std::size_t rank) {
    std::optional<std::string> digest;
    in_lane(rank, [&] { digest = ranks_[rank]->rewind(); });
    return digest;
  }

  // Opens communicators, and binds them where `binds` says so.
  void form(const std::function<bool(std::int32_t)>& binds) {
    backend_ = std::make_unique<inproc_backend>();
    groups_.clear();
    for (std::int32_t r = 0; r < options_.ranks; ++r)
      groups_.push_back(backend_->open(described(r)));
    for (std::int32_t r = 0; r < options_.ranks; ++r)
      if (binds(r)) bind(r);
  }

  group_description described(std::int32_t rank) const {
    return {job_id{1}, generation_id{static_cast<std::uint64_t>(generation_)}, rank,
            options_.ranks};
  }

  void bind(std::int32_t rank) {
    std::int64_t breaks_at = -1;
    if (failure_ && rank == failure_->rank && generation_ == 1) breaks_at = failure_->collective;
    if (failure_ && rank == failure_->rank && generation_ == 2)
      breaks_at = failure_->collective_of_next;
    in_lane(rank,
            [&] { ranks_[rank]->bind(groups_[rank], described(rank).generation, breaks_at); });
  }

  // On a thread per rank; then every rank goes on as far as it can.
  template <class F>
  void on_all(F first) {
    for (std::int32_t r = 0; r < options_.ranks; ++r)
      threads_[r]->post([&, r] {
        auto& one = *ranks_[r];
        first(one);
        const bool fails = failure_ && r == failure_->rank && generation_ == 1;
        if (!one.failed) one.go_on(fails ? failure_ : nullptr);
        if (!one.failed) return;
        for (auto& other : ranks_) other->stop();
        groups_[r]->abort("a rank failed");
      });
    for (auto& one : threads_) one->wait();
  }

  void recover() {
    std::vector<std::optional<std::string>> held(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const bool lost = failure_->lost && static_cast<std::int32_t>(r) == failure_->rank;
      if (!lost) held[r] = rewind(r);
      if (!lost && !held[r]) out_.refusals.push_back(ranks_[r]->text);
      if (!lost && held[r] && generation_ == 2) ++out_.survivors_with_state;
    }
    resume_point base;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (held[r] && ranks_[r]->point().number > base.number) base = ranks_[r]->point();
    if (base.number == 0) wrong("no rank holds a point");
    std::vector<std::int32_t> donors;
    std::string digest;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!held[r] || ranks_[r]->point().number != base.number) continue;
      donors.push_back(static_cast<std::int32_t>(r));
      if (!digest.empty() && digest != *held[r]) wrong("holders of one point differ");
      digest = *held[r];
    }
    if (generation_ == 2) out_.base_step = base.loop.steps;
    ranks_[donors.front()]->show_rows(base);
    go_on_from(base, donors);
  }

  void go_on_from(const resume_point& base, const std::vector<std::int32_t>& donors) {
    const auto holds = [&](std::int32_t r) { return std::ranges::binary_search(donors, r); };
    form(holds);
    for (std::int32_t r = 0; r < options_.ranks; ++r) {
      if (holds(r)) continue;
      in_lane(r, [&] {
        ranks_[r]->begin_anew();
        ranks_[r]->join(described(r), base.trained);
      });
      bind(r);
    }
    std::vector<std::string> digests(ranks_.size());
    const bool restores = donors.size() < ranks_.size();
    std::atomic<int> agreed{0};
    on_all([&](one_rank& one) {
      const auto r = static_cast<std::size_t>(
          std::ranges::find_if(ranks_, [&](const auto& x) { return x.get() == &one; }) -
          ranks_.begin());
      if (restores) digests[r] = one.restore(base, donors);
      if (one.failed) {
        groups_[r]->abort("a rank failed");
        agreed = -100;
      }
      ++agreed;
      while (agreed >= 0 && agreed < static_cast<int>(ranks_.size())) std::this_thread::yield();
      if (agreed < 0) one.failed = true;
      if (!one.failed) one.resume(base);
    });
    const bool complete = std::ranges::none_of(digests, [](const auto& d) { return d.empty(); });
    if (restores && complete)
      for (const auto& one : digests)
        if (one != digests[0]) wrong("ranks differ after restore_state");
  }

  trainer_options options_;
  const injected* failure_;
  recovered_job out_;
  std::int32_t generation_ = 1;
  std::unique_ptr<inproc_backend> backend_;
  std::vector<std::shared_ptr<communicator>> groups_;
  std::vector<std::unique_ptr<rank_thread>> threads_;
  std::vector<std::unique_ptr<one_rank>> ranks_;
};

}  // namespace

recovered_job run_recovering(const recipe_ptr& recipe, trainer_options options,
                             const injected* failure, const rank_clock& now) {
  options.elastic.max_restarts = 3;
  recipe->configure(options);
  return whole_job{recipe, options, failure, now}.run();
}

void check_same(const recovered_job& now, const recovered_job& undisturbed) {
  CHECK(now.digest == undisturbed.digest);
  CHECK(now.rows == undisturbed.rows);
  CHECK(now.last == undisturbed.last);
  CHECK(now.steps == undisturbed.steps);
}

}  // namespace troupe::testing
