#include "backends/telemetry/tensorboard_logger.hpp"

#include <utility>

namespace troupe {

namespace {

// Field numbers of TensorFlow's messages.
constexpr unsigned summary_of_event = 5;
namespace value_field {
constexpr unsigned tag = 1, simple_value = 2, tensor = 8, metadata = 9;
}
namespace hparams_field {
constexpr unsigned session_start = 3, session_end = 4;
}

constexpr std::uint64_t type_of_strings = 7;

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

}  // namespace

tensorboard_logger::tensorboard_logger(const std::string& folder, const facts& about,
                                       wall_clock now)
    : file_(folder, std::move(now)) {
  if (about.resumed_at != undefined) file_.forget_from(about.resumed_at + 1);
  if (!about.config.empty())
    file_.write(file_.event().message(summary_of_event, text_summary("config", about.config)));
  if (about.settings.empty()) return;
  proto_message session;
  for (const auto& [name, value] : about.settings)
    session.message(1, proto_message{}.text(1, name).message(2, hparam(value)));
  session.real64(5, file_.now());
  file_.write(file_.event().message(
      summary_of_event,
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
  file_.write(file_.event(seen->at.step).message(summary_of_event, values));
}

void tensorboard_logger::end_session(bool good) {
  if (!std::exchange(session_, false)) return;
  constexpr std::uint64_t success = 1, failure = 2;
  const auto session = proto_message{}.integer(1, good ? success : failure).real64(2, file_.now());
  file_.write(file_.event().message(
      summary_of_event,
      hparams_summary("_hparams_/session_end_info", hparams_field::session_end, session)));
}

}  // namespace troupe
