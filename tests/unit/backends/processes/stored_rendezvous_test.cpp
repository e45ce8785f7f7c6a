// Goal: ranks that a launcher started find each other through its store, those of their generation
// only. A store that has ended ends their group.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "backends/processes/own_address.hpp"
#include "backends/processes/rendezvous_kinds.hpp"
#include "backends/shm/shm.hpp"
#include "backends/tcp/tcp.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

constexpr auto peer_patience = std::chrono::seconds{60};

class table_store : public launcher_store {
public:
  const std::string& host() const override { return host_; }
  void set(const std::string& key, const std::string& text) override {
    const std::lock_guard hold{guard_};
    texts_[key] = text;
  }
  std::optional<std::string> find(const std::string& key) override {
    const std::lock_guard hold{guard_};
    if (ended_) throw user_error(errc::membership, "the store has ended");
    ++asked_[key];
    asked_again_.notify_all();
    const auto found = texts_.find(key);
    return found == texts_.end() ? std::nullopt : std::optional{found->second};
  }
  std::string wait(const std::string& key, std::chrono::milliseconds) override {
    return find(key).value();
  }
  std::map<std::string, std::string> texts() {
    const std::lock_guard hold{guard_};
    return texts_;
  }
  void wait_until_asked(const std::string& key, int times) {
    std::unique_lock hold{guard_};
    asked_again_.wait(hold, [&] { return asked_[key] >= times; });
  }
  void end() {
    const std::lock_guard hold{guard_};
    ended_ = true;
  }

private:
  const std::string host_ = "127.0.0.1";
  std::mutex guard_;
  std::condition_variable asked_again_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, int> asked_;
  bool ended_ = false;
};

group_description rank_in(std::int32_t rank, std::uint64_t generation) {
  return {.job = job_id{5},
          .generation = generation_id{generation},
          .rank = rank,
          .world = 2,
          .deadline = peer_patience};
}

// Files of shared memory that this process has open.
std::ptrdiff_t shared_files() {
  namespace fs = std::filesystem;
  return std::ranges::count_if(fs::directory_iterator{"/proc/self/fd"}, [](const auto& one) {
    std::error_code gone;
    return fs::read_symlink(one.path(), gone).string().starts_with("/memfd:troupe");
  });
}

// Of as many bytes as hier takes through the memory of a host.
void check_large_sum(communicator& a, communicator& b) {
  std::vector<float> left(1 << 16, 1.0F);
  std::vector<float> right(1 << 16, 2.0F);
  const auto work = a.all_reduce({left.data(), left.size(), dtype::f32}, reduction::sum);
  b.all_reduce({right.data(), right.size(), dtype::f32}, reduction::sum)->wait();
  work->wait();
  CHECK(left == std::vector<float>(1 << 16, 3.0F));
  CHECK(right == left);
}

// Two processes of one job, of which each has its own backend.
struct two_processes {
  explicit two_processes(rendezvous_options options = {}) {
    join(stored_rendezvous(store, true), options);
  }
  explicit two_processes(const std::shared_ptr<rendezvous_kind>& kind) { join(kind, {}); }

  void join(const std::shared_ptr<rendezvous_kind>& kind, const rendezvous_options& options) {
    arranged = kind->arrange(options);
    CHECK(arranged->descriptors().empty());
    for (auto& one : backends) one = kind->join(arranged->address(), {});
  }

  double sum(std::uint64_t generation) {
    const auto a = backends[0]->open(rank_in(0, generation));
    const auto b = backends[1]->open(rank_in(1, generation));
    std::array<double, 1> left{3};
    std::array<double, 1> right{4};
    const auto first = a->all_reduce({left.data(), 1, dtype::f64}, reduction::sum);
    b->all_reduce({right.data(), 1, dtype::f64}, reduction::sum)->wait();
    first->wait();
    CHECK(left == right);
    return left[0];
  }

  std::shared_ptr<table_store> store = std::make_shared<table_store>();
  std::shared_ptr<rendezvous> arranged;
  std::array<std::shared_ptr<communicator_backend>, 2> backends;
};

}  // namespace

TEST_CASE("ranks that a launcher started sum over tcp, and their addresses are in its store") {
  two_processes job{{.tcp_streams = 3}};
  CHECK(job.backends[0]->name() == "tcp");
  CHECK(job.sum(1) == 7);
  CHECK(job.sum(2) == 7);
  const auto texts = job.store->texts();
  REQUIRE(texts.size() == 2);
  CHECK(texts.count("job 5 rank 1") == 1);
  for (const auto& [key, text] : texts) CHECK(text.rfind("2 127.0.0.1 ", 0) == 0);
}

TEST_CASE("ranks that a launcher started on one host sum over shared memory with a random name") {
  const auto kind = named_shm_rendezvous();
  two_processes job{kind};
  two_processes other{kind};
  CHECK(job.backends[0]->name() == "shm");
  CHECK(job.arranged->address() != other.arranged->address());
  CHECK(job.sum(1) == 7);
  CHECK(job.sum(2) == 7);
  const auto name = job.arranged->address();
  job.arranged.reset();
  job.backends = {};
  CHECK_THROWS_WITH(kind->join(name, {}), Catch::Matchers::Contains("does not answer"));
  CHECK(other.sum(1) == 7);
}

TEST_CASE("a rank whose process ids count in another namespace than the first one's is refused") {
  const auto kind = named_shm_rendezvous();
  const auto arranged = kind->arrange({});
  const auto address = arranged->address();
  const auto other = address.substr(0, address.find(' ')) + " 1";
  CHECK_THROWS_WITH(kind->join(other, {}), Catch::Matchers::Contains("PID namespaces") &&
                                               Catch::Matchers::Contains("--communicator tcp"));
  CHECK_NOTHROW(kind->join(address, {}));
}

TEST_CASE("shared memory between processes says how many ranks it carries") {
  CHECK(named_shm_rendezvous()->most_ranks() == shm_backend::ranks_max);
  for (const auto& kind : process_rendezvous_kinds())
    CHECK((kind->most_ranks() == shm_backend::ranks_max) == (kind->name() != "tcp"));
  const auto store = std::make_shared<table_store>();
  CHECK(stored_hier_rendezvous(store, true)->most_ranks() == shm_backend::ranks_max);
  CHECK(stored_hier_rendezvous(store, false)->most_ranks() > shm_backend::ranks_max);
}

TEST_CASE("a process that cannot read its host or its namespaces shares memory with no other") {
  CHECK(own_host() == own_host());
  CHECK(own_host("/not-there") != own_host("/not-there"));
}

TEST_CASE(
    "ranks that find each other on one host have its shared memory, also in later generations") {
  auto store = std::make_shared<table_store>();
  two_processes job{stored_hier_rendezvous(store, true)};
  CHECK(job.backends[0]->name() == "hier");
  for (const std::uint64_t generation : {1, 2, 5}) {
    const auto a = job.backends[0]->open(rank_in(0, generation));
    const auto b = job.backends[1]->open(rank_in(1, generation));
    check_large_sum(*a, *b);
    CHECK(shared_files() > 0);
    const auto texts = store->texts();
    const auto key = [&](int rank) {
      return fmt::format("job 5 generation {} host of rank {}", generation, rank);
    };
    REQUIRE(texts.count(key(0)) == 1);
    CHECK(texts.at(key(0)) == texts.at(key(1)));
  }
}

TEST_CASE("ranks that are on two hosts sum over the network") {
  auto store = std::make_shared<table_store>();
  two_processes job{stored_hier_rendezvous(store, true)};
  const auto a = job.backends[0]->open(rank_in(0, 1));
  const auto b = job.backends[1]->open(rank_in(1, 1));
  store->set("job 5 generation 1 host of rank 1", "another");
  check_large_sum(*a, *b);
  CHECK(shared_files() == 0);
}

TEST_CASE("an address that the store has of an older generation is not dialled") {
  two_processes job;
  // Another program listens there by now.
  boost::asio::io_context loop;
  boost::asio::ip::tcp::acceptor other{loop, {boost::asio::ip::address_v4::loopback(), 0}};
  const auto stale = fmt::format("1 127.0.0.1 {}", other.local_endpoint().port());
  job.store->set("job 5 rank 0", stale);
  job.store->set("job 5 rank 1", stale);
  const auto b = job.backends[1]->open(rank_in(1, 2));
  job.store->wait_until_asked("job 5 rank 0", 3);
  const auto a = job.backends[0]->open(rank_in(0, 2));
  const auto first = a->barrier("both");
  b->barrier("both")->wait();
  first->wait();
  other.non_blocking(true);
  boost::system::error_code result;
  other.accept(result);
  CHECK(result == boost::asio::error::would_block);  // nothing has connected
}

TEST_CASE("a store that has ended ends the group with its reason") {
  two_processes job;
  job.store->end();
  const auto a = job.backends[1]->open(rank_in(1, 1));
  CHECK_THROWS_WITH(a->barrier("both")->wait(), Catch::Matchers::Contains("the store has ended"));
}

TEST_CASE("a rendezvous of ranks over a store refuses numbers of connections that cannot be") {
  CHECK_THROWS_AS(two_processes{{.tcp_streams = 17}}, user_error);
  const auto kind = stored_rendezvous(std::make_shared<table_store>(), true);
  CHECK_THROWS_AS(kind->join("2", {}), internal_error);
  CHECK_THROWS_AS(kind->join("2 abc", {}), internal_error);
}

TEST_CASE("the address towards another host is none of loopback, where this host has one") {
  for (const auto& one : own_addresses()) {
    CHECK(one.rfind("127.", 0) != 0);
    CHECK(own_address_towards(one) == one);
  }
  if (own_addresses().empty())
    CHECK_THROWS_AS(own_address_towards("127.0.0.1"), user_error);
  else
    CHECK(own_address_towards("127.0.0.1") == own_addresses().front());
  CHECK_THROWS_WITH(own_address_towards("no-such-host.invalid"),
                    Catch::Matchers::Contains("no-such-host.invalid"));
}
