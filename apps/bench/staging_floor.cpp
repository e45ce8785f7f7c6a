#include "apps/bench/staging_floor.hpp"

#include "apps/bench/bare_loops.hpp"
#include "apps/bench/timing.hpp"
#include "backends/collective/bucket_memory.hpp"
#include "backends/collective/waiting.hpp"
#include "backends/shm/schedule.hpp"
#include "backends/shm/slot_writer.hpp"
#include "troupe/failure.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>

namespace troupe::program {

namespace {

constexpr std::size_t chunk = (std::size_t{512} << 10) / sizeof(float);
constexpr std::size_t block = (std::size_t{8} << 10) / sizeof(float);

// Shared pages, as those of the shm communicator.
class slot_memory {
public:
  slot_memory()
      : at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (at_ == MAP_FAILED) throw std::bad_alloc{};
  }
  ~slot_memory() { munmap(at_, bytes); }
  slot_memory(const slot_memory&) = delete;
  slot_memory& operator=(const slot_memory&) = delete;
  float* slot(std::size_t rank, std::uint64_t step) const {
    return static_cast<float*>(at_) + (rank * shm::slot_sets + step % shm::slot_sets) * chunk;
  }

private:
  static constexpr std::size_t bytes = 2 * shm::slot_sets * chunk * sizeof(float);
  void* at_;
};

struct alignas(64) side {
  std::atomic<std::uint64_t> step{0};
  std::shared_ptr<void> memory;
  shm::slot_writer writer;
  float* data() const { return static_cast<float*>(memory.get()); }
};

}  // namespace

struct staging_floor::state {
  std::size_t count;
  slot_memory slots;
  std::array<side, 2> sides;
  bool checked = false;

  void meet(std::size_t self) {
    auto& mine = sides[self].step;
    const auto here = mine.load(std::memory_order_relaxed) + 1;
    mine.store(here, std::memory_order_release);
    const auto& theirs = sides[1 - self].step;
    for (std::uint32_t turn = 0; theirs.load(std::memory_order_acquire) < here; ++turn)
      pause_briefly(turn);
  }

  // Side 0 reduces the first half of a chunk, side 1 the second half.
  struct part {
    std::size_t first;
    std::size_t count;
  };
  part part_of(std::uint64_t number, std::size_t of) const {
    const auto first = number * chunk;
    const auto all = std::min(chunk, count - first);
    const auto half = (all / 2 + 15) / 16 * 16;
    return of == 0 ? part{first, half} : part{first + half, all - half};
  }
  float* in_slot(std::size_t rank, std::uint64_t number, const part& what) const {
    return slots.slot(rank, number) + what.first % chunk;
  }

  void reduce(std::size_t self, std::uint64_t number) {
    auto& mine = sides[self];
    const auto own = part_of(number, self);
    const auto* other = in_slot(1 - self, number, own);
    auto* result = in_slot(self, number, own);
    auto* data = mine.data() + own.first;
    for (std::size_t done = 0; done < own.count; done += block) {
      const auto n = std::min(block, own.count - done);
      bare_add(data + done, other + done, n);
      mine.writer.write(result + done, data + done, n * sizeof(float));
    }
  }

  void sum(std::size_t self) {
    auto& mine = sides[self];
    mine.writer.begin(count * sizeof(float));
    const shm::schedule plan{shm::form::slices, (count + chunk - 1) / chunk};
    for (std::uint64_t step = 1; step <= plan.steps(); ++step) {
      const auto now = plan.at(step);
      if (now.fill) {
        const auto theirs = part_of(*now.fill, 1 - self);
        mine.writer.write(in_slot(self, *now.fill, theirs), mine.data() + theirs.first,
                          theirs.count * sizeof(float));
      }
      if (now.reduce) reduce(self, *now.reduce);
      if (now.drain) {
        const auto theirs = part_of(*now.drain, 1 - self);
        std::memcpy(mine.data() + theirs.first, in_slot(1 - self, *now.drain, theirs),
                    theirs.count * sizeof(float));
      }
      meet(self);
    }
  }

  double run(std::size_t self, int calls) {
    meet(self);
    const auto begin = bench_now();
    for (int i = 0; i < calls; ++i) sum(self);
    return (bench_now() - begin) / calls;
  }

  double both(int calls) {
    std::thread other{[&] { run(1, calls); }};
    const auto took = run(0, calls);
    other.join();
    return took;
  }

  void check() {
    for (std::size_t self = 0; self < 2; ++self)
      std::fill_n(sides[self].data(), count, static_cast<float>(self + 1));
    both(1);
    for (const auto& one : sides)
      if (std::count(one.data(), one.data() + count, 3.0f) != static_cast<std::ptrdiff_t>(count))
        throw internal_error("staging's floor: a sum is wrong");
    // Sums of zeros stay zeros, however often they are added up.
    for (auto& one : sides) std::fill_n(one.data(), count, 0.0f);
    checked = true;
  }
};

staging_floor::staging_floor(std::size_t bytes) : state_(std::make_unique<state>()) {
  state_->count = bytes / sizeof(float);
  std::size_t rank = 0;
  for (auto& one : state_->sides)
    one.memory = allocate_bucket(std::max<std::size_t>(bytes, 1), true, rank++);
}

staging_floor::~staging_floor() = default;

double staging_floor::time_of(int calls) {
  if (!state_->checked) state_->check();
  return state_->both(calls);
}

}  // namespace troupe::program
