#include "apps/testing/ghost_payload.hpp"

#include <algorithm>

#include "backends/simulated/fabric.hpp"
#include "backends/simulated/ghost_learner.hpp"

namespace troupe::testing {

namespace {

class ghosts_of_job final : public payload_job {
public:
  ghosts_of_job(ghost_options options, std::int32_t ranks)
      : options_(std::move(options)), ranks_(ranks) {}

  recipe_ptr recipe(payload_ground ground) const override {
    auto options = options_;
    options.at_hook = std::move(ground.at_hook);
    options.strikes = std::move(ground.strikes);
    options.load = [io = ground.checkpoints](const std::string& path) { return io->read(path); };
    options.stepped = std::move(ground.stepped);
    return std::make_shared<ghost_recipe>(std::move(options));
  }

  std::chrono::nanoseconds exchange_of_step(const network_cost& network) const override {
    std::chrono::nanoseconds sum{0};
    each_bucket(options_, [&](std::uint64_t count) {
      sum += network.of({.what = collective::all_reduce, .type = dtype::f32, .count = count},
                        static_cast<std::size_t>(ranks_));
    });
    return sum;
  }

private:
  const ghost_options options_;
  const std::int32_t ranks_;
};

class ghosts final : public payload {
public:
  explicit ghosts(ghost_options options) : options_(std::move(options)) {}
  std::string_view name() const override { return "ghost"; }
  std::shared_ptr<payload_job> of(const field_job& what) override {
    auto options = options_;
    options.samples = what.samples;
    return std::make_shared<ghosts_of_job>(std::move(options), what.ranks);
  }

private:
  const ghost_options options_;
};

}  // namespace

std::shared_ptr<payload> ghost_payload(std::uint64_t gradient_bytes, std::uint64_t bucket_bytes) {
  ghost_options options;
  options.gradient_bytes = gradient_bytes;
  options.bucket_bytes = bucket_bytes;
  return std::make_shared<ghosts>(std::move(options));
}

field_job ghost_job(std::int32_t ranks, std::int64_t steps) {
  field_job what;
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

run_plan ghost_plan(const field_job& what, std::uint64_t gradient_bytes) {
  run_plan plan;
  plan.payload = ghost_payload(gradient_bytes);
  plan.world.schedule = scheduling::fifo;
  plan.events_limit =
      static_cast<std::uint64_t>(what.ranks) * static_cast<std::uint64_t>(what.steps + 100) * 50 +
      2'000'000;
  return plan;
}

}  // namespace troupe::testing
