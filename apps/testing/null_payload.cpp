#include "apps/testing/null_payload.hpp"

#include <algorithm>

#include "backends/simulated/fabric.hpp"
#include "backends/simulated/null_learner.hpp"

namespace troupe::testing {

namespace {

class null_payload_of_job final : public payload_job {
public:
  null_payload_of_job(null_options options, std::int32_t ranks)
      : options_(std::move(options)), ranks_(ranks) {}

  recipe_ptr recipe(payload_ground ground) const override {
    auto options = options_;
    options.at_hook = std::move(ground.at_hook);
    options.faults_due = std::move(ground.faults_due);
    options.load = [io = ground.checkpoints](const std::string& path) { return io->read(path); };
    options.stepped = std::move(ground.stepped);
    return std::make_shared<null_recipe>(std::move(options));
  }

  std::chrono::nanoseconds exchange_of_step(const network_cost& network) const override {
    std::chrono::nanoseconds sum{0};
    each_bucket(options_, [&](std::uint64_t count) {
      sum += network.of({.what = collective_kind::all_reduce, .type = dtype::f32, .count = count},
                        static_cast<std::size_t>(ranks_));
    });
    return sum;
  }

private:
  const null_options options_;
  const std::int32_t ranks_;
};

class null_payloads final : public payload {
public:
  explicit null_payloads(null_options options) : options_(std::move(options)) {}
  std::string_view name() const override {
    const null_options usual;
    return options_.gradient_bytes == usual.gradient_bytes &&
                   options_.bucket_bytes == usual.bucket_bytes
               ? "none"
               : "own_none";
  }
  std::shared_ptr<payload_job> of(const job_spec& what) override {
    auto options = options_;
    options.samples = what.samples;
    return std::make_shared<null_payload_of_job>(std::move(options), what.ranks);
  }

private:
  const null_options options_;
};

}  // namespace

std::shared_ptr<payload> null_payload(std::uint64_t gradient_bytes, std::uint64_t bucket_bytes) {
  null_options options;
  options.gradient_bytes = gradient_bytes;
  options.bucket_bytes = bucket_bytes;
  return std::make_shared<null_payloads>(std::move(options));
}

job_spec null_payload_job(std::int32_t ranks, std::int64_t steps) {
  job_spec what;
  what.ranks = ranks;
  what.steps = steps;
  what.batch_size = 1;
  what.samples = std::max<std::int64_t>(1, ranks * std::min<std::int64_t>(steps, 250) - 1);
  what.checkpoint_every = 100;
  what.width = 1;
  what.detect = std::chrono::seconds{5};
  what.hook_limit = std::chrono::seconds{60};
  return what;
}

run_plan null_payload_plan(const job_spec& what, std::uint64_t gradient_bytes) {
  run_plan plan;
  plan.payload = null_payload(gradient_bytes);
  plan.simulation.schedule = scheduling::fifo;
  plan.events_limit =
      static_cast<std::uint64_t>(what.ranks) * static_cast<std::uint64_t>(what.steps + 100) * 50 +
      2'000'000;
  return plan;
}

}  // namespace troupe::testing
