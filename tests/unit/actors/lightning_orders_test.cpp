// Goal: for many settings a fit trains and validates exactly when Lightning does. The table
// lightning_orders.txt was recorded by tests/python/lightning_orders.py.
#include "tests/unit/actors/fit_drive.hpp"

#include "troupe/failure.hpp"

#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace fit_drive;

namespace {

struct row {
  std::map<std::string, std::string> settings;
  std::string order;

  bool has(const std::string& name) const { return settings.contains(name); }
  std::int64_t number(const std::string& name, std::int64_t fallback) const {
    return has(name) ? std::stoll(settings.at(name)) : fallback;
  }
  std::optional<std::int64_t> number(const std::string& name) const {
    return has(name) ? std::optional{std::stoll(settings.at(name))} : std::nullopt;
  }
  batch_limit limit(const std::string& name, batch_limit fallback) const {
    if (!has(name)) return fallback;
    const auto& text = settings.at(name);
    if (text.find('.') == std::string::npos) return std::int64_t{std::stoll(text)};
    return std::stod(text);
  }
};

row read(const std::string& line) {
  row one;
  std::istringstream words{line};
  std::string word;
  while (words >> word && word != "|") {
    const auto equals = word.find('=');
    one.settings[word.substr(0, equals)] = word.substr(equals + 1);
  }
  words >> one.order;
  return one;
}

trainer_options options_of(const row& one) {
  trainer_options o;
  o.max_epochs = one.number("max_epochs", o.max_epochs);
  o.max_steps = one.number("max_steps");
  o.min_epochs = one.number("min_epochs");
  o.min_steps = one.number("min_steps");
  o.accumulate_grad_batches = one.number("accumulate_grad_batches", 1);
  o.limit_train_batches = one.limit("limit_train_batches", o.limit_train_batches);
  o.limit_val_batches = one.limit("limit_val_batches", o.limit_val_batches);
  o.overfit_batches = one.limit("overfit_batches", o.overfit_batches);
  o.val_check_interval = one.limit("val_check_interval", o.val_check_interval);
  o.check_val_every_n_epoch = one.number("check_val_every_n_epoch", 1);
  o.num_sanity_val_steps = one.number("num_sanity_val_steps", o.num_sanity_val_steps);
  o.fast_dev_run = one.number("fast_dev_run", 0);
  return o;
}

std::string letters(const std::vector<hook>& hooks) {
  std::string text;
  std::int64_t seen = 0;
  for (const auto& h : hooks) {
    if (h.is<hooks::training_step>()) text += 'b';
    if (h.is<hooks::on_train_epoch_end>()) text += 'e';
    if (h.is<hooks::validation_step>()) ++seen;
    if (!h.is<hooks::on_validation_end>()) continue;
    text += (where(h).stage == stage::sanity ? "s" : "v") + std::to_string(std::exchange(seen, 0));
  }
  return text;
}

// What Troupe does for the settings of `one`, and in `partly` whether it ends inside an epoch.
std::string order_of(const row& one, bool& partly) {
  facts known;
  known.train = one.number("train", 0);
  known.val = {one.number("val", 0)};
  std::int64_t batch = 0;
  const auto stop = one.number("stop");
  const auto stops = [&](const hook& h, hook_outcome& out) {
    if (h.is<hooks::on_train_batch_end>()) out.stop = stop && batch++ == *stop;
  };
  try {
    const auto d = run_through(make_plan(options_of(one), stage::train), known, stops);
    partly = d.end && d.end->loop.batch != 0;
    return letters(d.hooks);
  } catch (const user_error&) {
    return "refused";
  }
}

}  // namespace

TEST_CASE("for many settings a fit trains and validates when Lightning does", "[fit]") {
  std::ifstream file{TROUPE_LIGHTNING_ORDERS};
  REQUIRE(file);
  std::size_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    auto one = read(line);
    bool partly = false;
    const auto got = order_of(one, partly);
    // Lightning calls on_train_epoch_end also where a fit ends inside an epoch.
    if (partly && one.order.ends_with('e')) one.order.pop_back();
    INFO(line);
    CHECK(got == one.order);
  }
  CHECK(rows == 500);
}
