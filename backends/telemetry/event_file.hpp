// A file that TensorBoard reads.
#pragma once

#include "backends/telemetry/event_log.hpp"
#include "backends/telemetry/line_file.hpp"
#include "troupe/detail/position.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// A message of Protocol Buffers as bytes: fields in the order of the calls. No schema is checked.
class proto_message {
public:
  proto_message& integer(unsigned field, std::uint64_t value);
  proto_message& real32(unsigned field, float value);
  proto_message& real64(unsigned field, double value);
  /// A packed repeated field.
  proto_message& reals64(unsigned field, std::span<const double> values);
  proto_message& text(unsigned field, std::string_view value);
  proto_message& message(unsigned field, const proto_message& value) {
    return text(field, value.bytes_);
  }
  const std::string& bytes() const { return bytes_; }

private:
  void varint(std::uint64_t value);
  void little_endian(std::uint64_t value, int bytes);
  std::string bytes_;
};

/// A record of TFRecord: length and data, each followed by its masked CRC-32C.
std::string tensor_record(std::string_view data);

/// A new file `events.out.tfevents...`, one record per event.
class event_file {
public:
  /// Makes the file in `folder`. Throws user_error (bad_configuration).
  event_file(const std::string& folder, wall_clock now);

  /// An event of now, at `step` unless that is `undefined`. The caller adds its content:
  /// graph_def = 4, summary = 5, session_log = 7.
  proto_message event(std::int64_t step = undefined) const;
  /// TensorBoard forgets what earlier files of the folder have of `step` and later ones.
  void forget_from(std::int64_t step);
  /// In one write, so that a crash loses nothing and a reader may follow. Throws std::system_error
  /// if the event is lost; later ones may still be written.
  void write(const proto_message& event);
  /// Seconds since 1970.
  double now() const;

private:
  wall_clock now_;
  line_file file_;
};

}  // namespace troupe
