// Goal: bugs planted in the production learner and in the exchange of gradients are found by the
// standard budget of runs with real tensors, and nothing is found where none is planted.
#include <memory>
#include <utility>

#include "tests/simulated/branching.hpp"
#include "tests/simulated/hunter.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// The reference runs the production loader and module too: the bug is not in what it says.
class with_healthy_reference final : public payload {
public:
  explicit with_healthy_reference(std::shared_ptr<payload> of) : of_(std::move(of)) {}
  std::string_view name() const override { return of_->name(); }
  bool waits() const override { return true; }
  std::shared_ptr<payload_job> of(const job_spec& what) override {
    const without_bug healthy;
    return std::make_shared<job_of_it>(of_->of(what));
  }

private:
  struct without_bug {
    const bug planted = std::exchange(planted_now, bug::none);
    ~without_bug() { planted_now = planted; }
  };
  struct job_of_it final : payload_job {
    explicit job_of_it(std::shared_ptr<payload_job> job) : of(std::move(job)) {}
    recipe_ptr recipe(payload_ground ground) const override {
      return of->recipe(std::move(ground));
    }
    std::optional<std::uint64_t> digest_behind(std::int64_t steps,
                                               const poisons& applied) override {
      const without_bug healthy;
      return of->digest_behind(steps, applied);
    }
    std::optional<difference> compare(const snapshot& is, std::int64_t steps,
                                      const poisons& applied) override {
      const without_bug healthy;
      return of->compare(is, steps, applied);
    }
    const std::shared_ptr<payload_job> of;
  };

  const std::shared_ptr<payload> of_;
};

std::optional<finding> search(bool adam, std::uint64_t first_seed, double seconds) {
  job_spec job;
  job.ranks = 4;
  job.steps = 10;
  job.samples = 34;  // in the last batch two ranks have none
  run_plan plan;
  plan.payload = std::make_shared<with_healthy_reference>(
      tensors_payload(branching_module({.adam = adam, .samples = job.samples})));
  auto found = search_swarm(job, plan, first_seed, seconds);
  if (found) found->by += adam ? " adamw" : " sgd";
  return found;
}

found_by look(bool, double seconds, std::uint64_t first_seed) {
  found_by all;
  all.swarm = search(false, first_seed, seconds / 3);
  if (!all.swarm) all.swarm = search(true, first_seed, seconds / 3);
  return all;
}

}  // namespace

int main(int count, char** arguments) { return hunt({planted_in_tensors, look}, count, arguments); }
