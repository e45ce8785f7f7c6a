#include "apps/troupe/command_line.hpp"
#include "apps/troupe/commands.hpp"

#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

namespace troupe::program {

void data_order(const order_question& what, const std::function<void(const ordered_batch&)>& take) {
  const data_layout layout{what.size, what.ranks, what.batch_size};
  const auto order = permutation(what.seed, what.epoch, what.size);
  const auto batches = layout.batches();
  const auto steps_per_epoch = (batches + what.accumulate - 1) / what.accumulate;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    for (std::int64_t rank = 0; rank < what.ranks; ++rank) {
      const auto piece = layout.of_rank(batch, rank);
      const auto first = order.begin() + piece.first;
      take({what.epoch * steps_per_epoch + batch / what.accumulate,
            batch,
            rank,
            {first, first + piece.count}});
    }
  }
}

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return x;
}

std::string wrong_with_seed(const std::string& text) {
  return whole_number(text) ? "" : text + " is not a whole number from 0 to 2^64 - 1";
}

namespace {

// The product of two such numbers fits into 64 bits.
constexpr std::int64_t order_limit = (std::int64_t{1} << 31) - 1;

void refuse_outside(const char* flag, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= order_limit) return;
  throw user_error(
      errc::bad_configuration,
      fmt::format("{} = {}: must be at least {} and at most {}", flag, value, least, order_limit));
}

program_end order(const order_question& what, bool json, console& screen) {
  refuse_outside("--size", what.size, 0);
  refuse_outside("--ranks", what.ranks, 1);
  refuse_outside("--batch-size", what.batch_size, 1);
  refuse_outside("--epoch", what.epoch, 0);
  refuse_outside("--accumulate-grad-batches", what.accumulate, 1);
  data_order(what, [&](const ordered_batch& b) {
    screen.result(json
                      ? fmt::format("{{\"schema\":\"troupe.data_order/1\",\"step\":{},\"batch\":{},"
                                    "\"rank\":{},\"samples\":[{}]}}",
                                    b.step, b.batch, b.rank, fmt::join(b.samples, ","))
                      : fmt::format("step {} batch {} rank {}: {}", b.step, b.batch, b.rank,
                                    fmt::join(b.samples, " ")));
  });
  return {};
}

}  // namespace

void add_data(const command& app, const context& around, const choose& chosen) {
  const auto data = app.add_command("data", "which samples a step consumes").require_command();
  const auto command = data.add_command("order", "the order of an epoch, per batch and rank");
  auto what = std::make_shared<order_question>();
  auto json = std::make_shared<bool>(false);
  command.add("--size", what->size, "samples of the training set").required();
  command.add("--ranks", what->ranks, "(2)");
  command.add("--batch-size", what->batch_size, "per rank and micro-batch (64)");
  command.add("--seed", what->seed, "(0)").check(wrong_with_seed);
  command.add("--epoch", what->epoch, "(0)");
  command.add("--accumulate-grad-batches", what->accumulate, "micro-batches of a step (1)");
  command.add_flag("--json", *json, "one object per line");
  command.on_chosen(
      [=, &around] { chosen([=, &around] { return order(*what, *json, around.screen); }); });
}

}  // namespace troupe::program
