// Goal: a hook message prints its name and its position. The set of hook names is fixed, and names
// are distinct.
#include "troupe/observer.hpp"

#include "messages/lane.hpp"
#include "troupe/options.hpp"

#include <set>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("printing a hook shows its name and position and payload", "[messages]") {
  std::ostringstream out;
  out << hook{hooks::backward::of_window({stage::train, 0, 3, 7}, 6, 7)};
  CHECK(out.str() == "backward(train epoch 0 step 3 batch 7) window 6..7 synchronize");
}

TEST_CASE("hooks are regular values for payloads stored inline and on the heap", "[messages]") {
  const position at{stage::train, 1, 2, 3};
  const std::vector<hook> all{hooks::on_train_batch_start{{at}},
                              hooks::training_step{{at}},
                              hooks::backward{at, 0, 2},
                              hooks::barrier{at, "a label that is longer than a short text"},
                              hooks::save_checkpoint{at, {.steps = 5}},
                              hooks::on_exception{at, "std::domain_error", "disk full"}};
  for (const auto& one : all) {
    auto copy = one;
    CHECK(copy == one);
    CHECK(where(copy) == at);
    const auto moved = std::move(copy);
    CHECK(moved == one);
    for (const auto& other : all) {
      copy = other;  // assigns to a moved-from hook
      CHECK(copy == other);
      CHECK((copy == one) == (&other == &one));
    }
  }
  CHECK(all[3].is<hooks::barrier>());
  CHECK_FALSE(all[0].is<hooks::barrier>());
  CHECK(all[0].get_if<hooks::barrier>() == nullptr);
  CHECK(all[4].get_if<hooks::save_checkpoint>()->loop.steps == 5);
  CHECK(hook{} == hook{hooks::connect{}});
}

TEST_CASE("backward reports its accumulation window and synchronizes at the last batch",
          "[messages]") {
  const auto inside = hooks::backward::of_window({stage::train, 0, 3, 7}, 6, 9);
  CHECK(inside.window_first() == 6);
  CHECK(inside.window_last() == 9);
  CHECK_FALSE(inside.synchronize());
  CHECK(hooks::backward::of_window({stage::train, 0, 3, 9}, 6, 9).synchronize());
}

TEST_CASE("all hook names are distinct", "[messages]") {
  const auto& names = hook_names();
  CHECK(std::set(names.begin(), names.end()).size() == names.size());
  CHECK(names.size() == std::variant_size_v<hook_types>);
}

TEST_CASE("limits are a number of batches or a share of them", "[messages]") {
  CHECK(apply_limit(std::int64_t{5}, 100) == 5);
  CHECK(apply_limit(std::int64_t{500}, 100) == 100);
  CHECK(apply_limit(std::int64_t{0}, 100) == 0);
  CHECK(apply_limit(1.0, 100) == 100);
  CHECK(apply_limit(0.25, 100) == 25);
  CHECK(apply_limit(0.001, 100) == 1);
  CHECK(apply_limit(0.0, 100) == 0);
  CHECK(apply_limit(0.5, 0) == 0);
}

TEST_CASE("a text names a communication hook: a known one is read, another one is refused") {
  for (const auto* text : {"allreduce", "f16_compress", "bf16_compress", "powersgd", "noop"})
    CHECK(to_string(comm_hook_named(text)) == text);
  CHECK(comm_hook_named("noop") == comm_hook_kind::noop);
  CHECK_THROWS_WITH(comm_hook_named("power_sgd"),
                    "strategy.comm_hook = \"power_sgd\": use one of allreduce, f16_compress, "
                    "bf16_compress, powersgd, noop; your own is given to register_comm_hook");
}

TEST_CASE("merging hook outcomes keeps a stop request for every run_verdict", "[messages]") {
  for (const auto word : {run_verdict::proceed, run_verdict::skip_epoch, run_verdict::attention}) {
    hook_outcome whole, later;
    whole.stop = true;
    later.verdict = word;
    whole.merge(std::move(later));
    CHECK(whole.verdict == word);
    CHECK(whole.stop);
    hook_outcome asks;
    asks.stop = true;
    hook_outcome first;
    first.verdict = word;
    first.merge(std::move(asks));
    CHECK(first.verdict == word);
    CHECK(first.stop);
  }
}
