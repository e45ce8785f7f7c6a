// What the supervisor machine keeps of failures.
#include "actors/failure_record.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

failure at_step(std::int64_t step, std::int32_t rank, bool follows = false) {
  auto what = make_failure(failure_kind::exception, "rank " + std::to_string(rank));
  what.generation = 1;
  what.step = step;
  what.rank = rank;
  what.follows = follows;
  what.id = {incarnation_id{7}, static_cast<std::uint64_t>(rank) + 1};
  return what;
}

std::uint64_t digest(const failure_record& of) {
  stable_hasher hash;
  of.add_to(hash);
  return hash.digest();
}

}  // namespace

TEST_CASE("failures in any order: the first cause is the earliest that follows from no other",
          "[failure_record]") {
  const std::vector<failure> all{at_step(1, 0, true), at_step(4, 1), at_step(3, 2), at_step(3, 3)};
  std::vector<std::size_t> order{0, 1, 2, 3};
  failure_record wanted;
  for (const auto i : order) wanted.add(all[i]);
  CHECK(wanted.first() == all[2]);
  CHECK(wanted.others() == std::vector{all[3], all[1], all[0]});
  CHECK(wanted.whole()->others == wanted.others());
  do {
    failure_record record;
    for (const auto i : order) record.add(all[i]);
    CHECK(record == wanted);
    CHECK(digest(record) == digest(wanted));
  } while (std::ranges::next_permutation(order).found);
}

TEST_CASE("checkpoints fail for days: the first and the newest are kept, and the others counted",
          "[failure_record]") {
  failure_record record;
  const auto fail = [&](const char* hook, std::int64_t step) {
    auto what = describe(user_error(errc::checkpoint, "the disk is full"));
    what.hook = hook;
    what.step = step;
    record.add_late(std::move(what));
  };
  for (std::int64_t step = 1; step <= 1000; ++step) {
    const auto next = record.next_id();
    fail("save_checkpoint", step);
    CHECK(record.late().back().id == next);
    if (step % 500 == 0) fail("remove_checkpoint", step);
  }
  REQUIRE(record.late().size() == 4);
  CHECK(record.late()[0].step == 1);
  CHECK(record.late()[0].what == "the disk is full");
  CHECK(record.late()[2].step == 1000);
  CHECK_THAT(record.late()[2].what, Catch::Contains("(998 failures like this are left out"));
  CHECK(record.late()[3].hook == "remove_checkpoint");
  auto lost = record.late()[2];
  record.end_job(lost);
  CHECK(record.first() == lost);
  CHECK(record.late().size() == 3);
}

TEST_CASE("a failure that is added as another one never becomes the first cause, even if earlier",
          "[failure_record]") {
  failure_record record;
  record.add(at_step(4, 0));
  record.add_other(at_step(2, 1));
  record.add_other(at_step(1, 2));
  CHECK(record.first() == at_step(4, 0));
  CHECK(record.others() == std::vector{at_step(1, 2), at_step(2, 1)});
}

TEST_CASE("failures without an id get different ones, also in the next generation",
          "[failure_record]") {
  failure_record record;
  const auto none = make_failure(failure_kind::down, "gone");
  std::vector<failure_id> seen;
  const auto add = [&](auto how) {
    seen.push_back(record.next_id());
    (record.*how)(none);
  };
  add(&failure_record::add);
  CHECK(record.is_first(seen[0]));
  add(&failure_record::add);
  CHECK(record.holds(seen[1]));
  CHECK_FALSE(record.is_first(seen[1]));
  add(&failure_record::add_late);
  CHECK(record.is_late(seen[2]));
  CHECK_FALSE(record.holds(seen[2]));
  record.begin_generation();
  CHECK_FALSE(record.first());
  CHECK_FALSE(record.whole());
  CHECK(record.others().empty());
  CHECK(record.late().size() == 1);
  add(&failure_record::add);
  std::ranges::sort(seen);
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
}

TEST_CASE("a late failure that ends the job becomes the first cause, if there is none",
          "[failure_record]") {
  const bool failed = GENERATE(false, true);
  failure_record record;
  if (failed) record.add(at_step(1, 0));
  record.add_late(at_step(2, 1));
  for (int i = 0; i < 2; ++i) {  // the second time it is known
    record.end_job(at_step(2, 1));
    CHECK(record.is_first(at_step(2, 1).id) == !failed);
    CHECK(record.late() == (failed ? std::vector{at_step(2, 1)} : std::vector<failure>{}));
  }
}

TEST_CASE("records that differ in one failure differ, and so do their digests",
          "[failure_record]") {
  std::vector<failure_record> all(5);
  all[1].add(at_step(1, 0));
  all[2].add(at_step(1, 0));
  all[2].add_other(at_step(2, 1));
  all[3].add_late(at_step(1, 0));
  all[4].add(at_step(1, 0));
  all[4].begin_generation();
  for (const auto& a : all)
    for (const auto& b : all) {
      CHECK((a == b) == (&a == &b));
      CHECK((digest(a) == digest(b)) == (&a == &b));
    }
}

TEST_CASE("a failure comes back at the same place, unless something outside causes it",
          "[failure_record]") {
  const auto before = at_step(3, 1);
  CHECK(comes_back(before, before));
  CHECK(comes_back(at_step(3, 2), before));  // an exception may be thrown on every rank
  auto other = before;
  other.hook = "optimizer_step";
  CHECK_FALSE(comes_back(other, before));
  auto killed = before;
  killed.kind = failure_kind::signal;
  killed.signal = "SIGSEGV";
  CHECK(comes_back(killed, killed));
  auto elsewhere = killed;
  elsewhere.rank = 2;
  CHECK_FALSE(comes_back(elsewhere, killed));
  auto from_outside = killed;
  from_outside.signal = "SIGKILL";
  CHECK_FALSE(comes_back(killed, from_outside));  // another failure
  killed.signal = "SIGKILL";
  CHECK_FALSE(comes_back(killed, killed));
}

TEST_CASE("a failure may be followed by a restart unless its kind or code is permanent",
          "[failure_record]") {
  elastic_options ends;
  elastic_options restarts;
  restarts.exceptions = elastic_options::on_exception::restart;
  auto what = at_step(1, 0);
  CHECK(curable(what, restarts));
  what.code = errc::bad_configuration;
  CHECK_FALSE(curable(what, restarts));
  CHECK(curable(make_failure(failure_kind::signal, "killed"), ends));
  CHECK_FALSE(curable(make_failure(failure_kind::aborted, "enough"), restarts));
}
