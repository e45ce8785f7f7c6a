// Collectives of ranks in different processes and on different hosts, over TCP connections between
// all of them.
#pragma once

#include "backends/collective/collective_call.hpp"
#include "troupe/communicator.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// Where a rank's process listens. `host`: a name or an address.
struct tcp_address {
  std::string host;
  std::uint16_t port = 0;
  friend bool operator==(const tcp_address&, const tcp_address&) = default;
};
/// `127.0.0.1:4711`, `[::1]:4711`.
std::string to_string(const tcp_address& address);

/// How the ranks of a generation learn of each other's addresses. Thread-safe.
class tcp_rendezvous {
public:
  virtual ~tcp_rendezvous() = default;
  /// `who.rank` can be reached at `at`. Called by `open`; must not wait.
  virtual void publish(const group_description& who, const tcp_address& at) = 0;
  /// The address of `rank` in the generation of `who`, if it is known yet. Called repeatedly until
  /// it is, and again when no process accepts the connection. Must not wait. An exception ends the
  /// group.
  virtual std::optional<tcp_address> find(const group_description& who, std::int32_t rank) = 0;
};

/// A table in memory: for ranks of one process, or filled by a launcher that hands addresses round.
class tcp_address_book : public tcp_rendezvous {
public:
  void publish(const group_description& who, const tcp_address& at) override;
  std::optional<tcp_address> find(const group_description& who, std::int32_t rank) override;
  /// A process keeps its address over generations. A later call replaces the address.
  void set(job_id job, std::int32_t rank, tcp_address at);
  void forget(job_id job);

private:
  std::mutex mutex_;
  std::map<std::pair<job_id, std::int32_t>, tcp_address> at_;
};

/// A fixed table: rank r listens at ranks[r], in every job.
class tcp_fixed_addresses : public tcp_rendezvous {
public:
  explicit tcp_fixed_addresses(std::vector<tcp_address> ranks) : ranks_(std::move(ranks)) {}
  void publish(const group_description&, const tcp_address&) override {}
  /// Throws std::invalid_argument for a rank that is not in the table.
  std::optional<tcp_address> find(const group_description& who, std::int32_t rank) override;

private:
  const std::vector<tcp_address> ranks_;
};

/// Most connections between two ranks.
inline constexpr std::uint16_t tcp_streams_max = 16;

struct tcp_options {
  /// Where this process listens, for all its ranks and generations. Port 0: any that is free. To be
  /// reached from other hosts it has to be an address of this one, or `0.0.0.0` or `::`.
  tcp_address listen{"127.0.0.1", 0};
  /// What to publish as the host, if not `listen.host` (which others cannot dial if it is 0.0.0.0).
  std::string advertise;
  /// Shared by the processes of a job; peers without it are refused. It is sent without encryption:
  /// a network where others can listen needs a tunnel.
  std::array<std::uint8_t, 32> secret{};
  /// Null: an address book of this backend's own, for ranks of this process.
  std::shared_ptr<tcp_rendezvous> rendezvous;
  /// Connections between two ranks, 1 to tcp_streams_max; the same on all ranks. Operations that
  /// send more than 768 KiB to a rank use all of them, everything else the first one.
  std::uint16_t streams = 2;
};
/// The same number, if it can be one of `streams`. Throws user_error.
std::uint16_t checked_tcp_streams(std::int64_t connections);
/// Throws std::invalid_argument if a barrier's label is too long for tcp.
void check_tcp_label(std::string_view label);

/// A rank's handle, with operations beyond the port's.
class tcp_communicator : public communicator {
public:
  /// Compares calls and waits as the operation itself does, but moves no data. For callers that
  /// move the data another way afterwards. Over the world.
  virtual work_ptr agree(const collective_call& what) = 0;
  /// `what` is called with the reason, once, as soon as this rank knows that the group is aborted:
  /// on any thread, at once if it is already. It must neither wait nor throw nor call this
  /// communicator. Once per communicator.
  virtual void when_aborted(std::function<void(const std::string& why)> what) = 0;
};

/// Ranks that exchange slices directly, in the canonical order: same bits as in process. One thread
/// per backend, asleep while lanes wait in here themselves. Thread-safe.
///
/// Beyond the port's contract:
/// - `open` listens (at the first call; user_error if it cannot) and returns at once; connections
///   come about in the background and are tried until the handle goes. It throws
///   std::invalid_argument if the description makes no sense, and internal_error if the rank has
///   opened that generation, or a later one, before.
/// - A peer of another job, generation, version or world, with another number of connections, or
///   that does not know the secret, is refused before anything else it says is looked at; who is
///   refused aborts with the reason.
/// - A peer one of whose connections ends without a last frame is named, and the group aborted. One
///   that is silent is found out by the deadline: until all have called, and after that whenever
///   nothing has moved for as long. The others are then asked whom they wait for (0.2 s at most),
///   so that a rank that waits itself is not named for one that does not answer.
/// - A host that fails silently is found out without a deadline, too: by the kernel, which
///   asks an idle connection after 15 s and then each 5 s, and gives it up after 9 questions, a
///   minute in all; after about a quarter of an hour (net.ipv4.tcp_retries2) if something was on
///   its way there. A rank that is only stopped has no limit but the deadline.
/// - Operations of a (sub)group run one by one. At most 4096 of them may be in flight (user_error
///   beyond), and 4096 (sub)groups in use (internal_error beyond). Labels have 1024 bytes at most.
/// - Besides the ranks' own memory an operation needs 1 MiB per peer, whatever its size, and a
///   connection 64 KiB.
/// - An abort reaches the peers as fast as the network; one that races with completion may find an
///   operation complete on some ranks and not on others.
/// - Deadlines are kept by `wait` and `poll`. `wait` throws when no thread uses the memory any
///   more.
/// - Destroying a handle is as with inproc_backend; it does not wait for peers, which are informed
///   in the background (2 s at most).
class tcp_backend final : public communicator_backend {
public:
  /// Throws user_error for an impossible number of connections.
  explicit tcp_backend(tcp_options options = {});
  ~tcp_backend() override;
  tcp_backend(const tcp_backend&) = delete;
  tcp_backend& operator=(const tcp_backend&) = delete;

  std::string_view name() const override { return "tcp"; }
  std::string unusable() const override;
  std::shared_ptr<communicator> open(const group_description& group) override;
  std::shared_ptr<tcp_communicator> open_tcp(const group_description& group);

  /// Where this process listens; starts to, if it does not. Throws user_error if it cannot.
  tcp_address address();
  /// Groups that are not over yet, those without a handle included.
  std::size_t groups() const;

private:
  class implementation;
  std::shared_ptr<implementation> impl_;
};

}  // namespace troupe
