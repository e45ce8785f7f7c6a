#include "backends/simulated/fabric.hpp"

#include "backends/simulated/fabric_group.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

namespace troupe {

using simulated::fabric_group;
using simulated::member;

namespace {

// Cost on one level in nanoseconds; `bytes` per member.
double cost_of(collective_kind what, const wire_cost& wire, std::size_t members, double bytes) {
  if (members < 2) return 0;
  const auto p = static_cast<double>(members);
  const auto hops = static_cast<double>(std::bit_width(members - 1));
  const auto alpha = static_cast<double>(wire.alpha.count());
  const auto message = alpha + bytes * wire.nanoseconds_per_byte;
  switch (what) {
    case collective_kind::all_reduce:
      return std::min(2 * (p - 1) * alpha + 2 * (p - 1) / p * bytes * wire.nanoseconds_per_byte,
                      2 * hops * message);
    case collective_kind::all_gather:
    case collective_kind::reduce_scatter: return (p - 1) * message;
    case collective_kind::broadcast: return hops * message;
    case collective_kind::barrier:
    case collective_kind::decide: return hops * alpha;
    case collective_kind::work_together: break;  // needs shared memory, which is not offered here
  }
  return 0;
}

}  // namespace

std::chrono::nanoseconds network_cost::of(const collective_call& call, std::size_t members) const {
  const auto bytes = static_cast<double>(call.count * size_of(call.type));
  const auto inner = std::min(std::max<std::size_t>(1, per_host), members);
  const auto hosts = inner < 2 ? members : (members + inner - 1) / inner;
  // Gather and scatter send the pieces of all ranks of a host between hosts.
  const bool pieces =
      call.what == collective_kind::all_gather || call.what == collective_kind::reduce_scatter;
  const auto cost =
      cost_of(call.what, inside, inner, bytes) +
      cost_of(call.what, between, hosts, pieces ? bytes * static_cast<double>(inner) : bytes);
  return std::chrono::nanoseconds{static_cast<std::int64_t>(cost)};
}

class simulated_fabric::network : public simulated::network_state {
public:
  network(later_fn later, std::function<std::chrono::nanoseconds()> now, network_cost cost,
          met_fn met)
      : simulated::network_state{std::move(later), std::move(now), cost, std::move(met)} {}

  std::shared_ptr<fabric_group> enter(const group_description& who) {
    const std::pair key{who.job, who.generation};
    if (const auto known = groups_.find(key); known != groups_.end())
      if (auto alive = known->second.lock()) return alive;
    drop_old();
    auto fresh = std::make_shared<fabric_group>(*this, who);
    groups_[key] = fresh;
    return fresh;
  }
  template <class F>
  void for_each(F visit) {
    drop_old();
    for (auto& [key, group] : groups_)
      if (const auto alive = group.lock()) visit(*alive);
  }

private:
  void drop_old() {
    std::erase_if(groups_, [](const auto& g) { return g.second.expired(); });
  }

  std::map<std::pair<job_id, generation_id>, std::weak_ptr<fabric_group>> groups_;
};

namespace {

using simulated::channel;
using simulated::endpoint_call;

// A buffer without memory has a size only.
bool weightless(const buffer& data) { return !data.data && data.count > 0; }

collective_call call_of(const buffer& data, reduction operation) {
  if (!weightless(data)) return all_reduce_call(data, operation);
  return {.what = collective_kind::all_reduce,
          .type = data.type,
          .operation = operation,
          .count = data.count};
}

collective_call call_of(const buffer& data, std::int32_t root, const channel& among) {
  if (!weightless(data)) return broadcast_call(data, root, among.members);
  return {.what = collective_kind::broadcast, .type = data.type, .root = root, .count = data.count};
}

class simulated_communicator final : public communicator {
public:
  simulated_communicator(std::shared_ptr<simulated::network_state> network,
                         std::shared_ptr<fabric_group> group, const group_description& who,
                         std::shared_ptr<const fabric_endpoint> endpoint)
      : network_(std::move(network)),
        who_(who),
        group_(std::move(group)),
        me_(group_->join(who, std::move(endpoint))),
        everybody_(group_->everybody()) {
    ++network_->handles;
  }
  ~simulated_communicator() override {
    --network_->handles;
    group_->depart(*me_);
  }

  const group_description& group() const override { return who_; }
  std::string_view name() const override { return "simulated"; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return submit(channel_of(among),
                  {.call = call_of(data, operation), .in = data.data, .out = data.data});
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    const auto at = channel_of(among);
    return submit(at, {.call = call_of(data, root, *at), .in = data.data, .out = data.data});
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    const auto at = channel_of(among);
    return submit(at,
                  {.call = all_gather_call(in, out, at->members.size(), at->index_of(who_.rank)),
                   .in = in.data,
                   .out = out.data});
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    const auto at = channel_of(among);
    return submit(at, {.call = reduce_scatter_call(in, out, operation, at->members.size(),
                                                   at->index_of(who_.rank)),
                       .in = in.data,
                       .out = out.data});
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    endpoint_call with;
    with.call.label = label;
    return submit(channel_of(among), std::move(with), deadline);
  }
  // The lane cannot wait: a second call continues the decision that the first one began.
  bool decide(bool yes, decision by, const subgroup& among) override {
    if (!deciding_)
      deciding_ = submit(
          channel_of(among),
          {.call = {.what = collective_kind::decide, .all = by == decision::all}, .yes = yes});
    deciding_->wait();
    const auto ended = std::exchange(deciding_, nullptr);
    return group_->verdict(*ended);
  }

  bool waiting() const noexcept override { return me_->endpoint->bell->waited_for(); }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return {::operator new(bytes), [](void* p) { ::operator delete(p); }};
  }
  void abort(std::string_view why) noexcept override { group_->abort(*me_, std::string{why}); }
  bool aborted() const noexcept override { return me_->aborted; }
  bool quiescent() const noexcept override { return me_->aborted || me_->open == 0; }

private:
  std::shared_ptr<channel> channel_of(const subgroup& among) const {
    return among.ranks.empty() ? everybody_
                               : group_->among(members_of(among, who_.world, who_.rank));
  }
  work_ptr submit(const std::shared_ptr<channel>& in, endpoint_call with,
                  std::chrono::nanoseconds deadline = {}) {
    return group_->submit(me_, in, std::move(with),
                          deadline.count() > 0 ? deadline : who_.deadline);
  }

  const std::shared_ptr<simulated::network_state> network_;
  const group_description who_;
  const std::shared_ptr<fabric_group> group_;
  const std::shared_ptr<member> me_;
  const std::shared_ptr<channel> everybody_;
  work_ptr deciding_;
};

}  // namespace

simulated_fabric::simulated_fabric(later_fn later, std::function<std::chrono::nanoseconds()> now,
                                   network_cost cost, met_fn met)
    : network_(std::make_shared<network>(std::move(later), std::move(now), cost, std::move(met))) {}
simulated_fabric::~simulated_fabric() = default;

std::shared_ptr<communicator_backend> simulated_fabric::at(fabric_endpoint endpoint) {
  class backend final : public communicator_backend {
  public:
    backend(std::shared_ptr<network> of, fabric_endpoint endpoint)
        : network_(std::move(of)),
          endpoint_(std::make_shared<const fabric_endpoint>(std::move(endpoint))) {}
    std::string_view name() const override { return "simulated"; }
    std::string unusable() const override { return {}; }
    std::shared_ptr<communicator> open(const group_description& who) override {
      auto made =
          std::make_shared<simulated_communicator>(network_, network_->enter(who), who, endpoint_);
      if (endpoint_->opened) endpoint_->opened(who);
      return made;
    }

  private:
    std::shared_ptr<network> network_;
    std::shared_ptr<const fabric_endpoint> endpoint_;
  };
  return std::make_shared<backend>(network_, std::move(endpoint));
}

void simulated_fabric::vanish(std::uint32_t process) {
  network_->for_each([process](fabric_group& group) { group.vanish(process); });
}

void simulated_fabric::cut(std::int32_t rank, bool off) {
  if (off)
    network_->isolated.insert(rank);
  else
    network_->isolated.erase(rank);
  if (!off) network_->for_each([](fabric_group& group) { group.go_on(); });
}

std::size_t simulated_fabric::handles() const { return network_->handles; }

}  // namespace troupe
