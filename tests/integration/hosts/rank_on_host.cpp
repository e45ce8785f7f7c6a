// One rank of the hier communicator on a host that hosts.py made. It reduces, aborts, or works
// until it is ended. Prints its progress to standard output.
#include "backends/collective/canonical_reduction.hpp"
#include "backends/hier/hier.hpp"
#include "backends/shm/shm.hpp"
#include "backends/tcp/tcp.hpp"
#include "tests/support/reference_reduction.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace troupe;
using testing::bytes;

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

struct place {
  std::int32_t rank = 0;
  std::vector<std::int32_t> hosts;

  std::int32_t world() const {
    std::int32_t sum = 0;
    for (const auto ranks : hosts) sum += ranks;
    return sum;
  }
  // Host h has the address 10.77.0.(h + 1).
  std::vector<tcp_address> addresses() const {
    std::vector<tcp_address> all;
    for (std::size_t host = 0; host < hosts.size(); ++host)
      for (std::int32_t i = 0; i < hosts[host]; ++i)
        all.push_back(
            {fmt::format("10.77.0.{}", host + 1), static_cast<std::uint16_t>(4700 + all.size())});
    return all;
  }
};

void reduce_everything(communicator& all) {
  const auto& who = all.group();
  int checked = 0;
  for (const auto type : testing::all_dtypes)
    for (const auto operation : testing::all_reductions)
      for (const std::size_t count : {3, 1037, 70000}) {
        if (!refusal(type, operation).empty()) continue;
        std::vector<bytes> leaves;
        for (std::int32_t rank = 0; rank < who.world; ++rank)
          leaves.push_back(testing::odd_values(type, count, rank, count));
        auto memory = leaves[static_cast<std::size_t>(who.rank)];
        all.all_reduce({memory.data(), count, type}, operation)->wait();
        if (memory != testing::reference_reduction(type, operation, leaves))
          throw std::logic_error(
              fmt::format("{} of {} {}: wrong bits", to_string(operation), count, to_string(type)));
        ++checked;
      }
  say(fmt::format("{} reductions have the canonical bits", checked));
}

void work_for_ever(communicator& all) {
  std::vector<float> memory(1 << 18, 1.0f);
  for (bool first = true;; first = false) {
    all.all_reduce({memory.data(), memory.size(), dtype::f32}, reduction::max)->wait();
    if (first) say("at work");
  }
}

void live(const place& at, const std::string& mode, const std::string& key) {
  const auto addresses = at.addresses();
  const auto shared = shm_rendezvous::by_name(key, std::chrono::seconds{20});
  hier_backend backend{{
      .local = std::make_shared<shm_backend>(shared),
      .remote = std::make_shared<tcp_backend>(
          tcp_options{.listen = addresses.at(static_cast<std::size_t>(at.rank)),
                      .rendezvous = std::make_shared<tcp_fixed_addresses>(addresses)}),
      .hosts = [&](const group_description&) { return at.hosts; },
      .local_from = 0,
  }};
  const auto all = backend.open({.job = job_id{1},
                                 .generation = generation_id{1},
                                 .rank = at.rank,
                                 .world = at.world(),
                                 .deadline = std::chrono::seconds{2}});
  all->barrier("connected", std::chrono::seconds{60})->wait();
  if (mode == "reduce") reduce_everything(*all);
  if (mode == "abort" && at.rank == 0) all->abort("enough");
  if (mode != "reduce") work_for_ever(*all);
  all->barrier("the end")->wait();
}

}  // namespace

// Usage: rank_on_host RANK HOSTS MODE KEY, with HOSTS like 2,2.
int main(int count, char** arguments) {
  if (count != 5) return 2;
  place at{std::stoi(arguments[1]), {}};
  for (const char one : std::string{arguments[2]})
    if (one != ',') at.hosts.push_back(one - '0');
  try {
    live(at, arguments[3], arguments[4]);
    say("done");
  } catch (const collective_timeout& error) {
    say(fmt::format("timeout: {}", error.what()));
  } catch (const generation_closed& error) {
    say(fmt::format("closed: {}", error.what()));
  } catch (const std::exception& error) {
    say(fmt::format("failed: {}", error.what()));
    return 1;
  }
  return 0;
}
