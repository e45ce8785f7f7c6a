// Event files that TensorBoard reads.
#pragma once

#include "backends/telemetry/event_log.hpp"
#include "backends/telemetry/line_file.hpp"
#include "troupe/observer.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace troupe {

/// A message of Protocol Buffers as bytes: fields in the order of the calls. No schema is checked.
class proto_message {
public:
  proto_message& integer(unsigned field, std::uint64_t value);
  proto_message& real32(unsigned field, float value);
  proto_message& real64(unsigned field, double value);
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

/// Writes reduced values as scalars by name and step, and at its start the run's settings, as a
/// text (`config`) and as hyper-parameters. One write per observation, so that a crash loses
/// nothing and a reader may follow.
class tensorboard_logger : public observer {
public:
  using setting = std::variant<bool, double, std::string>;
  struct facts {
    std::string config;                       ///< empty: no text
    std::map<std::string, setting> settings;  ///< empty: no hyper-parameters
    /// The step from which a run resumes. TensorBoard then drops values of later steps that earlier
    /// files of the folder have. `undefined`: the run is not a resumed one.
    std::int64_t resumed_at = undefined;
  };

  /// Makes a new file `events.out.tfevents...` in `folder`. Throws user_error (bad_configuration).
  tensorboard_logger(const std::string& folder, const facts& about, wall_clock now);
  /// Throws std::system_error if values are lost; later ones may still be written.
  void on(const observation& what) override;

private:
  proto_message event() const;
  void write(const proto_message& event);
  void end_session(bool good);

  wall_clock now_;
  line_file file_;
  bool session_ = false;
};

}  // namespace troupe
