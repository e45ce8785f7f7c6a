#include "backends/hier/hier.hpp"

#include "backends/hier/steps.hpp"
#include "backends/tcp/tcp.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace troupe {

namespace {

// Partial results of these have the bits that the whole reduction would have at that place.
bool its_own_accumulator(dtype type) { return type != dtype::f16 && type != dtype::bf16; }

// Where a rank stands: its host's ranks and its block of the canonical tree.
struct place {
  std::int32_t host_first = 0;
  std::int32_t host_ranks = 1;
  std::int32_t block = 1;  // ranks per block
  subgroup mates;          // of my block, counted within the host
  subgroup leaders;        // the first ranks of all blocks
};

place place_of(const group_description& who, const std::vector<std::int32_t>& hosts) {
  place result;
  result.block = block_of(hosts, who.world);
  for (const auto ranks : hosts) {
    result.host_ranks = ranks;
    if (who.rank < result.host_first + ranks) break;
    result.host_first += ranks;
  }
  const auto first = who.rank / result.block * result.block;
  for (auto r = first; r < std::min(first + result.block, who.world); ++r)
    result.mates.ranks.push_back(r - result.host_first);
  for (std::int32_t r = 0; r < who.world; r += result.block) result.leaders.ranks.push_back(r);
  return result;
}

// The communicator of a host's ranks, which an abort of all ranks reaches, also before it is there.
class host_ranks {
public:
  void abort(const std::string& why) {
    const auto all = [&] {
      const std::lock_guard hold{guard_};
      why_ = why;
      return all_;
    }();
    if (all) all->abort(why);
  }
  void set(std::shared_ptr<communicator> all) {
    const auto why = [&] {
      const std::lock_guard hold{guard_};
      all_ = all;
      return why_;
    }();
    if (why) all->abort(*why);
  }
  std::shared_ptr<communicator> get() const {
    const std::lock_guard hold{guard_};
    return all_;
  }

private:
  mutable std::mutex guard_;
  std::shared_ptr<communicator> all_;
  std::optional<std::string> why_;
};

class hier_communicator final : public communicator {
public:
  hier_communicator(const hier_options& options, const group_description& who,
                    std::optional<place> at)
      : options_(options),
        remote_(options.remote->open_tcp(who)),
        steps_(std::make_shared<hier::steps>(
            [remote = std::weak_ptr{remote_}](const work_result& how) {
              if (const auto all = remote.lock()) all->abort(how.text);
            })) {
    remote_->when_aborted([here = std::weak_ptr{local_}](const std::string& why) {
      if (const auto local = here.lock()) local->abort(why);
    });
    if (at)
      settle(std::move(*at));
    else
      options_.finder->publish(who);
    if (may_have_steps()) steps_->begin();
  }
  ~hier_communicator() override {
    if (const auto text = steps_->oldest(); !text.empty())
      abort(fmt::format("rank {} closed its communicator while {} was in flight", group().rank,
                        text));
    steps_->close();
  }

  const group_description& group() const override { return remote_->group(); }
  std::string_view name() const override { return "hier"; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    const auto call = all_reduce_call(data, operation);
    check_on_host(call, data, name());
    if (aborted()) return remote_->agree(call);
    if (may_have_steps() && everybody(among) && operation != reduction::mean &&
        its_own_accumulator(data.type) && data.count >= options_.local_from / size_of(data.type)) {
      // Other ranks wait for this rank's agreement, so it is sent at once if no step precedes it.
      const auto agreed = steps_->oldest().empty() ? remote_->agree(call) : nullptr;
      return steps_->add(
          [=, this] {
            return reduce(data, operation, call, agreed ? agreed : remote_->agree(call));
          },
          describe(call));
    }
    return straight([=, this] { return remote_->all_reduce(data, operation, among); },
                    [&](const auto&) { return call; }, among);
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    return straight([=, this] { return remote_->broadcast(data, root, among); },
                    [&](const auto& members) {
                      return on_host(broadcast_call(data, root, members), data, data);
                    },
                    among);
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    return straight([=, this] { return remote_->all_gather(in, out, among); },
                    [&](const auto& members) {
                      return on_host(all_gather_call(in, out, members.size(), place_in(members)),
                                     in, out);
                    },
                    among);
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    return straight(
        [=, this] { return remote_->reduce_scatter(in, out, operation, among); },
        [&](const auto& members) {
          return on_host(reduce_scatter_call(in, out, operation, members.size(), place_in(members)),
                         in, out);
        },
        among);
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    check_tcp_label(label);
    return straight(
        [=, this, label = std::string{label}] { return remote_->barrier(label, deadline, among); },
        [&](const auto&) { return collective_call{.label = std::string{label}}; }, among);
  }
  bool decide(bool yes, decision by, const subgroup& among) override {
    steps_->await_idle();
    return remote_->decide(yes, by, among);
  }

  bool waiting() const noexcept override {
    return remote_->waiting() || steps_->waiting() || allocating_.load(std::memory_order_relaxed);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    allocating_.store(true, std::memory_order_relaxed);
    await_hosts();
    allocating_.store(false, std::memory_order_relaxed);
    const auto local = local_->get();
    return local ? local->allocate(bytes) : remote_->allocate(bytes);
  }
  // On each host that the abort reaches, `remote_` passes it on to that host's ranks.
  void abort(std::string_view why) noexcept override { remote_->abort(why); }
  bool aborted() const noexcept override { return remote_->aborted(); }
  bool quiescent() const noexcept override {
    const auto local = local_->get();
    return steps_->oldest().empty() && remote_->quiescent() && (!local || local->quiescent());
  }

private:
  // A subgroup that lists the whole world is the same as an empty one.
  bool everybody(const subgroup& among) const {
    return members_of(among, group().world, group().rank).size() ==
           static_cast<std::size_t>(group().world);
  }

  std::size_t place_in(const std::vector<std::int32_t>& members) const {
    return place_among(members, group().rank);
  }
  collective_call on_host(collective_call&& call, const buffer& in, const buffer& out) const {
    check_on_host(call, in, name());
    check_on_host(call, out, name());
    return std::move(call);
  }

  // While no operation with steps is open, others go directly to `remote_`: their order over the
  // network is that of submission either way. One that has to wait is checked here, by the call of
  // its members that `call` makes: the thread of the steps cannot throw to who asked for it.
  template <class Submit, class Call>
  work_ptr straight(Submit submit, Call call, const subgroup& among) {
    if (steps_->oldest().empty()) return submit();
    const auto members = members_of(among, group().world, group().rank);
    return steps_->add([submit = std::move(submit)] { return hier::end_of(submit()); },
                       describe(call(members)));
  }

  work_result reduce(buffer data, reduction operation, const collective_call& call,
                     const work_ptr& agreement) {
    auto result = hier::end_of(agreement);
    if (result.status != work_status::ok) return result;
    await_hosts();
    if (at_.block == 1) return hier::end_of(remote_->all_reduce(data, operation, {}));
    const auto local = local_->get();
    const auto then = [&](const auto& submit) {
      if (result.status == work_status::ok) result = hier::end_of(submit());
    };
    const auto here = [&](const auto& submit) {
      if (result.status != work_status::ok) return;
      result = hier::end_of(submit());
      if (result.status == work_status::timed_out) name_by_world(result, call);
    };
    const auto leader = at_.mates.ranks.front();
    if (at_.mates.ranks.size() > 1)
      here([&] { return local->all_reduce(data, operation, at_.mates); });
    if (group().rank - at_.host_first == leader && at_.leaders.ranks.size() > 1)
      then([&] { return remote_->all_reduce(data, operation, at_.leaders); });
    if (at_.mates.ranks.size() > 1 && at_.leaders.ranks.size() > 1)
      here([&] { return local->broadcast(data, leader, at_.mates); });
    return result;
  }

  // The ranks of a host count from its first.
  void name_by_world(work_result& result, const collective_call& call) const {
    for (auto& rank : result.missing) rank += at_.host_first;
    result.text = missed(call, group().deadline, result.missing);
  }

  // Each block has one rank where the hosts say so before any operation; then no step is needed.
  bool may_have_steps() const { return options_.finder || at_.block > 1; }

  // With a finder: until the hosts are known, or the group is aborted. On any thread.
  void await_hosts() {
    const std::lock_guard hold{settling_};
    while (!settled_ && !remote_->aborted()) find_hosts();
  }

  void find_hosts() {
    try {
      const auto hosts = options_.finder->find(group(), patience);
      if (hosts) settle(place_of(group(), *hosts));
    } catch (const std::exception& error) {
      remote_->abort(error.what());
    }
  }

  void settle(place at) {
    if (at.block > 1) {
      auto here = group();
      here.rank = group().rank - at.host_first;
      here.world = at.host_ranks;
      here.named_from = group().named_from + at.host_first;
      local_->set(options_.local->open(here));
    }
    at_ = std::move(at);
    settled_ = true;
  }

  // How long an abort waits for a thread that looks for the hosts.
  static constexpr std::chrono::milliseconds patience{100};

  const hier_options options_;
  const std::shared_ptr<host_ranks> local_ = std::make_shared<host_ranks>();
  const std::shared_ptr<tcp_communicator> remote_;
  const std::shared_ptr<hier::steps> steps_;
  std::mutex settling_;
  bool settled_ = false;
  std::atomic<bool> allocating_{false};
  place at_;  // it stays once it is settled; before, each rank is a block
};

}  // namespace

std::int32_t block_of(const std::vector<std::int32_t>& hosts, std::int32_t world) {
  std::vector<std::int32_t> host_of;
  for (std::size_t host = 0; host < hosts.size(); ++host)
    for (std::int32_t i = 0; i < hosts[host]; ++i)
      host_of.push_back(static_cast<std::int32_t>(host));
  if (static_cast<std::int64_t>(host_of.size()) != world)
    throw std::invalid_argument(
        fmt::format("hosts with {} ranks are no world of {}", fmt::join(hosts, ", "), world));
  const auto fits = [&](std::int32_t block) {
    for (std::int32_t first = 0; first < world; first += block)
      if (host_of[static_cast<std::size_t>(first)] !=
          host_of[static_cast<std::size_t>(std::min(first + block, world) - 1)])
        return false;
    return true;
  };
  std::int32_t block = 1;
  while (block < world && fits(2 * block)) block *= 2;
  return block;
}

hier_backend::hier_backend(hier_options options) : options_(std::move(options)) {
  if (!options_.local || !options_.remote || !options_.hosts == !options_.finder)
    throw std::invalid_argument(
        "hier needs a local and a remote communicator, and the hosts or a finder");
}

std::string hier_backend::unusable() const {
  auto why = options_.local->unusable();
  return why.empty() ? options_.remote->unusable() : why;
}

std::shared_ptr<communicator> hier_backend::open(const group_description& who) {
  if (who.world < 1 || who.rank < 0 || who.rank >= who.world)
    throw std::invalid_argument(
        fmt::format("there is no rank {} in a world of {}", who.rank, who.world));
  auto at = options_.hosts ? std::optional{place_of(who, options_.hosts(who))} : std::nullopt;
  return std::make_shared<hier_communicator>(options_, who, std::move(at));
}

}  // namespace troupe
