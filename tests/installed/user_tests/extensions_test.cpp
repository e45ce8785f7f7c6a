// Goal: a user's own oracle, learner and actor run in the simulator.
#include <troupe/testing.hpp>

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include <catch2/catch.hpp>

namespace sim = troupe::testing;

// An oracle in one line.
TEST_CASE("no step takes more samples than a batch of all ranks", "[sim][extension]") {
  auto plan = sim::swarm_of("crash_rank, pause, cut");
  plan.extensions = {
      sim::always("a step is a batch of all ranks at most",
                  [](const troupe::finished_step& s) { return s.consumed.count <= 3 * 4 * 2; })};
  const auto r = sim::explore({.ranks = 4, .steps = 10}, plan, {.runs = 40});
  INFO(sim::report(r));
  CHECK(r.clean());

  // One that cannot hold is found, and comes back small.
  plan.extensions = {sim::always("no rank gets to step 7",
                                 [](const troupe::finished_step& s) { return s.step < 7; })};
  const auto wrong = sim::explore({.ranks = 4, .steps = 10}, plan, {.runs = 40});
  CHECK_FALSE(wrong.clean());
  const auto text = sim::report(wrong);
  CHECK_THAT(text, Catch::Contains("no rank gets to step 7") && Catch::Contains("troupe-case/2"));
}

// A user's learner. In each step all ranks add a number to its weight.
class adding final : public troupe::learner {
public:
  explicit adding(const troupe::learner_context& who) : who_(who) {}

  void bind(std::shared_ptr<troupe::communicator> world, troupe::generation_id) override {
    world_ = std::move(world);
  }

  troupe::hook_outcome on(const troupe::hook& h, const troupe::closure& inner) override {
    troupe::hook_outcome out;
    if (const auto* x = h.get_if<troupe::hooks::process_dataloader>())
      out.loaders.push_back({x->at.stage, 0, x->at.stage == troupe::stage::train ? 5 : 0, 40});
    if (h.is<troupe::hooks::optimizer_step>()) {
      if (!sum_) {
        inner();  // training_step and backward: nothing here
        mine_ = who_.rank + 1;
        sum_ = world_->all_reduce({&mine_, 1, troupe::dtype::i64}, troupe::reduction::sum);
      }
      sum_->wait();  // throws `not_yet` while others are missing: the hook is called again
      sum_ = nullptr;
      weight_ += mine_;
    }
    return out;
  }
  troupe::value result() override { return weight_; }

private:
  troupe::learner_context who_;
  std::shared_ptr<troupe::communicator> world_;
  std::int64_t weight_ = 0;
  std::int64_t mine_ = 0;
  troupe::work_ptr sum_;
};

struct adding_recipe final : troupe::learner_recipe {
  std::unique_ptr<troupe::learner> make(const troupe::learner_context& who) const override {
    return std::make_unique<adding>(who);
  }
};

TEST_CASE("a user's learner ends with the same weight under any schedule", "[sim][extension]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    sim::scripted_simulation s{{.seed = seed, .schedule = sim::scheduling::random}};
    troupe::job what;
    what.options.ranks = 3;
    what.options.max_steps = 10;
    what.recipe = std::make_shared<adding_recipe>();
    s.begin(what);
    const auto& end = s.run();
    REQUIRE(end.ok());
    CHECK(*end.result.get_if<std::int64_t>() == 10 * (1 + 2 + 3));
  }
}

// An actor of one's own, on a host of its own: it gets each step and asks for a stop after one.
class stopper final : public sim::extension {
public:
  void begins(sim::simulation& in, sim::simulated_job& sim_job) override {
    leave();
    const auto behind_five = [supervisor = sim_job.supervisor()](caf::event_based_actor* self) {
      return caf::behavior{[=](std::int64_t step) {
        if (step == 5)
          self->send(supervisor,
                     troupe::caller_request{troupe::request_stop{troupe::stop_reason::caller}});
      }};
    };
    actor_ = in.system().spawn(behind_five);
    in.settle(caf::actor_cast<caf::strong_actor_ptr>(actor_), in.add_node(99, "stopper"));
  }
  void stepped(const troupe::finished_step& what, const sim::complain_fn&) override {
    caf::anon_send(actor_, what.step);
  }
  void ended(const troupe::job_outcome&, const sim::complain_fn&) override { leave(); }

private:
  void leave() {
    if (actor_) caf::anon_send_exit(actor_, caf::exit_reason::user_shutdown);
    actor_ = nullptr;
  }
  caf::actor actor_;
};

TEST_CASE("a user's actor stops a job at a step boundary", "[sim][extension]") {
  auto plan = sim::swarm_of("crash_rank, pause, cut");
  plan.extensions = {[] { return std::make_unique<stopper>(); }};
  const auto r = sim::explore({.ranks = 3, .steps = 10}, plan, {.runs = 60});
  INFO(sim::report(r));
  CHECK(r.met("stopped at a step"));
  CHECK(r.clean());
}
