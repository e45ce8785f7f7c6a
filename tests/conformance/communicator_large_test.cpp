// Goal: one operation may carry more than 2^31 and more than 2^32 bytes.
#include "tests/conformance/communicator_suite.hpp"
#include "tests/support/wide_memory.hpp"

#include <algorithm>
#include <cstring>
#include <deque>

#include "tests/support/catch.hpp"

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
namespace troupe::testing {
namespace {

constexpr std::size_t page = 4096;

bool ends_with(wide_memory& memory, std::uint8_t value) {
  const auto* end = memory.data() + memory.size();
  return memory.data()[0] == 0 &&
         std::count(end - page, end, value) == static_cast<std::ptrdiff_t>(page);
}

// Checks that the last page of the last rank reaches all ranks and that no first byte changes.
void reduce_and_send(communicator_backend& backend, std::int32_t world, std::size_t bytes) {
  company ranks{backend, world};
  std::deque<wide_memory> memory;
  for (std::int32_t rank = 0; rank < world; ++rank) memory.emplace_back(bytes, 16 * page);
  const auto last = world - 1;
  const auto mark = [&](std::int32_t rank, int value) {
    std::memset(memory[rank].data() + bytes - page, value, page);
  };
  const auto all = [&](const communicator& c) {
    return buffer{memory[c.group().rank].data(), bytes, dtype::u8};
  };
  for (std::int32_t rank = 0; rank < world; ++rank) mark(rank, 3 + rank);
  ranks.run([&](communicator& c) { c.all_reduce(all(c), reduction::max)->wait(); });
  for (auto& one : memory) CHECK(ends_with(one, static_cast<std::uint8_t>(3 + last)));
  mark(last, 9);
  ranks.run([&](communicator& c) { c.broadcast(all(c), last)->wait(); });
  for (auto& one : memory) CHECK(ends_with(one, 9));
}

void more_than(std::size_t bytes, const std::string& name, std::int32_t world) {
  const auto& all = communicator_adapters();
  const auto adapter =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  REQUIRE(adapter != all.end());
  reduce_and_send(*adapter->make(), world, bytes + 8 * page);
}

TEST_CASE("host adapters carry more than 2^32 bytes in one operation", "[large]") {
  const auto name = GENERATE(as<std::string>{}, "inproc", "shm");
  INFO(name);
  more_than(std::size_t{1} << 32, name, 2);
}

TEST_CASE("tcp carries more than 2^31 bytes in one operation", "[large]") {
  more_than(std::size_t{1} << 31, "tcp, one connection", 2);
}

TEST_CASE("hier carries more than 2^31 bytes within and between hosts in one operation",
          "[large]") {
  more_than(std::size_t{1} << 31, "hier, two hosts", 3);
}

}  // namespace
}  // namespace troupe::testing
#endif
