#include "backends/tcp/tcp.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/collective/host_communicator.hpp"
#include "backends/tcp/acceptor.hpp"
#include "backends/tcp/mesh.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace troupe {

namespace {

using collectives::submission;
using tcp::mesh;
using tcp::operation;

class tcp_work final : public work {
public:
  tcp_work(std::shared_ptr<mesh> in, std::shared_ptr<operation> what,
           std::chrono::nanoseconds deadline)
      : mesh_(std::move(in)),
        what_(std::move(what)),
        begin_(mesh::clock::now()),
        deadline_(deadline) {}
  work_result poll() override { return mesh_->poll(*what_, begin_, deadline_); }
  void wait() override { mesh_->wait(*what_, begin_, deadline_); }

private:
  const std::shared_ptr<mesh> mesh_;
  const std::shared_ptr<operation> what_;
  const mesh::clock::time_point begin_;
  const std::chrono::nanoseconds deadline_;
};

/// Collectives over one rank's connections.
class tcp_transport {
public:
  using channel = tcp::channel*;
  static constexpr std::string_view name = "tcp";

  tcp_transport(std::shared_ptr<tcp::acceptor> acceptor, const group_description& who)
      : acceptor_(std::move(acceptor)), mesh_(acceptor_->enter(who)) {}
  ~tcp_transport() {
    mesh_->depart();
    acceptor_->leave(group());
  }
  tcp_transport(const tcp_transport&) = delete;
  tcp_transport& operator=(const tcp_transport&) = delete;

  const group_description& group() const { return mesh_->group(); }
  channel among(const std::vector<std::int32_t>& members) { return &mesh_->among(members); }
  static const std::vector<std::int32_t>& members(const channel& in) { return in->members; }
  work_ptr submit(const channel& in, submission&& what, std::chrono::nanoseconds deadline) {
    return std::make_shared<tcp_work>(mesh_, mesh_->submit(*in, std::move(what)), deadline);
  }
  bool decide(const channel& in, submission&& what, std::chrono::nanoseconds deadline) {
    const auto started = mesh_->submit(*in, std::move(what));
    mesh_->wait(*started, mesh::clock::now(), deadline);
    return started->steps.verdict();
  }
  void when_aborted(std::function<void(const std::string&)> what) {
    mesh_->when_aborted(std::move(what));
  }
  std::shared_ptr<void> allocate(std::size_t bytes) { return allocate_bucket(bytes, true); }
  void abort(std::string_view why) noexcept { mesh_->abort(why); }
  bool aborted() const noexcept { return mesh_->aborted(); }
  bool quiescent() const noexcept { return mesh_->quiescent(); }
  bool waiting() const noexcept { return mesh_->waiting(); }
  std::string why() const { return mesh_->why(); }

private:
  const std::shared_ptr<tcp::acceptor> acceptor_;
  const std::shared_ptr<mesh> mesh_;
};

class mesh_communicator final
    : public collectives::host_communicator<tcp_transport, tcp_communicator> {
public:
  using host_communicator::host_communicator;

  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    check_tcp_label(label);
    return host_communicator::barrier(label, deadline, among);
  }
  work_ptr agree(const collective_call& what) override {
    submission with{.call = what};
    with.call.label = "agree";
    return submit(world(), std::move(with));
  }
  void when_aborted(std::function<void(const std::string&)> what) override {
    transport().when_aborted(std::move(what));
  }
};

}  // namespace

class tcp_backend::implementation {
public:
  explicit implementation(tcp_options options)
      : desk(std::make_shared<tcp::acceptor>(std::move(options))) {}
  const std::shared_ptr<tcp::acceptor> desk;
};

void check_tcp_label(std::string_view label) {
  if (label.size() > tcp::label_max)
    throw std::invalid_argument(
        fmt::format("barrier: a label of {} bytes; {} are the most", label.size(), tcp::label_max));
}

std::uint16_t checked_tcp_streams(std::int64_t connections) {
  if (connections < 1 || connections > tcp_streams_max)
    throw user_error(errc::bad_configuration,
                     fmt::format("tcp.streams = {}: two ranks have 1 to {} connections",
                                 connections, tcp_streams_max));
  return static_cast<std::uint16_t>(connections);
}

tcp_backend::tcp_backend(tcp_options options) {
  checked_tcp_streams(options.streams);
  impl_ = std::make_shared<implementation>(std::move(options));
}
tcp_backend::~tcp_backend() = default;

std::string tcp_backend::unusable() const {
  try {
    impl_->desk->listen();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

std::shared_ptr<communicator> tcp_backend::open(const group_description& who) {
  return open_tcp(who);
}

std::shared_ptr<tcp_communicator> tcp_backend::open_tcp(const group_description& who) {
  collectives::check_rank(who);
  if (who.world > tcp::world_max)
    throw std::invalid_argument(fmt::format("{}: {} ranks; tcp connects {} at most",
                                            collectives::generation_text(who), who.world,
                                            tcp::world_max));
  return std::make_shared<mesh_communicator>(impl_->desk, who);
}

tcp_address tcp_backend::address() { return impl_->desk->listen(); }
std::size_t tcp_backend::groups() const { return impl_->desk->meshes(); }

}  // namespace troupe
