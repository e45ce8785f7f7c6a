#include "backends/telemetry/tensorboard_logger.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/crc.hpp>

#include <bit>
#include <filesystem>
#include <utility>

namespace troupe {

namespace {

// Field numbers of TensorFlow's messages.
namespace event_field {
constexpr unsigned wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace value_field {
constexpr unsigned tag = 1, simple_value = 2, tensor = 8, metadata = 9;
}
namespace hparams_field {
constexpr unsigned session_start = 3, session_end = 4;
}

constexpr std::uint64_t session_log_start = 1, type_of_strings = 7;

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

proto_message plugin(std::string_view name, std::string_view content) {
  return proto_message{}.message(1, proto_message{}.text(1, name).text(2, content));
}

proto_message summary_of(const proto_message& value) { return proto_message{}.message(1, value); }

// TensorBoard shows the text as Markdown: an indented line is code.
proto_message text_summary(std::string_view tag, const std::string& text) {
  std::string indented = "    ";
  for (const char c : text) indented += c == '\n' ? std::string{"\n    "} : std::string{c};
  const auto shape = proto_message{}.message(2, proto_message{}.integer(1, 1));
  const auto tensor =
      proto_message{}.integer(1, type_of_strings).message(2, shape).text(8, indented);
  return summary_of(proto_message{}
                        .text(value_field::tag, tag)
                        .message(value_field::tensor, tensor)
                        .message(value_field::metadata, plugin("text", {})));
}

// A google.protobuf.Value.
proto_message hparam(const tensorboard_logger::setting& value) {
  if (const auto* yes = std::get_if<bool>(&value)) return proto_message{}.integer(4, *yes ? 1 : 0);
  if (const auto* x = std::get_if<double>(&value)) return proto_message{}.real64(2, *x);
  return proto_message{}.text(3, std::get<std::string>(value));
}

proto_message hparams_summary(std::string_view tag, unsigned field, const proto_message& session) {
  const auto data = proto_message{}.message(field, session);
  return summary_of(proto_message{}
                        .text(value_field::tag, tag)
                        .message(value_field::metadata, plugin("hparams", data.bytes())));
}

double seconds_of(std::chrono::system_clock::time_point now) {
  return std::chrono::duration<double>(now.time_since_epoch()).count();
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

tensorboard_logger::tensorboard_logger(const std::string& folder, const facts& about,
                                       wall_clock now)
    : now_(std::move(now)), file_(fresh_event_file(folder, now_()), line_file::start::fresh) {
  write(event().text(event_field::file_version, "brain.Event:2"));
  if (about.resumed_at != undefined)
    write(event()
              .integer(event_field::step, static_cast<std::uint64_t>(about.resumed_at) + 1)
              .message(event_field::session_log, proto_message{}.integer(1, session_log_start)));
  if (!about.config.empty())
    write(event().message(event_field::summary, text_summary("config", about.config)));
  if (about.settings.empty()) return;
  proto_message session;
  for (const auto& [name, value] : about.settings)
    session.message(1, proto_message{}.text(1, name).message(2, hparam(value)));
  session.real64(5, seconds_of(now_()));
  write(event().message(
      event_field::summary,
      hparams_summary("_hparams_/session_start_info", hparams_field::session_start, session)));
  session_ = true;
}

void tensorboard_logger::on(const observation& what) {
  if (const auto* life = std::get_if<seen::lifecycle>(&what)) {
    const auto status = life->details.find("status");
    if (life->event == lifecycle_kind::job_ended && status != life->details.end())
      end_session(status->second != "failed");
    return;
  }
  const auto* seen = std::get_if<seen::metrics>(&what);
  if (!seen || seen->logged.empty()) return;
  proto_message values;
  for (const auto& [name, value] : seen->logged)
    values.message(1, proto_message{}
                          .text(value_field::tag, name)
                          .real32(value_field::simple_value, static_cast<float>(value)));
  auto one = event();
  if (seen->at.step != undefined)
    one.integer(event_field::step, static_cast<std::uint64_t>(seen->at.step));
  write(one.message(event_field::summary, values));
}

void tensorboard_logger::end_session(bool good) {
  if (!std::exchange(session_, false)) return;
  constexpr std::uint64_t success = 1, failure = 2;
  const auto session =
      proto_message{}.integer(1, good ? success : failure).real64(2, seconds_of(now_()));
  write(event().message(
      event_field::summary,
      hparams_summary("_hparams_/session_end_info", hparams_field::session_end, session)));
}

proto_message tensorboard_logger::event() const {
  return proto_message{}.real64(event_field::wall_time, seconds_of(now_()));
}

void tensorboard_logger::write(const proto_message& event) {
  file_.add(tensor_record(event.bytes()));
}

}  // namespace troupe
