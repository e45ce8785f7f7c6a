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

TEST_CASE("a text function that throws or is null: the record has the exception's own text",
          "[messages]") {
  const auto error = caught_from([] { throw std::runtime_error("disk full"); });
  const auto throws = [](const std::exception&) -> std::string { throw 42; };
  for (const exception_text text : {exception_text{throws}, exception_text{}})
    CHECK(describe(error, text).what == "disk full");
}

TEST_CASE("generation_closed is recorded as a consequence of another failure", "[messages]") {
  CHECK(describe(caught_from([] { throw generation_closed("rank 1 failed"); })).follows);
  const auto wrapped = describe(caught_from([] {
    try {
      throw generation_closed("rank 1 failed");
    } catch (...) {
      std::throw_with_nested(std::runtime_error("the sum is missing"));
    }
  }));
  CHECK(wrapped.type == "std::runtime_error");
  CHECK(wrapped.follows);
}

TEST_CASE("rethrowing a failed outcome throws the original exception type", "[messages]") {
  job_outcome outcome;
  outcome.failed_with =
      std::make_shared<const caught>(caught{{}, caught_from([] { throw disk_full("disk full"); })});
  CHECK_THROWS_AS(outcome.rethrow(), disk_full);
}

TEST_CASE("an exception made from a record has the same error code in another process",
          "[messages]") {
  const exception_types known;
  const auto full = describe(std::make_exception_ptr(user_error(errc::checkpoint, "disk full")));
  CHECK(full.code == errc::checkpoint);
  CHECK(describe(known.make(full)) == full);
  const auto broken = describe(std::make_exception_ptr(internal_error("two runs")));
  CHECK(broken.code == errc::internal);
  CHECK(describe(known.make(broken)) == broken);
  const auto other = describe(std::make_exception_ptr(disk_full("disk full")));
  CHECK(other.code == errc::job_failed);
  CHECK(describe(known.make(other)).type == "std::runtime_error");
  CHECK(describe(known.make(other)).what == render(other));
}

TEST_CASE("an exception of the standard library has the same type in another process",
          "[messages]") {
  const auto thrown = GENERATE(std::make_exception_ptr(std::runtime_error("1")),
                               std::make_exception_ptr(std::range_error("2")),
                               std::make_exception_ptr(std::overflow_error("3")),
                               std::make_exception_ptr(std::underflow_error("4")),
                               std::make_exception_ptr(std::logic_error("5")),
                               std::make_exception_ptr(std::invalid_argument("6")),
                               std::make_exception_ptr(std::domain_error("7")),
                               std::make_exception_ptr(std::length_error("8")),
                               std::make_exception_ptr(std::out_of_range("9")));
  const auto record = describe(thrown);
  CHECK(describe(exception_types{}.make(record)) == record);
}

TEST_CASE("an exception of a type that the program added has its type and causes again",
          "[messages]") {
  const auto record = describe(caught_from([] {
    try {
      try {
        throw disk_full("block 7");
      } catch (...) {
        std::throw_with_nested(user_error(errc::checkpoint, "no checkpoint"));
      }
    } catch (...) {
      std::throw_with_nested(disk_full("disk full"));
    }
  }));
  REQUIRE(record.causes.size() == 2);
  exception_types known;
  known.add<disk_full>();
  const auto made = known.make(record);
  CHECK_THROWS_AS(std::rethrow_exception(made), disk_full);
  const auto again = describe(made);
  CHECK(again.type == record.type);
  CHECK(again.what == "disk full");
  REQUIRE(again.causes.size() == 2);
  // A cause's code is not in the record, so this one is only a text.
  CHECK(again.causes[0] ==
        failure_cause{"std::runtime_error", "troupe::user_error: no checkpoint"});
  CHECK(again.causes[1] == record.causes[1]);
}

TEST_CASE("a type whose maker throws counts as unknown", "[messages]") {
  exception_types known;
  known.add<disk_full>([](const std::string&) -> disk_full { throw std::bad_alloc(); });
  const auto record = describe(std::make_exception_ptr(disk_full("disk full")));
  CHECK(describe(known.make(record)).what == render(record));
}
