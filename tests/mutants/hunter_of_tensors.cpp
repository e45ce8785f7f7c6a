// Hunts in swarms of jobs that train a module made for it with LibTorch, by SGD, then by AdamW.
#include <memory>
#include <utility>

#include "tests/mutants/hunter.hpp"
#include "tests/mutants/mutant.hpp"
#include "tests/simulated/branching.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// The reference runs the production loader and module too: the mutant is off while it runs.
class with_unchanged_reference final : public payload {
public:
  explicit with_unchanged_reference(std::shared_ptr<payload> of) : of_(std::move(of)) {}
  std::string_view name() const override { return of_->name(); }
  bool waits() const override { return true; }
  std::shared_ptr<payload_job> of(const job_spec& what) override {
    const unchanged now;
    return std::make_shared<job_of_it>(of_->of(what));
  }

private:
  struct unchanged {
    const std::string_view on = std::exchange(mutant_on, {});
    ~unchanged() { mutant_on = on; }
  };
  struct job_of_it final : payload_job {
    explicit job_of_it(std::shared_ptr<payload_job> job) : of(std::move(job)) {}
    recipe_ptr recipe(payload_ground ground) const override {
      return of->recipe(std::move(ground));
    }
    std::optional<std::uint64_t> digest_after(std::int64_t steps, const poisons& struck) override {
      const unchanged now;
      return of->digest_after(steps, struck);
    }
    std::optional<difference> compare(const snapshot& is, std::int64_t steps,
                                      const poisons& struck) override {
      const unchanged now;
      return of->compare(is, steps, struck);
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
  plan.payload = std::make_shared<with_unchanged_reference>(
      tensors_payload(branching_module({.adam = adam, .samples = job.samples})));
  auto found = search_swarm(job, plan, first_seed, seconds / 3);
  if (found) found->by = (adam ? "adamw " : "sgd ") + found->by;
  return found;
}

std::optional<finding> tensors(double seconds, std::uint64_t first_seed) {
  auto found = search(false, first_seed, seconds);
  return found ? found : search(true, first_seed, seconds);
}

}  // namespace

int main(int count, char** arguments) { return hunt({{"tensors", tensors}}, count, arguments); }
