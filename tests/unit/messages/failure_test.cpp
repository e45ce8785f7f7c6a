// Goal: a failure record holds the exception's type, its text and its nested causes. The original
// exception keeps its type.
#include "troupe/failure.hpp"
#include "messages/control.hpp"

#include <stdexcept>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

struct disk_full : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class F>
std::exception_ptr caught_from(F f) {
  try {
    f();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

TEST_CASE("nested exceptions are recorded from the outermost to the innermost", "[messages]") {
  const auto error = caught_from([] {
    try {
      throw std::invalid_argument("inner");
    } catch (...) {
      std::throw_with_nested(std::runtime_error("outer"));
    }
  });
  const auto record = describe(error);
  CHECK(record.type == "std::runtime_error");
  CHECK(record.what == "outer");
  REQUIRE(record.causes.size() == 1);
  CHECK(record.causes[0] == failure_cause{"std::invalid_argument", "inner"});
  CHECK_FALSE(record.follows);
}

TEST_CASE("an exception that is no std::exception is recorded by its type name", "[messages]") {
  CHECK(describe(caught_from([] { throw 42; })).type == "int");
}

TEST_CASE("generation_closed is recorded as a consequence of another failure", "[messages]") {
  CHECK(describe(caught_from([] { throw generation_closed("rank 1 failed"); })).follows);
}

TEST_CASE("rethrowing a failed outcome throws the original exception type", "[messages]") {
  job_outcome outcome;
  outcome.failed_with =
      std::make_shared<const caught>(caught{{}, caught_from([] { throw disk_full("disk full"); })});
  CHECK_THROWS_AS(outcome.rethrow(), disk_full);
}

TEST_CASE("an exception made from a record has the same error code in another process",
          "[messages]") {
  const auto full = describe(std::make_exception_ptr(user_error(errc::checkpoint, "disk full")));
  CHECK(full.code == errc::checkpoint);
  CHECK(describe(exception_of(full)) == full);
  const auto broken = describe(std::make_exception_ptr(internal_error("two runs")));
  CHECK(broken.code == errc::internal);
  CHECK(describe(exception_of(broken)) == broken);
  const auto other = describe(std::make_exception_ptr(disk_full("disk full")));
  CHECK(other.code == errc::job_failed);
  CHECK(describe(exception_of(other)).type == "std::runtime_error");
}
