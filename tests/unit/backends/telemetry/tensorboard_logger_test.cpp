// Goal: event files have TFRecord's framing and TensorFlow's fields.
// tests/end_to_end/event_files.py reads whole files with a reader of its own.
#include "backends/telemetry/tensorboard_logger.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "tests/support/catch.hpp"

using namespace troupe;
using troupe::testing::read_text;
using troupe::testing::temporary_folder;

namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::chrono::system_clock::time_point one_second() {
  return std::chrono::system_clock::time_point{std::chrono::seconds{1}};
}

// The records of the only file in `folder`, without their framing.
std::vector<std::string> records_in(const std::filesystem::path& folder) {
  std::vector<std::string> records;
  for (const auto& one : std::filesystem::directory_iterator{folder}) {
    const auto text = read_text(one.path());
    for (std::size_t at = 0; at < text.size();) {
      std::size_t size = 0;
      for (int i = 7; i >= 0; --i)
        size = size << 8 | static_cast<unsigned char>(text[at + static_cast<std::size_t>(i)]);
      records.push_back(text.substr(at + 12, size));
      CHECK(tensor_record(records.back()) == text.substr(at, size + 16));
      at += size + 16;
    }
  }
  return records;
}

}  // namespace

TEST_CASE("a record has its length and its bytes, each with a masked CRC-32C", "[tensorboard]") {
  // Computed by an implementation of CRC-32C bit by bit, in Python.
  CHECK(hex(tensor_record("123456789")) == "090000000000000037f97139313233343536373839e5b08ac7");
}

TEST_CASE("fields have the wire format of Protocol Buffers", "[tensorboard]") {
  // The first two are examples of its documentation.
  CHECK(hex(proto_message{}.integer(1, 150).bytes()) == "089601");
  CHECK(hex(proto_message{}.text(2, "testing").bytes()) == "120774657374696e67");
  CHECK(hex(proto_message{}.real32(2, 1.5F).bytes()) == "150000c03f");
  CHECK(hex(proto_message{}.real64(1, -2).bytes()) == "0900000000000000c0");
  CHECK(hex(proto_message{}.message(3, proto_message{}.integer(1, 150)).bytes()) == "1a03089601");
  CHECK(hex(proto_message{}.integer(16, ~std::uint64_t{0}).bytes()) == "8001ffffffffffffffffff01");
}

TEST_CASE("a value is written at once, by name and step", "[tensorboard]") {
  const temporary_folder folder;
  tensorboard_logger log{folder.path().string(), {}, one_second};
  log.on(seen::metrics{{.epoch = 0, .step = 7}, {{"a", 1.5}}});
  const auto records = records_in(folder.path());
  REQUIRE(records.size() == 2);
  CHECK_THAT(records[0], Catch::EndsWith("brain.Event:2"));
  CHECK(hex(records[1]) ==
        "09000000000000f03f"
        "1007"
        "2a0a"
        "0a08"
        "0a0161"
        "150000c03f");
}

TEST_CASE("a second logger in a folder: it writes a file of its own", "[tensorboard]") {
  const temporary_folder folder;
  const tensorboard_logger first{folder.path().string(), {}, one_second};
  const tensorboard_logger second{folder.path().string(), {}, one_second};
  CHECK(records_in(folder.path()).size() == 2);
}

TEST_CASE("a folder that is not there is a user_error that names the file", "[tensorboard]") {
  try {
    const tensorboard_logger log{"/absent/folder", {}, one_second};
    FAIL("no exception");
  } catch (const user_error& error) {
    CHECK_THAT(error.what(), Catch::Contains("/absent/folder/events.out.tfevents"));
  }
}
