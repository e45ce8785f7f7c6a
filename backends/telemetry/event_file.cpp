#include "backends/telemetry/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/crc.hpp>

#include <bit>
#include <filesystem>
#include <utility>

namespace troupe {

namespace {

std::uint32_t masked_crc(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc32c;
  crc32c.process_bytes(data.data(), data.size());
  return std::rotr(static_cast<std::uint32_t>(crc32c.checksum()), 15) + 0xa282ead8U;
}

std::string bytes_of(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

// A path in `folder` that no file has. TensorBoard reads the files of a folder in this order.
std::string fresh_event_file(const std::string& folder, std::chrono::system_clock::time_point now) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now).time_since_epoch().count();
  for (int number = 0;; ++number) {
    const auto name =
        fmt::format("events.out.tfevents.{:010}.troupe.{}.{}", seconds, ::getpid(), number);
    auto path = (std::filesystem::path{folder} / name).string();
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

void proto_message::varint(std::uint64_t value) {
  for (; value > 0x7f; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
  bytes_ += static_cast<char>(value);
}

void proto_message::little_endian(std::uint64_t value, int bytes) {
  bytes_ += bytes_of(value, bytes);
}

proto_message& proto_message::integer(unsigned field, std::uint64_t value) {
  varint(field << 3 | 0);
  varint(value);
  return *this;
}

proto_message& proto_message::real32(unsigned field, float value) {
  varint(field << 3 | 5);
  little_endian(std::bit_cast<std::uint32_t>(value), 4);
  return *this;
}

proto_message& proto_message::real64(unsigned field, double value) {
  varint(field << 3 | 1);
  little_endian(std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

proto_message& proto_message::reals64(unsigned field, std::span<const double> values) {
  varint(field << 3 | 2);
  varint(values.size_bytes());
  for (const auto value : values) little_endian(std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

proto_message& proto_message::text(unsigned field, std::string_view value) {
  varint(field << 3 | 2);
  varint(value.size());
  bytes_ += value;
  return *this;
}

std::string tensor_record(std::string_view data) {
  const auto length = bytes_of(data.size(), 8);
  std::string record = length + bytes_of(masked_crc(length), 4);
  record += data;
  return record + bytes_of(masked_crc(data), 4);
}

event_file::event_file(const std::string& folder, wall_clock now)
    : now_(std::move(now)), file_(fresh_event_file(folder, now_()), line_file::start::fresh) {
  constexpr unsigned file_version = 3;
  write(event().text(file_version, "brain.Event:2"));
}

proto_message event_file::event(std::int64_t step) const {
  auto one = proto_message{}.real64(1, now());
  if (step != undefined) one.integer(2, static_cast<std::uint64_t>(step));
  return one;
}

void event_file::forget_from(std::int64_t step) {
  constexpr unsigned session_log = 7;
  constexpr std::uint64_t start = 1;
  write(event(step).message(session_log, proto_message{}.integer(1, start)));
}

void event_file::write(const proto_message& event) { file_.add(tensor_record(event.bytes())); }

double event_file::now() const {
  return std::chrono::duration<double>(now_().time_since_epoch()).count();
}

}  // namespace troupe
