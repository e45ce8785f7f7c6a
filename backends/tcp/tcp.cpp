#include "backends/tcp/tcp.hpp"

#include "backends/collective/bucket_memory.hpp"
#include "backends/tcp/acceptor.hpp"
#include "backends/tcp/mesh.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

namespace troupe {

namespace {

using tcp::channel;
using tcp::mesh;
using tcp::operation;
using tcp::seat;

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

class mesh_communicator final : public tcp_communicator {
public:
  mesh_communicator(std::shared_ptr<tcp::acceptor> acceptor, const group_description& who)
      : acceptor_(std::move(acceptor)),
        mesh_(acceptor_->enter(who)),
        world_(&mesh_->among(members_of({}, who.world, who.rank))) {}
  ~mesh_communicator() override {
    mesh_->depart();
    acceptor_->leave(group());
  }

  const group_description& group() const override { return mesh_->group(); }
  std::string_view name() const override { return "tcp"; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    auto& in = channel_of(among);
    return submit(in,
                  {.call = all_reduce_call(data, operation), .in = data.data, .out = data.data});
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    auto& in = channel_of(among);
    return submit(in, {.call = broadcast_call(data, root, in.members),
                       .in = data.data,
                       .out = data.data,
                       .yes = root == group().rank});
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    auto& at = channel_of(among);
    return submit(at, {.call = all_gather_call(in, out, at.members.size(), at.me),
                       .in = in.data,
                       .out = out.data});
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    auto& at = channel_of(among);
    return submit(at, {.call = reduce_scatter_call(in, out, operation, at.members.size(), at.me),
                       .in = in.data,
                       .out = out.data});
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    if (label.size() > tcp::label_max)
      throw std::invalid_argument(fmt::format("barrier: a label of {} bytes; {} are the most",
                                              label.size(), tcp::label_max));
    seat with;
    with.call.label = label;
    return submit(channel_of(among), std::move(with), deadline);
  }
  bool decide(bool yes, bool all, const subgroup& among) override;
  work_ptr agree(const collective_call& what) override {
    seat with{.call = what};
    with.call.label = "agree";
    return submit(*world_, std::move(with));
  }
  void when_aborted(std::function<void(const std::string&)> what) override {
    mesh_->when_aborted(std::move(what));
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return allocate_bucket(bytes, true);
  }
  void abort(std::string_view why) noexcept override { mesh_->abort(why); }
  bool aborted() const noexcept override { return mesh_->aborted(); }
  bool quiescent() const noexcept override { return mesh_->quiescent(); }
  bool waiting() const noexcept override { return mesh_->waiting(); }

private:
  channel& channel_of(const subgroup& among) {
    if (among.ranks.empty()) return *world_;
    for (const auto& [known, in] : subgroups_)
      if (known == among) return *in;
    auto& in = mesh_->among(members_of(among, group().world, group().rank));
    subgroups_.emplace_back(among, &in);
    return in;
  }
  work_ptr submit(channel& in, seat with, std::chrono::nanoseconds deadline = {}) {
    if (in.members.size() == 1) return submit_alone(with);
    return std::make_shared<tcp_work>(mesh_, mesh_->submit(in, std::move(with)),
                                      deadline.count() > 0 ? deadline : group().deadline);
  }
  // Nobody to wait for: every reduction of one rank is what it has.
  work_ptr submit_alone(const seat& with) {
    if (aborted()) return ended({work_status::aborted, mesh_->why(), {}});
    if (with.in != with.out && with.out && with.call.count > 0)
      std::memcpy(with.out, with.in, with.call.count * size_of(with.call.type));
    return ended({work_status::ok, {}, {}});
  }

  const std::shared_ptr<tcp::acceptor> acceptor_;
  const std::shared_ptr<mesh> mesh_;
  channel* const world_;
  std::vector<std::pair<subgroup, channel*>> subgroups_;
};

bool mesh_communicator::decide(bool yes, bool all, const subgroup& among) {
  auto& in = channel_of(among);
  if (in.members.size() == 1) {
    if (aborted()) throw generation_closed(mesh_->why());
    return yes;
  }
  const seat with{.call = {.what = collective::decide, .all = all}, .yes = yes};
  const auto what = mesh_->submit(in, with);
  mesh_->wait(*what, mesh::clock::now(), group().deadline);
  return what->steps.verdict();
}

}  // namespace

class tcp_backend::implementation {
public:
  explicit implementation(tcp_options options)
      : desk(std::make_shared<tcp::acceptor>(std::move(options))) {}
  const std::shared_ptr<tcp::acceptor> desk;
};

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
  const auto of = fmt::format("generation {} of job {}", who.generation.value(), who.job.value());
  if (who.world < 1 || who.rank < 0 || who.rank >= who.world)
    throw std::invalid_argument(
        fmt::format("{}: there is no rank {} in a world of {}", of, who.rank, who.world));
  if (who.world > tcp::world_max)
    throw std::invalid_argument(
        fmt::format("{}: {} ranks; tcp connects {} at most", of, who.world, tcp::world_max));
  return std::make_shared<mesh_communicator>(impl_->desk, who);
}

tcp_address tcp_backend::address() { return impl_->desk->listen(); }
std::size_t tcp_backend::groups() const { return impl_->desk->meshes(); }

}  // namespace troupe
