// Goal: metrics.csv of a job with restarts is that of a run without failures.
#include "backends/telemetry/metrics_once.hpp"

#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

struct kept_observer : observer {
  explicit kept_observer(std::vector<metrics>& into) : into_(into) {}
  void on(const observation& what) override {
    if (const auto* seen = std::get_if<seen::metrics>(&what)) into_.push_back(seen->logged);
  }

private:
  std::vector<metrics>& into_;
};

seen::metrics values(std::int64_t epoch, std::int64_t step, metrics logged) {
  return {{.epoch = epoch, .step = step, .batch = step}, std::move(logged)};
}

}  // namespace

TEST_CASE("steps that are shown again: each value is passed on once", "[metrics]") {
  std::vector<metrics> shown;
  metrics_once once{std::make_unique<kept_observer>(shown)};
  once.on(values(0, 1, {{"train/loss", 3}}));
  once.on(values(0, 2, {{"train/loss", 2}}));
  once.on(values(0, 1, {{"train/loss", 3}}));
  once.on(values(0, 2, {{"train/loss", 2}, {"val/loss", 5}}));
  once.on(values(0, 3, {{"train/loss", 1}}));
  once.on(values(1, 3, {{"train/loss", 1}}));
  CHECK(shown == std::vector<metrics>{{{"train/loss", 3}},
                                      {{"train/loss", 2}},
                                      {{"val/loss", 5}},
                                      {{"train/loss", 1}},
                                      {{"train/loss", 1}}});
}

TEST_CASE("a name has a value of the last step and one of the epoch's end: both are passed on",
          "[metrics]") {
  std::vector<metrics> shown;
  metrics_once once{std::make_unique<kept_observer>(shown)};
  const seen::metrics of_end{{.epoch = 0, .step = 2}, {{"loss", 4}}};
  for (int repeats = 0; repeats < 2; ++repeats) {
    once.on(values(0, 2, {{"loss", 2}}));
    once.on(of_end);
  }
  once.on(values(1, 3, {{"loss", 1}}));
  CHECK(shown == std::vector<metrics>{{{"loss", 2}}, {{"loss", 4}}, {{"loss", 1}}});
}
