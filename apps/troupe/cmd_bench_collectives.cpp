#include "apps/bench/collectives.hpp"
#include "apps/bench/processes.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/command_line/suggestion.hpp"
#include "apps/troupe/build_facts.hpp"
#include "apps/troupe/cmd_bench.hpp"
#include "backends/tcp/tcp.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>
#include <thread>

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

struct collectives_flags {
  std::string communicator = "auto";
  std::int32_t ranks = 2;
  std::string operation = "all_reduce";
  std::string memory = "registered";
  std::vector<std::string> sizes{"1K", "64K", "1M", "16M", "100M"};
  int rounds = 7;
  std::optional<std::int64_t> tcp_streams;
  bool json = false;
};

// `64K` is 64 KiB.
std::size_t read_size(const std::string& text) {
  std::size_t number = 0;
  const auto* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number);
  constexpr std::string_view units = "KMG";
  int shift = 0;
  if (error == std::errc{} && rest + 1 == end) {
    const auto unit = units.find(*rest);
    if (unit != std::string_view::npos) {
      shift = 10 * (static_cast<int>(unit) + 1);
      ++rest;
    }
  }
  constexpr std::size_t most = std::size_t{1} << 40;
  if (error != std::errc{} || rest != end || number == 0 || number > most >> shift)
    throw user_error(errc::bad_usage,
                     fmt::format("--bytes {}: write a size as 1000, 64K, 16M or 1G "
                                 "of at most 1024G",
                                 text));
  return number << shift;
}

// The placement of a communicator's ranks: one of the two is set.
struct communicator_choice {
  std::shared_ptr<communicator_backend> backend;  // ranks are threads, or mpirun's processes
  std::shared_ptr<rendezvous_kind> processes;

  std::string_view name() const { return backend ? backend->name() : processes->name(); }
};

communicator_choice find_communicator(const ports& world, const std::string& wanted) {
  std::vector<std::string> names{"auto"};
  const auto fits = [&](const auto& one) {
    const auto why_not = one->unusable();
    names.emplace_back(one->name());
    if (wanted == "auto") return why_not.empty();
    if (wanted == one->name() && !why_not.empty())
      throw user_error(errc::device,
                       fmt::format("communicator \"{}\" cannot be used here: {}", wanted, why_not));
    return wanted == one->name();
  };
  for (const auto& one : world.communicators)
    if (fits(one)) return {one, {}};
  for (const auto& one : world.rendezvous_kinds)
    if (fits(one)) return {{}, one};
  throw user_error(errc::device, fmt::format("there is no communicator \"{}\"{}; there are: {}",
                                             wanted, hint(wanted, names), fmt::join(names, ", ")));
}

collectives_question question_of(const collectives_flags& flags) {
  const auto& known = benched_operations();
  if (std::find(known.begin(), known.end(), flags.operation) == known.end())
    throw user_error(errc::bad_usage,
                     fmt::format("--operation {}{}; there are: {}", flags.operation,
                                 hint(flags.operation, known), fmt::join(known, ", ")));
  check_range("--ranks", flags.ranks, 1, 256);
  check_range("--rounds", flags.rounds, 1, 1000);
  if (flags.tcp_streams) check_range("--tcp-streams", *flags.tcp_streams, 1, tcp_streams_max);
  if (flags.memory != "registered" && flags.memory != "ordinary")
    throw user_error(errc::bad_usage,
                     fmt::format("--memory {}: registered or ordinary", flags.memory));
  collectives_question what{flags.operation, {}, flags.rounds, flags.memory == "registered"};
  for (const auto& size : flags.sizes) what.sizes.push_back(read_size(size));
  return what;
}

std::string row_json(const collectives_row& row, const collectives_flags& flags,
                     std::string_view placement) {
  const auto of = [](const std::optional<timing>& what, double timing::*field) {
    return what ? ordered_json((*what).*field) : ordered_json(nullptr);
  };
  return ordered_json{{"schema", "troupe.bench_collectives/1"},
                      {"operation", row.operation},
                      {"communicator", row.communicator},
                      {"placement", placement},
                      {"memory", flags.memory},
                      {"ranks", row.ranks},
                      {"bytes", row.bytes},
                      {"seconds", row.collective.median},
                      {"spread", row.collective.spread},
                      {"best_seconds", row.collective.best},
                      {"bare_loop_seconds", of(row.bare, &timing::median)},
                      {"bare_loop_spread", of(row.bare, &timing::spread)},
                      {"bare_loop_best_seconds", of(row.bare, &timing::best)},
                      {"staging_floor_seconds", of(row.floor, &timing::median)}}
      .dump();
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string as_text(const collectives_row& row) {
  auto line = fmt::format("{:>12} {:>12} {:>7.0f}%", row.bytes, time_text(row.collective.median),
                          100 * row.collective.spread);
  if (row.bytes > 0)
    line += fmt::format(" {:>9.2f}", 1e-9 * static_cast<double>(row.bytes) / row.collective.median);
  if (row.bare)
    line += fmt::format(" {:>12} {:>7.0f}% {:>10.2f}", time_text(row.bare->median),
                        100 * row.bare->spread, row.bare->median / row.collective.median);
  if (row.floor)
    line += fmt::format("   staging's floor {}, {:.2f} of it", time_text(row.floor->median),
                        row.floor->median / row.collective.median);
  return line;
}

// Ranks as threads of this process; the first failure that did not follow from another's.
void on_threads(communicator_backend& backend, const collectives_flags& flags,
                const std::function<void(communicator&)>& body) {
  std::vector<std::shared_ptr<communicator>> handles;
  for (std::int32_t rank = 0; rank < flags.ranks; ++rank)
    handles.push_back(
        backend.open({.generation = generation_id{1}, .rank = rank, .world = flags.ranks}));
  std::vector<std::exception_ptr> thrown(handles.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < handles.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(*handles[rank]);
      } catch (const generation_closed&) {
        // This failure follows from another rank's, which reports the cause.
      } catch (...) {
        thrown[rank] = std::current_exception();
        handles[rank]->abort(fmt::format("rank {} failed", rank));
      }
    });
  for (auto& one : threads) one.join();
  for (const auto& error : thrown)
    if (error) std::rethrow_exception(error);
}

// The rank of this process, which a launcher such as mpirun started.
void on_this_process(communicator_backend& backend, placed_rank place,
                     const std::function<void(communicator&)>& body) {
  const auto group =
      backend.open({.generation = generation_id{1}, .rank = place.rank, .world = place.world});
  body(*group);
  group->barrier("the end")->wait();
}

program_end bench(const collectives_flags& flags, const context& around) {
  const auto what = question_of(flags);
  if (flags.communicator == "nccl")
    throw user_error(
        errc::device,
        "communicator \"nccl\": it carries tensors of GPUs, this bench has the host's");
  // The ports are destroyed before the fork, because a copy of this process lacks their threads.
  const auto at = find_communicator(around.world(), flags.communicator);
  auto& screen = around.screen;
  const auto place = at.backend ? at.backend->placed() : std::nullopt;
  const std::string_view placement = at.processes ? "processes" : place ? "mpirun" : "threads";
  const bool speaks = !place || place->rank == 0;
  if (!flags.json && speaks)
    screen.result(fmt::format(
        "{} (float32), {} between {}, {} ranks, {} memory; medians of {} rounds, bare loop in "
        "turn\n{:>12} {:>12} {:>8} {:>9} {:>12} {:>8} {:>10}",
        flags.operation, at.name(), placement, place ? place->world : flags.ranks, flags.memory,
        flags.rounds, "bytes", "time", "spread", "GB/s", "bare loop", "spread", "bare/time"));
  const auto body = [&](communicator& group) {
    bench_collectives(group, what, [&](const collectives_row& row) {
      if (group.group().rank == 0)
        screen.result(flags.json ? row_json(row, flags, placement) : as_text(row));
    });
  };
  if (place)
    on_this_process(*at.backend, *place, body);
  else if (at.backend)
    on_threads(*at.backend, flags, body);
  else
    on_processes(*at.processes, {flags.tcp_streams}, flags.ranks, body);
  return {};
}

}  // namespace

void add_bench_collectives(const command& bench_app, const context& around, const choose& chosen) {
  const auto command = bench_app.add_command(
      "collectives", "a communicator beside the bare loop over the same memory");
  auto flags = std::make_shared<collectives_flags>();
  command.add("--communicator", flags->communicator, "which engine (auto)")
      .type_name(build_facts::with_mpi ? "auto|inproc|shm|tcp|hier|mpi"
                                       : "auto|inproc|shm|tcp|hier");
  command.add("--ranks", flags->ranks, "how many take part (2)");
  command.add("--operation", flags->operation, "which collective (all_reduce)")
      .type_name(fmt::format("{}", fmt::join(benched_operations(), "|")));
  command
      .add("--memory", flags->memory,
           "registered: the communicator's own; ordinary: any other (registered)")
      .type_name("registered|ordinary");
  command.add("--bytes", flags->sizes, "sizes of the tensor (1K,64K,1M,16M,100M)").delimiter(',');
  command.add("--rounds", flags->rounds, "of each size; 5 times as many to 1M (7)");
  command.add("--tcp-streams", flags->tcp_streams,
              "connections between two ranks of tcp and hier (as doctor says)");
  command.add_flag("--json", flags->json, "one object per size");
  command.on_chosen([=, &around] { chosen([=, &around] { return bench(*flags, around); }); });
}

}  // namespace troupe::program
