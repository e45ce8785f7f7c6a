// The rendezvous of placed ranks over tcp: each rank finds the others' addresses in the launcher's
// store.
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <sstream>

#include "backends/processes/launcher_store.hpp"
#include "backends/processes/own_address.hpp"
#include "backends/processes/rendezvous_kinds.hpp"
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

}  // namespace

std::shared_ptr<rendezvous_kind> stored_rendezvous(std::shared_ptr<launcher_store> store,
                                                   bool one_host) {
  return std::make_shared<stored_kind>(std::move(store), one_host);
}

}  // namespace troupe
