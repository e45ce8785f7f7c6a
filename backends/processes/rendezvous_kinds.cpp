#include "backends/processes/rendezvous_kinds.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdlib>

#include "backends/hier/hier.hpp"
#include "backends/local/process_life.hpp"
#include "backends/processes/address_table.hpp"
#include "backends/shm/shm.hpp"
#include "backends/tcp/frame.hpp"

namespace troupe {

namespace {

void expect(std::size_t count, const std::vector<int>& descriptors) {
  if (descriptors.size() != count) throw internal_error("a rank's process inherited no rendezvous");
}

class shm_place : public rendezvous {
public:
  std::vector<int> descriptors() const override { return {place_.descriptor()}; }

private:
  shm_rendezvous place_ = shm_rendezvous::create();
};

class shm_kind : public rendezvous_kind {
public:
  std::string_view name() const override { return "shm"; }
  std::string unusable() const override { return shm_unusable(); }
  std::int32_t most_ranks() const override { return shm_backend::ranks_max; }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options&) const override {
    return std::make_shared<shm_place>();
  }
  std::shared_ptr<communicator_backend> join(const std::string&,
                                             const std::vector<int>& descriptors) const override {
    expect(1, descriptors);
    return std::make_shared<shm_backend>(shm_rendezvous::adopt(descriptors.front()));
  }
};

constexpr auto holder_answers_within = std::chrono::seconds{5};

// Its address is its name, and the namespace in which the ranks' process ids must count.
class named_shm_place : public rendezvous {
public:
  std::string address() const override {
    return fmt::format("{} {}", name_, process_life::own().numbers);
  }

private:
  const std::string name_ = fmt::format("{:02x}", fmt::join(tcp::fresh_secret(), ""));
  const shm_rendezvous place_ = shm_rendezvous::by_name(name_, holder_answers_within);
};

class named_shm_kind : public rendezvous_kind {
public:
  std::string_view name() const override { return "shm"; }
  std::string unusable() const override { return shm_unusable(); }
  std::int32_t most_ranks() const override { return shm_backend::ranks_max; }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options&) const override {
    return std::make_shared<named_shm_place>();
  }
  std::shared_ptr<communicator_backend> join(const std::string& address,
                                             const std::vector<int>&) const override {
    const auto end = address.find(' ');
    // The end of a process of another namespace would stay unknown.
    if (address.substr(end + 1) != std::to_string(process_life::own().numbers))
      throw user_error(errc::device,
                       "shm: the ranks' processes are in different PID namespaces (containers), "
                       "and do not see each other's end: let the containers share the host's "
                       "(docker --pid host, apptainer without --pid), or use --communicator tcp");
    return std::make_shared<shm_backend>(
        shm_rendezvous::find(address.substr(0, end), holder_answers_within));
  }
};

// Its address is the number of connections between two ranks.
class tcp_place : public rendezvous {
public:
  explicit tcp_place(const rendezvous_options& options)
      : streams_(checked_tcp_streams(options.tcp_streams.value_or(tcp_options{}.streams))) {}
  std::string address() const override { return std::to_string(streams_); }
  std::vector<int> descriptors() const override { return {control_segment_->descriptor()}; }

private:
  const std::uint16_t streams_;
  std::shared_ptr<address_table> control_segment_ = address_table::create(tcp::fresh_secret());
};

class tcp_kind : public rendezvous_kind {
public:
  std::string_view name() const override { return "tcp"; }
  std::string unusable() const override { return tcp_backend{}.unusable(); }
  std::string about() const override {
    return fmt::format("{} connections between two ranks, or as tcp.streams has it",
                       tcp_options{}.streams);
  }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options& options) const override {
    return std::make_shared<tcp_place>(options);
  }
  std::shared_ptr<communicator_backend> join(const std::string& address,
                                             const std::vector<int>& descriptors) const override {
    expect(1, descriptors);
    return over(address, descriptors.front());
  }

  static std::shared_ptr<tcp_backend> over(const std::string& address, int descriptor) {
    const auto control_segment = address_table::adopt(descriptor);
    tcp_options options;
    options.streams = checked_tcp_streams(std::atoll(address.c_str()));
    options.secret = control_segment->secret();
    options.rendezvous = control_segment;
    return std::make_shared<tcp_backend>(options);
  }
};

class hier_place : public rendezvous {
public:
  explicit hier_place(const rendezvous_options& options) : between_(options) {}
  std::string address() const override { return between_.address(); }
  std::vector<int> descriptors() const override {
    return {inside_.descriptors().front(), between_.descriptors().front()};
  }

private:
  shm_place inside_;
  tcp_place between_;
};

class hier_kind : public rendezvous_kind {
public:
  std::string_view name() const override { return "hier"; }
  std::int32_t most_ranks() const override { return shm_backend::ranks_max; }
  std::string unusable() const override {
    auto why_not = shm_unusable();
    return why_not.empty() ? tcp_backend{}.unusable() : why_not;
  }
  std::string about() const override {
    return "shm inside a host, tcp between hosts; here all ranks are on one host, where shm alone "
           "is faster";
  }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options& options) const override {
    return std::make_shared<hier_place>(options);
  }
  std::shared_ptr<communicator_backend> join(const std::string& address,
                                             const std::vector<int>& descriptors) const override {
    expect(2, descriptors);
    return std::make_shared<hier_backend>(
        hier_options{.local = std::make_shared<shm_backend>(shm_rendezvous::adopt(descriptors[0])),
                     .remote = tcp_kind::over(address, descriptors[1]),
                     .hosts = [](const group_description& who) {
                       return std::vector<std::int32_t>{who.world};
                     }});
  }
};

class placed_kind : public rendezvous_kind {
public:
  explicit placed_kind(std::shared_ptr<communicator_backend> backend)
      : backend_(std::move(backend)) {}
  std::string_view name() const override { return backend_->name(); }
  std::string unusable() const override { return backend_->unusable(); }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options&) const override {
    return std::make_shared<rendezvous>();
  }
  std::shared_ptr<communicator_backend> join(const std::string&,
                                             const std::vector<int>&) const override {
    return backend_;
  }

private:
  std::shared_ptr<communicator_backend> backend_;
};

}  // namespace

std::shared_ptr<rendezvous_kind> placed_rendezvous(std::shared_ptr<communicator_backend> backend) {
  return std::make_shared<placed_kind>(std::move(backend));
}

std::shared_ptr<rendezvous_kind> named_shm_rendezvous() {
  return std::make_shared<named_shm_kind>();
}

std::vector<std::shared_ptr<rendezvous_kind>> process_rendezvous_kinds() {
  return {std::make_shared<shm_kind>(), std::make_shared<tcp_kind>(),
          std::make_shared<hier_kind>()};
}

}  // namespace troupe
