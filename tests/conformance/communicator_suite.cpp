#include "tests/conformance/communicator_suite.hpp"

#include "backends/hier/hier.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/shm/shm.hpp"
#include "backends/tcp/tcp.hpp"
#include "tests/support/rank_processes.hpp"

#include <map>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::testing {

namespace {

// A backend whose background work can outlive its handles.
class with_background : public communicator_backend {
public:
  virtual std::size_t groups() const = 0;
};

// Arranged as separate processes would be: each rank has its own listener and its own thread.
class tcp_apart final : public with_background {
public:
  std::string_view name() const override { return "tcp"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description& group) override {
    auto& of = ranks_[group.rank];
    if (!of) of = std::make_unique<tcp_backend>(tcp_options{.rendezvous = book_});
    return of->open(group);
  }
  std::size_t groups() const override {
    std::size_t sum = 0;
    for (const auto& [rank, of] : ranks_) sum += of->groups();
    return sum;
  }

private:
  const std::shared_ptr<tcp_address_book> book_ = std::make_shared<tcp_address_book>();
  std::map<std::int32_t, std::unique_ptr<tcp_backend>> ranks_;
};

// Simulated hosts of one process each, whose ranks are threads. Every all_reduce first reduces
// within a host.
class hosts final : public with_background {
public:
  using layout = std::function<std::vector<std::int32_t>(std::int32_t world)>;
  using local = std::function<std::shared_ptr<communicator_backend>()>;
  hosts(layout of, local inside) : layout_(std::move(of)), inside_(std::move(inside)) {}

  std::string_view name() const override { return "hier"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description& group) override {
    const auto sizes = layout_(group.world);
    std::size_t at = 0;
    for (auto first = group.rank; first >= sizes[at]; ++at) first -= sizes[at];
    auto& here = hosts_[at];
    if (!here.all) {
      here.remote = std::make_shared<tcp_backend>(tcp_options{.rendezvous = book_});
      here.all = std::make_unique<hier_backend>(hier_options{
          .local = inside_(),
          .remote = here.remote,
          .hosts = [of = layout_](const group_description& who) { return of(who.world); },
          .local_from = 0});
    }
    return here.all->open(group);
  }
  std::size_t groups() const override {
    std::size_t sum = 0;
    for (const auto& [at, one] : hosts_) sum += one.remote->groups();
    return sum;
  }

private:
  struct host {
    std::shared_ptr<tcp_backend> remote;
    std::unique_ptr<hier_backend> all;
  };
  const layout layout_;
  const local inside_;
  const std::shared_ptr<tcp_address_book> book_ = std::make_shared<tcp_address_book>();
  std::map<std::size_t, host> hosts_;
};

// {2, 2} for 4 ranks and {4, 3} for 7: the first host holds whole subtrees of the canonical tree.
std::vector<std::int32_t> first_half_on_one(std::int32_t world) {
  const auto first = (world + 1) / 2;
  if (first == world) return {world};
  return {first, world - first};
}
// {1, 3} for 4 ranks: a host reduces blocks of one rank only, because rank 1 is apart from rank 0.
std::vector<std::int32_t> first_alone(std::int32_t world) {
  if (world == 1) return {1};
  return {1, world - 1};
}

constexpr std::int32_t most_ranks = 7;

std::shared_ptr<communicator_backend> shm_between_processes() {
  const auto rendezvous = shm_rendezvous::create();
  return make_process_backend(most_ranks, [&] {
    return std::make_shared<shm_backend>(shm_rendezvous::adopt(rendezvous.descriptor()));
  });
}

}  // namespace

const std::vector<communicator_adapter>& communicator_adapters() {
  static const std::vector<communicator_adapter> all = [] {
    std::vector<communicator_adapter> adapters = {
        {"inproc", [] { return std::make_shared<inproc_backend>(); }},
        {"inproc without spinning",
         [] { return std::make_shared<inproc_backend>(inproc_options{.cores = 1}); }},
        // A generation takes 12 ms, because the kernel clears new memory.
        {"shm", [] { return std::make_shared<shm_backend>(shm_rendezvous::create()); },
         sanitized ? 100u : 300u},
        {"shm, small slots, without spinning",
         [] {
           const shm_sizes small{.slot_bytes = 4096, .registered_bytes = std::size_t{4} << 20};
           return std::make_shared<shm_backend>(shm_rendezvous::create(small),
                                                shm_options{.cores = 1});
         }},
        {"tcp, one connection",
         [] { return std::make_shared<tcp_backend>(tcp_options{.streams = 1}); }},
        {"tcp, four connections",
         [] { return std::make_shared<tcp_backend>(tcp_options{.streams = 4}); }},
        {"tcp, a backend per rank", [] { return std::make_shared<tcp_apart>(); }},
        {"hier, two hosts",
         [] {
           return std::make_shared<hosts>(first_half_on_one,
                                          [] { return std::make_shared<inproc_backend>(); });
         }},
        {"hier, two hosts, shm inside",
         [] {
           return std::make_shared<hosts>(first_half_on_one, [] {
             return std::make_shared<shm_backend>(shm_rendezvous::create());
           });
         }},
        {"hier, one rank alone on its host",
         [] {
           return std::make_shared<hosts>(first_alone,
                                          [] { return std::make_shared<inproc_backend>(); });
         }},
    };
    if (have_rank_processes()) adapters.push_back({"shm between processes", shm_between_processes});
    return adapters;
  }();
  return all;
}

bool ends_at_once(const communicator_backend& backend) {
  return backend.name() != "tcp" && backend.name() != "hier";
}

void settle(communicator_backend& backend) {
  if (auto* tcp = dynamic_cast<tcp_backend*>(&backend))
    while (tcp->groups() != 0) std::this_thread::yield();
  if (auto* some = dynamic_cast<with_background*>(&backend))
    while (some->groups() != 0) std::this_thread::yield();
}

void await_abort(const communicator& c) {
  while (!c.aborted()) std::this_thread::yield();
}

company::company(communicator_backend& backend, std::int32_t world, std::uint64_t generation,
                 std::chrono::nanoseconds deadline) {
  for (std::int32_t rank = 0; rank < world; ++rank)
    handles_.push_back(backend.open({.job = job_id{7},
                                     .generation = generation_id{generation},
                                     .rank = rank,
                                     .world = world,
                                     .deadline = deadline}));
}

std::vector<std::exception_ptr> company::attempt(const body& what) {
  std::vector<std::exception_ptr> thrown(handles_.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < handles_.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        what(*handles_[rank]);
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  return thrown;
}

void company::run(const body& what) {
  for (const auto& error : attempt(what))
    if (error) std::rethrow_exception(error);
}

void turnstile::await(int turn) {
  std::unique_lock hold{mutex_};
  moved_.wait(hold, [&] { return turn_ >= turn; });
}

void turnstile::pass() {
  const std::lock_guard hold{mutex_};
  ++turn_;
  moved_.notify_all();
}

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error("expected: " + what);
}

void for_each_world_from(std::int32_t least,
                         const std::function<void(communicator_backend&, std::int32_t)>& what) {
  // Under a sanitizer the larger worlds take four fifths of the time, and have no other code.
  const std::vector<std::int32_t> worlds =
      sanitized ? std::vector{1, 2, 3} : std::vector{1, 2, 3, 4, 7};
  for (const auto& adapter : communicator_adapters())
    for (const auto world : worlds) {
      if (world < least) continue;
      INFO(adapter.name << ", " << world << " ranks");
      const auto backend = adapter.make();
      REQUIRE(backend->unusable().empty());
      what(*backend, world);
    }
}

void for_each_world(const std::function<void(communicator_backend&, std::int32_t)>& what) {
  for_each_world_from(1, what);
}

}  // namespace troupe::testing
