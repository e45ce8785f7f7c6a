// Goal: a hook message says its name and place in words, and the set of names is closed and
// distinct.
#include "messages/hooks.hpp"

#include "messages/lane.hpp"
#include "messages/options.hpp"

#include <set>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("a hook prints its name, its place and what it carries", "[messages]") {
  std::ostringstream out;
  out << hook{hooks::backward{{stage::train, 0, 3, 7}, 6, 7, true, {}}};
  CHECK(out.str() == "backward(train epoch 0 step 3 batch 7) window 6..7 synchronize");
}

TEST_CASE("hook names are distinct", "[messages]") {
  const auto& names = hook_names();
  CHECK(std::set(names.begin(), names.end()).size() == names.size());
  CHECK(names.size() == std::variant_size_v<any_hook>);
}

TEST_CASE("limits count batches or take a share", "[messages]") {
  CHECK(apply_limit(std::int64_t{5}, 100) == 5);
  CHECK(apply_limit(std::int64_t{500}, 100) == 100);
  CHECK(apply_limit(std::int64_t{0}, 100) == 0);
  CHECK(apply_limit(1.0, 100) == 100);
  CHECK(apply_limit(0.25, 100) == 25);
  CHECK(apply_limit(0.001, 100) == 1);
  CHECK(apply_limit(0.0, 100) == 0);
  CHECK(apply_limit(0.5, 0) == 0);
}

TEST_CASE("a run's outcome keeps a stop whatever word comes with it or behind it", "[messages]") {
  for (const auto word : {run_word::proceed, run_word::skip_epoch, run_word::attention}) {
    hook_outcome whole, later;
    whole.stop = true;
    later.word = word;
    whole.merge(std::move(later));
    CHECK(whole.word == word);
    CHECK(whole.stop);
    hook_outcome asks;
    asks.stop = true;
    hook_outcome first;
    first.word = word;
    first.merge(std::move(asks));
    CHECK(first.word == word);
    CHECK(first.stop);
  }
}
