// Goal: a rank finds the addresses of its generation only, so that no rank dials a process that was
// replaced.
#include "backends/processes/address_table.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

group_description member(std::int32_t rank, std::uint64_t generation) {
  return {.generation = generation_id{generation}, .rank = rank, .world = 2};
}

tcp_address here(std::uint16_t port) { return {"127.0.0.1", port}; }

TEST_CASE("an address table has no address before one is published") {
  const auto table = address_table::create({});
  CHECK_FALSE(table->find(member(0, 1), 1));
  table->publish(member(1, 1), here(4711));
  CHECK(table->find(member(0, 1), 1) == here(4711));
  CHECK_FALSE(table->find(member(1, 1), 0));
}

TEST_CASE("an address of an older generation is not found: its process may have been replaced") {
  const auto table = address_table::create({});
  table->publish(member(1, 1), here(4711));
  CHECK_FALSE(table->find(member(0, 2), 1));
  table->publish(member(1, 2), here(65535));
  CHECK(table->find(member(0, 2), 1) == here(65535));
  CHECK(table->find(member(0, 1), 1) == here(65535));
}

TEST_CASE("a process that opens an older generation does not overwrite the newer address") {
  const auto table = address_table::create({});
  table->publish(member(1, 7), here(2));
  table->publish(member(1, 6), here(1));
  CHECK(table->find(member(0, 7), 1) == here(2));
  table->publish(member(1, 7), here(3));
  CHECK(table->find(member(0, 7), 1) == here(3));
}

TEST_CASE("two processes see the same table and secret") {
  std::array<std::uint8_t, 32> secret{};
  secret[31] = 9;
  const auto table = address_table::create(secret);
  const auto other = address_table::adopt(table->descriptor());
  CHECK(other->secret() == secret);
  other->publish(member(0, 3), here(5));
  CHECK(table->find(member(1, 3), 0) == here(5));
  CHECK_THROWS_AS(table->publish(member(address_table::ranks_max, 3), here(6)), user_error);
}

// A rank may leave a process that lives on, and another one may come there: each adopts the table.
TEST_CASE(
    "the last rank of a process leaves, and another one comes: the descriptor is still open") {
  const auto table = address_table::create({});
  address_table::adopt(table->descriptor()).reset();
  const auto again = address_table::adopt(table->descriptor());
  again->publish(member(0, 3), here(5));
  CHECK(table->find(member(1, 3), 0) == here(5));
}

}  // namespace
}  // namespace troupe
