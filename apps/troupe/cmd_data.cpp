#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/settings.hpp"

#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"
#include "troupe/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>

namespace troupe::program {

void data_order(const order_question& what, const std::function<void(const ordered_batch&)>& take) {
  auto order = permutation(what.seed, what.epoch, what.size);
  if (!what.shuffle) std::ranges::sort(order);
  auto parts = what.history;
  parts.push_back({what.size, what.ranks, what.batch_size});
  const data_layout whole{what.size, parts[0].ranks, parts[0].batch_size};
  const auto steps_of = [&](std::int64_t batches) {
    return (batches + what.accumulate - 1) / what.accumulate;
  };
  auto step =
      what.epoch * steps_of(apply_limit(what.limit, whole.batches()));  // as this epoch began
  std::int64_t batch = 0;
  std::int64_t sample = 0;
  for (const auto& part : parts) {
    const data_layout layout{what.size, part.ranks, part.batch_size, batch, sample};
    const auto end =
        std::max(batch, std::min(apply_limit(what.limit, layout.batches()), batch + part.batches));
    for (auto b = batch; b < end; ++b)
      for (std::int64_t rank = 0; rank < part.ranks; ++rank) {
        const auto piece = layout.of_rank(b, rank);
        const auto first = order.begin() + piece.first;
        take({step + (b - batch) / what.accumulate, b, rank, {first, first + piece.count}});
      }
    sample += layout.samples(batch, end - 1);
    step += steps_of(end - batch);
    batch = end;
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

// `10@4x64`: 10 micro-batches of 4 ranks with batch size 64.
order_part read_part(const std::string& text) {
  order_part part;
  int read = 0;
  const bool whole = std::sscanf(text.c_str(), "%" SCNd64 "@%" SCNd64 "x%" SCNd64 "%n",
                                 &part.batches, &part.ranks, &part.batch_size, &read) == 3 &&
                     read == static_cast<int>(text.size());
  if (!whole)
    throw user_error(
        errc::bad_usage,
        fmt::format("--after {}: give BATCHES@RANKSxBATCH_SIZE, for example 10@4x64", text));
  return part;
}

// The limits of a fit, as its flags have them.
struct order_limits {
  std::string train, overfit;
};

batch_limit read_limit(const char* flag, const std::string& text, batch_limit otherwise) {
  if (text.empty()) return otherwise;
  const auto read = read_text({.kind = kind::limit, .low = 0}, text);
  if (!read.problem.empty())
    throw user_error(errc::bad_usage, fmt::format("{} = {}: {}", flag, text, read.problem));
  if (const auto* count = std::get_if<std::int64_t>(&read.value)) return *count;
  return std::get<double>(read.value);
}

void take_limits(const order_limits& given, order_question& what) {
  trainer_options as_fit;
  as_fit.limit_train_batches =
      read_limit("--limit-train-batches", given.train, as_fit.limit_train_batches);
  as_fit.overfit_batches = read_limit("--overfit-batches", given.overfit, as_fit.overfit_batches);
  what.limit = limit_of(as_fit, stage::train);
  what.shuffle = !overfits(as_fit);
}

// The product of two such numbers fits into 64 bits.
constexpr std::int64_t order_limit = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t order_ranks_max = 4096;    // as of a job
constexpr std::int64_t order_size_max = 1 << 28;  // the order of an epoch is in memory: 2 GiB

void refuse_outside(const char* flag, std::int64_t value, std::int64_t least,
                    std::int64_t most = order_limit) {
  if (value >= least && value <= most) return;
  throw user_error(
      errc::bad_configuration,
      fmt::format("{} = {}: must be at least {} and at most {}", flag, value, least, most));
}

program_end order(const order_question& what, bool json, console& screen) {
  refuse_outside("--size", what.size, 0, order_size_max);
  refuse_outside("--ranks", what.ranks, 1, order_ranks_max);
  refuse_outside("--batch-size", what.batch_size, 1);
  refuse_outside("--epoch", what.epoch, 0);
  refuse_outside("--accumulate-grad-batches", what.accumulate, 1);
  for (const auto& part : what.history) {
    refuse_outside("--after, batches", part.batches, 1);
    refuse_outside("--after, ranks", part.ranks, 1, order_ranks_max);
    refuse_outside("--after, batch size", part.batch_size, 1);
  }
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
  command.add("--ranks", what->ranks, "that share a batch: the shards of the job (2)");
  command.add("--batch-size", what->batch_size, "per rank and micro-batch (64)");
  command.add("--seed", what->seed, "of the job (0)").check(wrong_with_seed);
  command.add("--epoch", what->epoch, "which epoch, from 0 (0)");
  command.add("--accumulate-grad-batches", what->accumulate, "micro-batches of a step (1)");
  auto limits = std::make_shared<order_limits>();
  command.add("--limit-train-batches", limits->train, "batches per epoch: a count or a share (1.0)")
      .type_name("LIMIT");
  command
      .add("--overfit-batches", limits->overfit,
           "so many batches, the first ones of the data in their order; 0: off (0)")
      .type_name("LIMIT");
  auto after = std::make_shared<std::vector<std::string>>();
  command.add("--after", *after,
              "BATCHES@RANKSxBATCH_SIZE: what earlier attempts of the run did of the epoch; may "
              "repeat");
  command.add_flag("--json", *json, "one object per line");
  command.on_chosen([=, &around] {
    chosen([=, &around] {
      for (const auto& text : *after) what->history.push_back(read_part(text));
      take_limits(*limits, *what);
      return order(*what, *json, around.screen);
    });
  });
}

}  // namespace troupe::program
