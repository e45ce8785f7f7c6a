#include "tests/unit/backends/nccl/fake_gpus.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace troupe::testing {

namespace {

enum class kernel_kind { all_reduce, broadcast, all_gather, reduce_scatter };

struct kernel {
  kernel_kind kind = kernel_kind::all_reduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t operation = ncclSum;
  int root = 0;
  bool done = false;
};
using kernel_ptr = std::shared_ptr<kernel>;

struct clique {
  int ranks = 0;
  std::map<int, std::vector<kernel_ptr>> asked;  // by rank
  std::set<int> joined;
  std::size_t run = 0;
  bool dead = false;  // a rank has aborted: no further kernel runs
};

struct fake_stream {
  kernel_ptr last;
};
struct fake_event {
  kernel_ptr after;
};
struct fake_communicator {
  std::shared_ptr<clique> of;
  int rank = 0;
  int answers = 0;
  bool failed = false;
  bool finalized = false;
};

struct machine {
  std::mutex mutex;
  int devices = 8;
  std::uint64_t ids = 0;
  std::map<std::uint64_t, std::shared_ptr<clique>> cliques;
  std::set<fake_communicator*> communicators;
  std::set<void*> streams;
  std::set<void*> events;
  std::map<void*, std::size_t> memory;
  std::set<void*> awaited;
  fake_counts seen;
  bool stalled = false;
  int slow = 0;
  ncclResult_t next_error = ncclSuccess;
};
machine all;

enum class gate : std::uint8_t { open, closes_after_end, closed };
std::atomic<gate> after_end{gate::open};

template <class T>
void reduce(const std::vector<kernel_ptr>& by_rank, std::size_t rank) {
  const auto& mine = *by_rank[rank];
  const std::size_t first = mine.kind == kernel_kind::reduce_scatter ? rank * mine.count : 0;
  std::vector<T> sums(mine.count);
  for (std::size_t i = 0; i < mine.count; ++i)
    for (const auto& one : by_rank) sums[i] += static_cast<const T*>(one->in)[first + i];
  if (mine.operation == ncclAvg)
    for (auto& sum : sums) sum /= static_cast<T>(by_rank.size());
  std::memcpy(mine.out, sums.data(), sums.size() * sizeof(T));
}

// Copies all inputs first, because outputs may be inputs.
void execute(const std::vector<kernel_ptr>& by_rank) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<kernel_ptr> copies;
  for (const auto& one : by_rank) {
    const auto size = one->count * 8 * by_rank.size();
    const auto known = all.memory.upper_bound(const_cast<void*>(one->in));
    const auto block = std::prev(known);
    const auto room =
        static_cast<std::size_t>(static_cast<std::byte*>(block->first) + block->second -
                                 static_cast<const std::byte*>(one->in));
    const auto* from = static_cast<const std::byte*>(one->in);
    inputs.emplace_back(from, from + std::min(size, room));
    copies.push_back(std::make_shared<kernel>(*one));
    copies.back()->in = inputs.back().data();
  }
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i]->in = inputs[i].data();
  for (std::size_t rank = 0; rank < copies.size(); ++rank) {
    const auto& mine = *copies[rank];
    auto* out = static_cast<std::byte*>(mine.out);
    switch (mine.kind) {
      case kernel_kind::broadcast:
        std::memcpy(out, copies[static_cast<std::size_t>(mine.root)]->in, mine.count);
        break;
      case kernel_kind::all_gather:
        for (std::size_t of = 0; of < copies.size(); ++of)
          std::memcpy(out + of * mine.count, copies[of]->in, mine.count);
        break;
      case kernel_kind::all_reduce:
      case kernel_kind::reduce_scatter:
        if (mine.type == ncclFloat64)
          reduce<double>(copies, rank);
        else
          reduce<float>(copies, rank);
        break;
    }
  }
}

void advance(clique& of) {
  while (!all.stalled && !of.dead) {
    std::vector<kernel_ptr> next;
    for (int rank = 0; rank < of.ranks; ++rank)
      if (of.asked[rank].size() > of.run) next.push_back(of.asked[rank][of.run]);
    if (static_cast<int>(next.size()) < of.ranks) return;
    execute(next);
    for (const auto& one : next) one->done = true;
    ++of.run;
  }
}

fake_communicator& of(ncclComm_t comm) { return *reinterpret_cast<fake_communicator*>(comm); }

ncclResult_t ask(ncclComm_t comm, cudaStream_t stream, kernel what) {
  const std::lock_guard hold{all.mutex};
  auto made = std::make_shared<kernel>(what);
  auto& to = of(comm);
  to.of->asked[to.rank].push_back(made);
  reinterpret_cast<fake_stream*>(stream)->last = made;
  ++all.seen.kernels;
  advance(*to.of);
  return ncclInProgress;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::lock_guard hold{all.mutex};
  const auto number = ++all.ids;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t comm_init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* how) {
  if (how->blocking != 0) return ncclInvalidUsage;
  const std::lock_guard hold{all.mutex};
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto& meets = all.cliques[number];
  if (!meets) meets = std::make_shared<clique>();
  meets->ranks = ranks;
  meets->joined.insert(rank);
  auto* made = new fake_communicator{meets, rank, all.slow};
  all.communicators.insert(made);
  *comm = reinterpret_cast<ncclComm_t>(made);
  return ncclInProgress;
}

ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* error) {
  after_end.wait(gate::closed);
  const std::lock_guard hold{all.mutex};
  auto& asked = of(comm);
  if (all.next_error != ncclSuccess) {
    asked.failed = true;
    *error = std::exchange(all.next_error, ncclSuccess);
    return ncclSuccess;
  }
  const bool there = static_cast<int>(asked.of->joined.size()) == asked.of->ranks;
  *error = there && asked.answers-- <= 0 ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t forget(ncclComm_t comm) {
  all.communicators.erase(&of(comm));
  delete &of(comm);
  return ncclSuccess;
}

ncclResult_t comm_abort(ncclComm_t comm) {
  const std::lock_guard hold{all.mutex};
  ++all.seen.aborts;
  of(comm).of->dead = true;
  for (const auto& one : of(comm).of->asked[of(comm).rank]) one->done = true;
  return forget(comm);
}

ncclResult_t comm_destroy(ncclComm_t comm) {
  const std::lock_guard hold{all.mutex};
  if (!of(comm).finalized) return ncclInvalidUsage;
  return forget(comm);
}

ncclResult_t comm_finalize(ncclComm_t comm) {
  const std::lock_guard hold{all.mutex};
  of(comm).finalized = true;
  of(comm).answers = 2;
  return ncclInProgress;
}

template <class T>
cudaError_t made(T* what, void** into, std::set<void*>& among) {
  const std::lock_guard hold{all.mutex};
  *into = what;
  among.insert(what);
  return cudaSuccess;
}

bool over(const kernel_ptr& what) { return !what || what->done; }
bool over(cudaEvent_t event) {
  const std::lock_guard hold{all.mutex};
  return over(reinterpret_cast<fake_event*>(event)->after);
}

void fill_nccl(nccl::library& f) {
  f.get_unique_id = get_unique_id;
  f.comm_init = comm_init;
  f.comm_finalize = comm_finalize;
  f.comm_destroy = comm_destroy;
  f.comm_abort = comm_abort;
  f.comm_get_async_error = get_async_error;
  f.all_reduce = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                    ncclRedOp_t with, ncclComm_t comm, cudaStream_t stream) {
    return ask(comm, stream, {kernel_kind::all_reduce, in, out, count, type, with});
  };
  f.reduce_scatter = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t with, ncclComm_t comm, cudaStream_t stream) {
    return ask(comm, stream, {kernel_kind::reduce_scatter, in, out, count, type, with});
  };
  f.broadcast = [](const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                   ncclComm_t comm, cudaStream_t stream) {
    return ask(comm, stream, {kernel_kind::broadcast, in, out, count, type, ncclSum, root});
  };
  f.all_gather = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                    ncclComm_t comm, cudaStream_t stream) {
    return ask(comm, stream, {kernel_kind::all_gather, in, out, count, type});
  };
  f.mem_alloc = [](void** into, std::size_t size) {
    const std::lock_guard hold{all.mutex};
    *into = std::calloc(size, 1);
    all.memory[*into] = size;
    return ncclSuccess;
  };
  f.mem_free = [](void* memory) {
    const std::lock_guard hold{all.mutex};
    all.memory.erase(memory);
    std::free(memory);
    return ncclSuccess;
  };
  f.error_text = [](ncclResult_t) { return "fake error"; };
  f.last_error = [](ncclComm_t) { return "the cable is out"; };
}

void fill_cuda(nccl::library& f) {
  f.device_count = [](int* count) {
    *count = all.devices;
    return cudaSuccess;
  };
  f.set_device = [](int) { return cudaSuccess; };
  f.bus_id = [](char* into, int size, int device) {
    std::snprintf(into, static_cast<std::size_t>(size), "0000:%02d:00.0", device);
    return cudaSuccess;
  };
  f.stream_create = [](cudaStream_t* into, unsigned) {
    return made(new fake_stream, reinterpret_cast<void**>(into), all.streams);
  };
  f.stream_destroy = [](cudaStream_t stream) {
    const std::lock_guard hold{all.mutex};
    all.streams.erase(stream);
    delete reinterpret_cast<fake_stream*>(stream);
    return cudaSuccess;
  };
  f.stream_wait_event = [](cudaStream_t, cudaEvent_t event, unsigned) {
    const std::lock_guard hold{all.mutex};
    all.awaited.insert(event);
    return cudaSuccess;
  };
  f.stream_query = [](cudaStream_t stream) {
    const std::lock_guard hold{all.mutex};
    return over(reinterpret_cast<fake_stream*>(stream)->last) ? cudaSuccess : cudaErrorNotReady;
  };
  f.event_create = [](cudaEvent_t* into, unsigned) {
    return made(new fake_event, reinterpret_cast<void**>(into), all.events);
  };
  f.event_destroy = [](cudaEvent_t event) {
    const std::lock_guard hold{all.mutex};
    all.events.erase(event);
    delete reinterpret_cast<fake_event*>(event);
    return cudaSuccess;
  };
  f.event_record = [](cudaEvent_t event, cudaStream_t stream) {
    const std::lock_guard hold{all.mutex};
    if (stream)
      reinterpret_cast<fake_event*>(event)->after = reinterpret_cast<fake_stream*>(stream)->last;
    return cudaSuccess;
  };
  f.event_query = [](cudaEvent_t event) {
    if (!over(event)) return cudaErrorNotReady;
    auto armed = gate::closes_after_end;
    after_end.compare_exchange_strong(armed, gate::closed);
    return cudaSuccess;
  };
  f.event_synchronize = [](cudaEvent_t event) {
    while (!over(event)) std::this_thread::yield();
    return cudaSuccess;
  };
  f.pointer_attributes = [](cudaPointerAttributes* into, const void* memory) {
    const std::lock_guard hold{all.mutex};
    into->type = cudaMemoryTypeUnregistered;
    for (const auto& [block, size] : all.memory) {
      const auto* first = static_cast<const std::byte*>(block);
      if (memory >= first && memory < first + size) into->type = cudaMemoryTypeDevice;
    }
    return cudaSuccess;
  };
  f.cuda_error_text = [](cudaError_t) { return "fake cuda error"; };
}

}  // namespace

namespace fake_gpus {

void reset(int devices) {
  const std::lock_guard hold{all.mutex};
  all.devices = devices;
  all.seen = {};
  all.stalled = false;
  all.slow = 0;
  all.next_error = ncclSuccess;
  all.cliques.clear();
  all.awaited.clear();
}

std::shared_ptr<const nccl::library> functions() {
  auto table = std::make_shared<nccl::library>();
  fill_nccl(*table);
  fill_cuda(*table);
  return table;
}

fake_counts counts() {
  const std::lock_guard hold{all.mutex};
  auto seen = all.seen;
  seen.communicators = static_cast<int>(all.communicators.size());
  seen.streams = static_cast<int>(all.streams.size());
  seen.events = static_cast<int>(all.events.size());
  seen.allocations = static_cast<int>(all.memory.size());
  return seen;
}

void stall(bool on) {
  const std::lock_guard hold{all.mutex};
  all.stalled = on;
  for (const auto& [id, one] : all.cliques) advance(*one);
}

void fail_next(ncclResult_t error) {
  const std::lock_guard hold{all.mutex};
  all.next_error = error;
}

bool waited_for(cudaEvent_t event) {
  const std::lock_guard hold{all.mutex};
  return all.awaited.contains(event);
}

void slow_start(int answers) {
  const std::lock_guard hold{all.mutex};
  all.slow = answers;
}

void hold_after_end(bool on) {
  after_end = on ? gate::closes_after_end : gate::open;
  after_end.notify_all();
}

}  // namespace fake_gpus

}  // namespace troupe::testing
