// Goal: every control message is decoded unchanged. Bytes that are no message cost an error.
#include "backends/wire/link_codec.hpp"

#include <rapidcheck.h>

#include "tests/unit/backends/processes/any_message.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

bool same(const packed_message& a, const packed_message& b) {
  if (a.head != b.head || a.attachments.size() != b.attachments.size()) return false;
  for (std::size_t i = 0; i < a.attachments.size(); ++i)
    if (*a.attachments[i] != *b.attachments[i]) return false;
  return true;
}

link_message again(const link_message& m) {
  const auto bytes = pack(m, nullptr);
  return unpack(bytes.head, bytes.attachments, nullptr);
}

}  // namespace

TEST_CASE("every control message is decoded unchanged") {
  CHECK(rc::check([](std::uint64_t seed, std::uint8_t kind) {
    const auto before = any_message(seed, kind);
    const auto after = again(before);
    RC_ASSERT(after.index() == before.index());
    RC_ASSERT(same(pack(after, nullptr), pack(before, nullptr)));
  }));
}

TEST_CASE("a rank_spec carries options and texts and initial weights") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto before = std::get<rank_spec>(any_message(seed, 0));
    const auto after = std::get<rank_spec>(again(before));
    CHECK(after.options == before.options);
    CHECK(after.recipe == before.recipe);
    CHECK(after.meets == before.meets);
    CHECK((after.initial == nullptr) == (before.initial == nullptr));
    if (before.initial) CHECK(*after.initial->model[0].bytes == *before.initial->model[0].bytes);
  }
}

TEST_CASE("the end of a fit is decoded with its reason") {
  const hook end = hooks::on_train_end{{{.stage = stage::train}, stop_reason::early_stopping}};
  CHECK(std::get<hook_entered>(again(hook_entered{1, end})).what == end);
}

TEST_CASE("the record of an exception is sent and the exception is not") {
  const auto back = [](std::exception_ptr error) {
    auto local = std::make_shared<caught>(caught{describe(error), error});
    return std::get<rank_failed>(again(rank_failed{{}, local, true}));
  };
  const auto user = back(std::make_exception_ptr(user_error(errc::device, "no such device")));
  CHECK(user.local->original == nullptr);
  CHECK(user.local->record.code == errc::device);
  CHECK(user.local->record.what == "no such device");
  const auto other = back(std::make_exception_ptr(std::runtime_error("disk full")));
  CHECK(other.local->record.type == "std::runtime_error");
  CHECK_FALSE(other.gone);  // a rank does not report its own death
}

TEST_CASE("a text of many bytes is no part of the head, which the receiver bounds") {
  auto saved = std::make_shared<snapshot>();
  saved->state = std::string(3 << 20, 'x');
  const auto bytes = pack(write_checkpoint{{}, saved, false, 0}, nullptr);
  CHECK(bytes.head.size() < 1 << 16);
  const auto after = unpack(bytes.head, bytes.attachments, nullptr);
  CHECK(std::get<write_checkpoint>(after).what->state == saved->state);
  const auto few = std::vector<value>(70'000, value{1});
  CHECK(pack(queue_value{{}, few}, nullptr).attachments.size() == 1);
}

TEST_CASE("sending a value of a user's type is a user error") {
  const value mine = value_user{std::make_shared<const std::any>(1)};
  CHECK_THROWS_AS(pack(queue_value{{}, {mine}}, nullptr), user_error);
}

TEST_CASE("a mutated message is refused or decodes to a message that encodes to itself") {
  CHECK(rc::check([](std::uint64_t seed, std::uint8_t kind) {
    std::mt19937_64 draw{seed};
    const auto bytes = pack(any_message(seed, kind), nullptr);
    for (int i = 0; i < 100; ++i) {
      auto damaged = bytes;
      switch (draw() % 4) {
        case 0: damaged.head.resize(draw() % damaged.head.size()); break;
        case 1: damaged.head.push_back(std::byte{0}); break;
        case 2:
          if (damaged.attachments.empty()) continue;
          damaged.attachments.pop_back();
          break;
        default: damaged.head[draw() % damaged.head.size()] = static_cast<std::byte>(draw() & 0xff);
      }
      try {
        const auto read = unpack(damaged.head, damaged.attachments, nullptr);
        RC_ASSERT(same(pack(read, nullptr), damaged));
      } catch (const damaged_message&) {
      }
    }
  }));
}

TEST_CASE("deeply nested failures are refused") {
  failure deep;
  for (int i = 0; i < 200; ++i) {
    failure outer;
    outer.others.push_back(std::move(deep));
    deep = std::move(outer);
  }
  const auto bytes = pack(close_generation{{}, deep}, nullptr);
  CHECK_THROWS_AS(unpack(bytes.head, bytes.attachments, nullptr), damaged_message);
}
