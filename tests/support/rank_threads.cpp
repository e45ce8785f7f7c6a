#include "tests/support/rank_threads.hpp"

#include <thread>
#include <utility>

#include "backends/learner/run_handler.hpp"

namespace troupe::testing {

std::vector<std::exception_ptr> on_ranks(
    std::int32_t world,
    const std::function<void(std::int32_t, const std::shared_ptr<communicator>&)>& body) {
  inproc_backend rendezvous_info;
  std::vector<std::shared_ptr<communicator>> groups;
  for (std::int32_t rank = 0; rank < world; ++rank)
    groups.push_back(rendezvous_info.open({job_id{1}, generation_id{1}, rank, world}));
  std::vector<std::exception_ptr> errors(world);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank, groups[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
        groups[rank]->abort("rank " + std::to_string(rank) + " failed");
      }
    });
  for (auto& one : threads) one.join();
  return errors;
}

namespace {

class rank_driver {
public:
  rank_driver(const test_job& job, const learner_context& context,
              std::shared_ptr<communicator> group, rank_end& end)
      : context_(context),
        handler_(context_, {.word = &word_,
                            .current = {},
                            .entered = [&end](const hook& h) { end.hooks.push_back(h); },
                            .drill = {},
                            .text = job.recipe->text_of_exceptions()}),
        machine_(make_plan(job.options, job.purpose, job.resume)),
        group_(std::move(group)),
        end_(end) {
    who_ = job.recipe->make(context_);
    who_->bind(group_, generation_id{1});
  }

  void run() {
    take(machine_.on(fit_events::begin{}));
    while (!next_.empty() && !end_.error) {
      const auto answer = handle(std::exchange(next_, {}));
      if (end_.error) break;
      take(machine_.on(fit_events::ran{answer.handled, answer.outcome}));
    }
    if (!end_.error) {
      handle({hooks::teardown{{}, true}});
      end_.result = who_->result();
      return;
    }
    group_->abort("a rank failed");
    const auto first = end_.error;
    const auto said = end_.record;
    handle({hooks::on_exception{{}, said.type, said.what}});
    handle({hooks::teardown{{}, false}});
    end_.error = first;
    end_.record = said;
  }

private:
  ran handle(std::vector<hook> hooks) {
    hook_run run;
    run.hooks = std::move(hooks);
    auto answer = handler_.handle(*who_, run);
    if (answer.failed_with) {
      end_.error = answer.failed_with->original;
      end_.record = answer.failed_with->record;
    }
    if (answer.outcome.snapshot) end_.snapshot = answer.outcome.snapshot;
    for (auto& what : answer.outcome.queued) end_.queued.push_back(std::move(what));
    return answer;
  }

  void take(std::vector<fit_action> actions) {
    for (auto& action : actions) {
      if (auto* run = std::get_if<fit_actions::run>(&action)) next_ = std::move(run->hooks);
      if (auto* row = std::get_if<fit_actions::metrics_known>(&action))
        end_.rows.push_back(std::move(*row));
      if (auto* finished = std::get_if<fit_actions::finished>(&action)) {
        end_.loop = finished->loop;
        end_.why = finished->why;
      }
    }
  }

  learner_context context_;
  std::atomic<attention> word_{attention::none};
  run_handler handler_;
  fit_machine machine_;
  std::shared_ptr<communicator> group_;
  rank_end& end_;
  std::unique_ptr<learner> who_;
  std::vector<hook> next_;
};

}  // namespace

std::vector<rank_end> run_job(const test_job& given) {
  auto job = given;
  job.recipe->configure(job.options);
  std::vector<rank_end> ends(job.options.ranks);
  const auto outside = on_ranks(job.options.ranks, [&](auto rank, const auto& group) {
    learner_context context;
    context.rank = rank;
    context.world = job.options.ranks;
    context.job = job_id{1};
    context.options = job.options;
    if (job.options.accelerator == accelerator_kind::automatic)
      context.options.accelerator = accelerator_kind::cpu;  // also where there are others
    context.purpose = job.purpose;
    context.initial = job.initial;
    rank_driver{job, context, job.around ? job.around(group) : group, ends[rank]}.run();
  });
  for (std::size_t rank = 0; rank < ends.size(); ++rank)
    if (outside[rank]) ends[rank].error = outside[rank];
  return ends;
}

std::vector<rank_end> run_good_job(const test_job& job) {
  auto ends = run_job(job);
  std::exception_ptr follows;
  for (const auto& end : ends) {
    if (!end.error) continue;
    try {
      std::rethrow_exception(end.error);
    } catch (const generation_closed&) {
      follows = end.error;
    }
  }
  if (follows) std::rethrow_exception(follows);
  return ends;
}

std::string text_of(const std::exception_ptr& error) {
  if (!error) return "nothing";
  const auto said = describe(error);
  return said.type + ": " + said.what;
}

}  // namespace troupe::testing
