// The communicator that every transport shares: checks what a lane asks, finds its (sub)group and
// submits it.
#pragma once

#include "backends/collective/submission.hpp"

#include <chrono>
#include <concepts>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::collectives {

/// What a transport offers. It orders the operations of each channel, compares their fingerprints,
/// keeps their deadlines and moves the bytes. Operations of a channel with one member do not reach
/// it, because nothing is to be moved there. A transport that needs them says `moves_alone`. One
/// that carries memory of devices has `check_device(call, buffer)`; others refuse such memory.
template <class T>
concept transport = requires(T& t, const T& c, const typename T::channel& in, submission what,
                             const std::vector<std::int32_t>& members, std::string_view text,
                             std::chrono::nanoseconds deadline) {
  { T::name } -> std::convertible_to<std::string_view>;
  { c.group() } -> std::same_as<const group_description&>;
  /// One (sub)group's operations. Cheap to copy; opened once per list of members.
  { t.among(members) } -> std::same_as<typename T::channel>;
  { T::members(in) } -> std::same_as<const std::vector<std::int32_t>&>;
  /// `deadline` 0: no limit.
  { t.submit(in, std::move(what), deadline) } -> std::convertible_to<work_ptr>;
  { t.decide(in, std::move(what), deadline) } -> std::same_as<bool>;
  { t.allocate(std::size_t{}) } -> std::same_as<std::shared_ptr<void>>;
  { t.abort(text) }
  noexcept;
  { c.aborted() }
  noexcept->std::same_as<bool>;
  { c.quiescent() }
  noexcept->std::same_as<bool>;
  { c.waiting() }
  noexcept->std::same_as<bool>;
  { c.why() } -> std::same_as<std::string>;
};

/// `Port` is the port that is implemented: `communicator` or an extension of it. The transport is a
/// member and its calls are no virtual calls.
template <transport Transport, class Port = communicator>
class host_communicator : public Port {
public:
  template <class... Arguments>
  explicit host_communicator(Arguments&&... arguments)
      : transport_(std::forward<Arguments>(arguments)...),
        world_(transport_.among(members_of({}, group().world, group().rank))) {}

  const group_description& group() const final { return transport_.group(); }
  std::string_view name() const final { return Transport::name; }

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return submit(channel_of(among), with(all_reduce_call(data, operation), data, data));
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    const auto& in = channel_of(among);
    return submit(in, with(broadcast_call(data, root, Transport::members(in)), data, data));
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    const auto& at = channel_of(among);
    const auto& members = Transport::members(at);
    return submit(at, with(all_gather_call(in, out, members.size(), place_in(members)), in, out));
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    const auto& at = channel_of(among);
    const auto& members = Transport::members(at);
    return submit(
        at,
        with(reduce_scatter_call(in, out, operation, members.size(), place_in(members)), in, out));
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    submission what;
    what.call.label = label;
    return submit(channel_of(among), std::move(what), deadline);
  }
  bool decide(bool yes, decision by, const subgroup& among) override {
    const auto& in = channel_of(among);
    submission what{.call = {.what = collective_kind::decide, .all = by == decision::all},
                    .yes = yes};
    if (!alone(in)) return transport_.decide(in, std::move(what), group().deadline);
    if (aborted()) throw generation_closed(transport_.why());
    return yes;
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override { return transport_.allocate(bytes); }
  void abort(std::string_view why) noexcept override { transport_.abort(why); }
  bool aborted() const noexcept override { return transport_.aborted(); }
  bool quiescent() const noexcept override { return transport_.quiescent(); }
  bool waiting() const noexcept override { return transport_.waiting(); }

protected:
  using channel = typename Transport::channel;

  /// `deadline` 0: the group's.
  work_ptr submit(const channel& in, submission&& what, std::chrono::nanoseconds deadline = {}) {
    if (alone(in)) return submit_alone(what);
    return transport_.submit(in, std::move(what),
                             deadline.count() > 0 ? deadline : group().deadline);
  }
  const channel& world() const { return world_; }
  Transport& transport() { return transport_; }
  work_ptr aborted_work() const { return ended({work_status::aborted, transport_.why(), {}}); }
  const work_ptr& done_work() const { return done_; }

private:
  static bool alone(const channel& in) {
    if constexpr (requires { Transport::moves_alone; }) return false;
    return Transport::members(in).size() == 1;
  }
  submission with(collective_call&& call, const buffer& in, const buffer& out) const {
    for (const auto* one : {&in, &out}) {
      if constexpr (requires { transport_.check_device(call, *one); })
        transport_.check_device(call, *one);
      else
        check_on_host(call, *one, Transport::name);
    }
    submission made{.call = std::move(call), .in = in.data, .out = out.data};
    made.in_ready = in.ready;
    made.out_ready = out.ready;
    return made;
  }
  std::size_t place_in(const std::vector<std::int32_t>& members) const {
    return place_among(members, group().rank);
  }

  const channel& channel_of(const subgroup& among) {
    if (among.ranks.empty()) return world_;
    for (const auto& [known, in] : subgroups_)
      if (known == among) return in;
    auto in = transport_.among(members_of(among, group().world, group().rank));
    return subgroups_.emplace_back(among, std::move(in)).second;
  }

  // Every reduction over one rank is what that rank brings.
  work_ptr submit_alone(const submission& what) {
    if (aborted()) return aborted_work();
    if (what.in != what.out && what.call.count > 0)
      std::memcpy(what.out, what.in, what.call.count * size_of(what.call.type));
    return done_;
  }

  Transport transport_;
  const channel world_;
  std::vector<std::pair<subgroup, channel>> subgroups_;
  const work_ptr done_ = ended({work_status::ok, {}, {}});
};

}  // namespace troupe::collectives
