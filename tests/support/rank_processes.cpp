#include "tests/support/rank_processes.hpp"

#include "backends/launcher.hpp"
#include "tests/support/shared_heap.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace troupe::testing {

namespace {

constexpr std::size_t lines = 4;  // concurrent calls to one rank
constexpr std::size_t text_max = 4000;

enum class verb : std::uint8_t {
  open,
  close,
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  barrier,
  decide,
  waiting,
  abort,
  aborted,
  quiescent,
  poll,
  wait,
  drop,
  footprint
};
enum class thrown : std::uint8_t {
  nothing,
  invalid_argument,
  internal,
  user,
  closed,
  timeout,
  mismatch,
  other
};

// Both structs are sent as raw bytes, because all processes run the same program.
struct request {
  verb what{};
  std::uint64_t id = 0;  // of the handle or the work
  std::uint64_t job = 0;
  std::uint64_t generation = 0;
  std::int32_t rank = 0;
  std::int32_t world = 0;
  std::int64_t nanoseconds = 0;
  buffer in;
  buffer out;
  reduction operation{};
  std::int32_t root = 0;
  bool yes = false;
  bool all = false;
  std::uint32_t members = 0;
  std::array<std::int32_t, 64> among{};
  std::array<char, text_max> text{};
};
struct reply {
  thrown error = thrown::nothing;
  bool flag = false;
  std::uint64_t id = 0;
  work_status status{};
  std::uint32_t missing_count = 0;
  std::array<std::int32_t, 64> missing{};
  footprint holds;
  std::array<char, text_max> text{};
};

template <std::size_t N>
void put(std::array<char, N>& to, std::string_view text) {
  const auto length = std::min(text.size(), N - 1);
  std::copy_n(text.begin(), length, to.begin());
  to[length] = 0;
}

/// In the rank's process: performs the requests.
class server {
public:
  explicit server(std::shared_ptr<communicator_backend> backend) : backend_(std::move(backend)) {}

  void answer(int socket) {
    request asked;
    while (recv(socket, &asked, sizeof asked, 0) == sizeof asked) {
      reply said;
      try {
        handle(asked, said);
      } catch (const std::invalid_argument& e) {
        fail(said, thrown::invalid_argument, e);
      } catch (const internal_error& e) {
        fail(said, thrown::internal, e);
      } catch (const user_error& e) {
        fail(said, thrown::user, e);
      } catch (const generation_closed& e) {
        fail(said, thrown::closed, e);
      } catch (const collective_timeout& e) {
        fail(said, thrown::timeout, e);
      } catch (const collective_mismatch& e) {
        fail(said, thrown::mismatch, e);
      } catch (const std::exception& e) {
        fail(said, thrown::other, e);
      }
      if (send(socket, &said, sizeof said, MSG_NOSIGNAL) != sizeof said) return;
    }
  }

private:
  static void fail(reply& said, thrown kind, const std::exception& error) {
    said.error = kind;
    put(said.text, error.what());
  }
  template <class T>
  T find(const std::map<std::uint64_t, T>& in, std::uint64_t id) {
    const std::lock_guard hold{mutex_};
    return in.at(id);
  }
  template <class T>
  std::uint64_t keep(std::map<std::uint64_t, T>& in, T what) {
    const std::lock_guard hold{mutex_};
    in.emplace(++last_, std::move(what));
    return last_;
  }
  template <class T>
  void drop(std::map<std::uint64_t, T>& from, std::uint64_t id) {
    T gone;  // destroyed outside of the mutex
    const std::lock_guard hold{mutex_};
    gone = std::move(from.at(id));
    from.erase(id);
  }

  void handle(const request& asked, reply& said) {
    switch (asked.what) {
      case verb::open:
        said.id = keep(handles_, backend_->open({job_id{asked.job}, generation_id{asked.generation},
                                                 asked.rank, asked.world,
                                                 std::chrono::nanoseconds{asked.nanoseconds}}));
        return;
      case verb::close: return drop(handles_, asked.id);
      case verb::drop: return drop(works_, asked.id);
      case verb::footprint: said.holds = footprint_now(); return;
      case verb::wait: return find(works_, asked.id)->wait();
      case verb::poll: {
        const auto result = find(works_, asked.id)->poll();
        said.status = result.status;
        said.missing_count = static_cast<std::uint32_t>(result.missing.size());
        std::copy(result.missing.begin(), result.missing.end(), said.missing.begin());
        put(said.text, result.text);
        return;
      }
      default: on_handle(asked, said, *find(handles_, asked.id));
    }
  }

  void on_handle(const request& asked, reply& said, communicator& c) {
    const subgroup among{{asked.among.begin(), asked.among.begin() + asked.members}};
    const std::chrono::nanoseconds deadline{asked.nanoseconds};
    switch (asked.what) {
      case verb::waiting: said.flag = c.waiting(); return;
      case verb::abort: return c.abort(asked.text.data());
      case verb::aborted: said.flag = c.aborted(); return;
      case verb::quiescent: said.flag = c.quiescent(); return;
      case verb::decide:
        said.flag = c.decide(asked.yes, asked.all ? decision::all : decision::any, among);
        return;
      case verb::all_reduce:
        said.id = keep(works_, c.all_reduce(asked.in, asked.operation, among));
        return;
      case verb::broadcast:
        said.id = keep(works_, c.broadcast(asked.in, asked.root, among));
        return;
      case verb::all_gather:
        said.id = keep(works_, c.all_gather(asked.in, asked.out, among));
        return;
      case verb::reduce_scatter:
        said.id = keep(works_, c.reduce_scatter(asked.in, asked.out, asked.operation, among));
        return;
      case verb::barrier:
        said.id = keep(works_, c.barrier(asked.text.data(), deadline, among));
        return;
      default: throw internal_error("no such request");
    }
  }

  const std::shared_ptr<communicator_backend> backend_;
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<communicator>> handles_;
  std::map<std::uint64_t, work_ptr> works_;
};

/// In the test's process: a rank's process.
class rank_process {
public:
  explicit rank_process(const std::function<std::shared_ptr<communicator_backend>()>& make) {
    std::array<std::array<int, 2>, lines> pairs{};
    for (auto& pair : pairs)
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0)
        throw std::runtime_error("socketpair failed");
    const auto parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      leave_shared_heap();
      for (const auto& pair : pairs) close(pair[0]);
      if (getppid() == parent) serve(make, pairs);
      _exit(0);
    }
    for (const auto& pair : pairs) close(pair[1]);
    // Until the child is ready it may need what `make` refers to.
    reply ready;
    if (recv(pairs[0][0], &ready, sizeof ready, 0) != sizeof ready)
      throw std::runtime_error("a rank's process did not start");
    for (const auto& pair : pairs) free_.push_back(pair[0]);
  }
  ~rank_process() {
    for (const auto socket : free_) {
      shutdown(socket, SHUT_RDWR);  // later children hold this socket too
      close(socket);
    }
    waitpid(pid_, nullptr, 0);
  }
  rank_process(const rank_process&) = delete;
  rank_process& operator=(const rank_process&) = delete;

  reply ask(const request& what) {
    const auto socket = take();
    reply said;
    const bool answered = send(socket, &what, sizeof what, MSG_NOSIGNAL) == sizeof what &&
                          recv(socket, &said, sizeof said, 0) == sizeof said;
    give_back(socket);
    if (!answered) throw std::runtime_error("the rank's process does not answer");
    const std::string text = said.text.data();
    switch (said.error) {
      case thrown::nothing: return said;
      case thrown::invalid_argument: throw std::invalid_argument(text);
      case thrown::internal: throw internal_error(text);
      case thrown::user: throw user_error(errc::device, text);
      case thrown::closed: throw generation_closed(text);
      case thrown::timeout: throw collective_timeout(text);
      case thrown::mismatch: throw collective_mismatch(text);
      case thrown::other: break;
    }
    throw std::runtime_error(text);
  }

private:
  static void serve(const std::function<std::shared_ptr<communicator_backend>()>& make,
                    const std::array<std::array<int, 2>, lines>& pairs) noexcept {
    server one{make()};
    const reply ready;
    send(pairs[0][1], &ready, sizeof ready, MSG_NOSIGNAL);
    std::vector<std::thread> threads;
    for (const auto& pair : pairs)
      threads.emplace_back([&one, socket = pair[1]] { one.answer(socket); });
    for (auto& thread : threads) thread.join();
  }
  int take() {
    std::unique_lock hold{mutex_};
    back_.wait(hold, [this] { return !free_.empty(); });
    const auto socket = free_.back();
    free_.pop_back();
    return socket;
  }
  void give_back(int socket) {
    const std::lock_guard hold{mutex_};
    free_.push_back(socket);
    back_.notify_one();
  }

  pid_t pid_ = -1;
  std::mutex mutex_;
  std::condition_variable back_;
  std::vector<int> free_;
};

class far_work final : public work {
public:
  far_work(std::shared_ptr<rank_process> at, std::uint64_t id) : at_(std::move(at)), id_(id) {}
  ~far_work() override { at_->ask({.what = verb::drop, .id = id_}); }
  work_result poll() override {
    const auto said = at_->ask({.what = verb::poll, .id = id_});
    return {said.status,
            said.text.data(),
            {said.missing.begin(), said.missing.begin() + said.missing_count}};
  }
  void wait() override { at_->ask({.what = verb::wait, .id = id_}); }

private:
  const std::shared_ptr<rank_process> at_;
  const std::uint64_t id_;
};

class far_communicator final : public communicator {
public:
  far_communicator(std::shared_ptr<rank_process> at, const group_description& who)
      : at_(std::move(at)), who_(who) {
    id_ = at_->ask({.what = verb::open,
                    .job = who.job.value(),
                    .generation = who.generation.value(),
                    .rank = who.rank,
                    .world = who.world,
                    .nanoseconds = who.deadline.count()})
              .id;
  }
  ~far_communicator() override { at_->ask({.what = verb::close, .id = id_}); }

  const group_description& group() const override { return who_; }
  std::string_view name() const override { return "far"; }
  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return submit({.what = verb::all_reduce, .in = data, .operation = operation}, among);
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    return submit({.what = verb::broadcast, .in = data, .root = root}, among);
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    return submit({.what = verb::all_gather, .in = in, .out = out}, among);
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    return submit({.what = verb::reduce_scatter, .in = in, .out = out, .operation = operation},
                  among);
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    request asked{.what = verb::barrier, .nanoseconds = deadline.count()};
    put(asked.text, label);
    return submit(asked, among);
  }
  bool decide(bool yes, decision by, const subgroup& among) override {
    return ask({.what = verb::decide, .yes = yes, .all = by == decision::all}, among).flag;
  }
  bool waiting() const noexcept override { return flag(verb::waiting); }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    // From the shared heap, whose blocks start one cache line after a power of two.
    return {operator new(bytes), [](void* at) { operator delete(at); }};
  }
  void abort(std::string_view why) noexcept override {
    request asked{.what = verb::abort, .id = id_};
    put(asked.text, why);
    at_->ask(asked);
  }
  bool aborted() const noexcept override { return flag(verb::aborted); }
  bool quiescent() const noexcept override { return flag(verb::quiescent); }

private:
  reply ask(request asked, const subgroup& among) {
    asked.id = id_;
    asked.members = static_cast<std::uint32_t>(among.ranks.size());
    std::copy(among.ranks.begin(), among.ranks.end(), asked.among.begin());
    return at_->ask(asked);
  }
  work_ptr submit(const request& asked, const subgroup& among) {
    return std::make_shared<far_work>(at_, ask(asked, among).id);
  }
  bool flag(verb what) const { return at_->ask({.what = what, .id = id_}).flag; }

  const std::shared_ptr<rank_process> at_;
  const group_description who_;
  std::uint64_t id_ = 0;
};

class process_backend final : public communicator_backend {
public:
  process_backend(std::int32_t ranks,
                  const std::function<std::shared_ptr<communicator_backend>()>& make) {
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      processes_.push_back(std::make_shared<rank_process>(make));
  }
  std::string_view name() const override { return "far"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description& group) override {
    const auto rank = static_cast<std::size_t>(std::max(group.rank, 0));
    return std::make_shared<far_communicator>(processes_.at(rank), group);
  }
  std::vector<footprint> footprints() const {
    std::vector<footprint> all;
    for (const auto& one : processes_) all.push_back(one->ask({.what = verb::footprint}).holds);
    return all;
  }

private:
  std::vector<std::shared_ptr<rank_process>> processes_;
};

}  // namespace

std::shared_ptr<communicator_backend> make_process_backend(
    std::int32_t ranks, std::function<std::shared_ptr<communicator_backend>()> make) {
  return std::make_shared<process_backend>(ranks, make);
}

std::vector<footprint> rank_footprints(const communicator_backend& backend) {
  const auto* far = dynamic_cast<const process_backend*>(&backend);
  return far ? far->footprints() : std::vector<footprint>{};
}

bool have_rank_processes() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return false;
#else
  return true;
#endif
}

}  // namespace troupe::testing
