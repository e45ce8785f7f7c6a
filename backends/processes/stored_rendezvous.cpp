// The rendezvous of placed ranks over tcp and hier: each rank finds the others' addresses and hosts
// in the launcher's store.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "backends/hier/hier.hpp"
#include "backends/processes/launcher_store.hpp"
#include "backends/processes/own_address.hpp"
#include "backends/processes/rendezvous_kinds.hpp"
#include "backends/shm/shm.hpp"
#include "backends/tcp/frame.hpp"
#include "backends/tcp/tcp.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

// An entry is a generation, a host and a port. As in address_table, it counts for its generation
// and older ones.
class stored_addresses : public tcp_rendezvous {
public:
  explicit stored_addresses(std::shared_ptr<launcher_store> store) : store_(std::move(store)) {}

  void publish(const group_description& who, const tcp_address& at) override {
    store_->set(key(who.job, who.rank),
                fmt::format("{} {} {}", who.generation.value(), at.host, at.port));
  }

  std::optional<tcp_address> find(const group_description& who, std::int32_t rank) override {
    const auto text = store_->find(key(who.job, rank));
    if (!text) return std::nullopt;
    std::istringstream from{*text};
    std::uint64_t generation = 0;
    tcp_address at;
    if (!(from >> generation >> at.host >> at.port))
      throw internal_error(
          fmt::format("the store has \"{}\" as the address of rank {}", *text, rank));
    return generation < who.generation.value() ? std::nullopt : std::optional{at};
  }

private:
  static std::string key(job_id job, std::int32_t rank) {
    return fmt::format("job {} rank {}", job.value(), rank);
  }

  const std::shared_ptr<launcher_store> store_;
};

// The number of connections between two ranks, and the secret in hexadecimal digits.
struct stored_options {
  std::uint16_t streams = 0;
  tcp::job_secret secret{};
};

std::string to_text(const stored_options& what) {
  return fmt::format("{} {:02x}", what.streams, fmt::join(what.secret, ""));
}

stored_options read_stored_options(const std::string& text) {
  stored_options what;
  std::istringstream from{text};
  std::string digits;
  from >> what.streams >> digits;
  if (from.fail() || digits.size() != 2 * what.secret.size())
    throw internal_error("a rank received no rendezvous");
  for (std::size_t i = 0; i < what.secret.size(); ++i)
    what.secret[i] = static_cast<std::uint8_t>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  return what;
}

class stored_place : public rendezvous {
public:
  explicit stored_place(std::string address) : address_(std::move(address)) {}
  std::string address() const override { return address_; }

private:
  const std::string address_;
};

class stored_kind : public rendezvous_kind {
public:
  stored_kind(std::shared_ptr<launcher_store> store, bool one_host)
      : store_(std::move(store)), one_host_(one_host) {}
  std::string_view name() const override { return "tcp"; }
  std::string unusable() const override { return tcp_backend{}.unusable(); }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options& options) const override {
    const auto streams = checked_tcp_streams(options.tcp_streams.value_or(tcp_options{}.streams));
    return std::make_shared<stored_place>(to_text({streams, tcp::fresh_secret()}));
  }
  std::shared_ptr<communicator_backend> join(const std::string& address,
                                             const std::vector<int>&) const override {
    return over(address);
  }

  std::shared_ptr<tcp_backend> over(const std::string& address) const {
    const auto given = read_stored_options(address);
    tcp_options options;
    options.streams = given.streams;
    options.secret = given.secret;
    options.rendezvous = std::make_shared<stored_addresses>(store_);
    if (!one_host_) {
      options.listen.host = "0.0.0.0";
      options.advertise = own_address_towards(store_->host());
    }
    return std::make_shared<tcp_backend>(options);
  }

private:
  const std::shared_ptr<launcher_store> store_;
  const bool one_host_;
};

// Each rank of a generation has an entry with its host.
class stored_hosts : public host_finder {
public:
  explicit stored_hosts(std::shared_ptr<launcher_store> store) : store_(std::move(store)) {}

  void publish(const group_description& who) override {
    store_->set(key(who, who.rank), own_host());
  }

  std::optional<std::vector<std::int32_t>> find(const group_description& who,
                                                std::chrono::milliseconds patience) override {
    const auto until = std::chrono::steady_clock::now() + patience;
    std::vector<std::int32_t> hosts;
    std::string last;
    for (std::int32_t rank = 0; rank < who.world; ++rank) {
      const auto host = host_of(key(who, rank), until);
      if (!host) return std::nullopt;
      if (*host != std::exchange(last, *host)) hosts.push_back(0);
      ++hosts.back();
    }
    return hosts;
  }

private:
  static std::string key(const group_description& who, std::int32_t rank) {
    return fmt::format("job {} generation {} host of rank {}", who.job.value(),
                       who.generation.value(), rank);
  }

  std::optional<std::string> host_of(const std::string& key,
                                     std::chrono::steady_clock::time_point until) {
    if (auto found = store_->find(key)) return found;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    try {
      return store_->wait(key, std::max(left, std::chrono::milliseconds{1}));
    } catch (const user_error&) {
      if (std::chrono::steady_clock::now() < until) throw;  // the store has ended
      return std::nullopt;
    }
  }

  const std::shared_ptr<launcher_store> store_;
};

// Each generation has shared memory of its own on each host: the process that held it for the last
// one may be lost. The first process that opens the generation holds it for the others, so a
// process keeps what it has opened until the generation after the next one.
class generation_memory : public communicator_backend {
public:
  explicit generation_memory(const tcp::job_secret& secret)
      : secret_(fmt::format("{:02x}", fmt::join(secret, "")).substr(0, 32)) {}
  std::string_view name() const override { return "shm"; }
  std::string unusable() const override { return shm_unusable(); }
  std::shared_ptr<communicator> open(const group_description& here) override {
    return of(here.generation.value(), here.named_from)->open(here);
  }

private:
  // A host whose ranks do not follow each other has several groups.
  std::shared_ptr<shm_backend> of(std::uint64_t generation, std::int32_t first) {
    const std::lock_guard hold{guard_};
    std::erase_if(open_, [&](const auto& one) { return one.first.first + 2 <= generation; });
    auto& found = open_[{generation, first}];
    if (!found)
      found = std::make_shared<shm_backend>(shm_rendezvous::by_name(
          fmt::format("{} {} {}", secret_, generation, first), std::chrono::seconds{5}));
    return found;
  }

  const std::string secret_;
  std::mutex guard_;
  std::map<std::pair<std::uint64_t, std::int32_t>, std::shared_ptr<shm_backend>> open_;
};

class stored_hier_kind : public rendezvous_kind {
public:
  stored_hier_kind(const std::shared_ptr<launcher_store>& store, bool one_host)
      : store_(store), between_(store, one_host), one_host_(one_host) {}
  std::string_view name() const override { return "hier"; }
  std::int32_t most_ranks() const override {
    return one_host_ ? shm_backend::ranks_max : rendezvous_kind::most_ranks();
  }
  std::string unusable() const override {
    auto why_not = shm_unusable();
    return why_not.empty() ? between_.unusable() : why_not;
  }
  std::string about() const override { return "shm inside of a host, tcp between hosts"; }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options& options) const override {
    return between_.arrange(options);
  }
  std::shared_ptr<communicator_backend> join(const std::string& address,
                                             const std::vector<int>&) const override {
    hier_options options;
    options.local = std::make_shared<generation_memory>(read_stored_options(address).secret);
    options.remote = between_.over(address);
    options.finder = std::make_shared<stored_hosts>(store_);
    return std::make_shared<hier_backend>(options);
  }

private:
  const std::shared_ptr<launcher_store> store_;
  const stored_kind between_;
  const bool one_host_;
};

}  // namespace

std::shared_ptr<rendezvous_kind> stored_hier_rendezvous(
    const std::shared_ptr<launcher_store>& store, bool one_host) {
  return std::make_shared<stored_hier_kind>(store, one_host);
}

std::shared_ptr<rendezvous_kind> stored_rendezvous(std::shared_ptr<launcher_store> store,
                                                   bool one_host) {
  return std::make_shared<stored_kind>(std::move(store), one_host);
}

}  // namespace troupe
