// Goal: the shared memory of ranks in processes does not depend on the size of their tensors.
#include "tests/unit/backends/shm/forked_ranks.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

/// An address range of `bytes` bytes that maps the same 2 MiB again and again: a large tensor
/// without memory.
class folded_memory {
public:
  explicit folded_memory(std::size_t bytes) : bytes_(bytes) {
    const file_descriptor file{memfd_create("folded", MFD_CLOEXEC)};
    expect(ftruncate(file.get(), fold) == 0, "memory");
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    expect(at != MAP_FAILED, "addresses");
    data_ = static_cast<std::byte*>(at);
    for (std::size_t done = 0; done < bytes; done += fold)
      expect(mmap(data_ + done, fold, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(),
                  0) != MAP_FAILED,
             "a fold");
  }
  ~folded_memory() { munmap(data_, bytes_); }
  folded_memory(const folded_memory&) = delete;
  folded_memory& operator=(const folded_memory&) = delete;

  static constexpr std::size_t fold = std::size_t{2} << 20;
  float* data() const { return reinterpret_cast<float*>(data_); }

private:
  const std::size_t bytes_;
  std::byte* data_ = nullptr;
};

TEST_CASE("a staged operation takes the same memory for tensors of any size") {
  const auto rendezvous = small_rendezvous();
  rank_processes ranks{
      2, [&](std::int32_t rank) {
        shm_backend backend{rendezvous};
        const auto c = open(backend, rank, 2);
        std::array<std::size_t, 3> costs{};
        for (std::size_t i = 0; i < costs.size(); ++i) {
          const auto bytes = std::size_t{16} << (20 + 3 * i);
          const folded_memory tensor{bytes};
          std::fill_n(tensor.data(), folded_memory::fold / sizeof(float),
                      static_cast<float>(rank + 1));
          // A sum would be undefined, because each 2 MiB is reduced many times.
          c->all_reduce({tensor.data(), bytes / sizeof(float), dtype::f32}, reduction::max)->wait();
          expect(tensor.data()[bytes / sizeof(float) - 1] == 2.0f, "the maximum");
          c->barrier("done")->wait();
          costs[i] = file_bytes(rendezvous);
          c->barrier("measured")->wait();
        }
        expect(costs[0] == costs[1], "128 MiB cost what 16 MiB do");
        expect(costs[1] == costs[2], "1 GiB costs what 128 MiB do");
        expect(costs[2] < std::size_t{8} << 20, "three slots of each rank");
      }};
  CHECK(ranks.end(0) == 0);
  CHECK(ranks.end(1) == 0);
}

}  // namespace
}  // namespace troupe::testing
