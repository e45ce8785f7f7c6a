#include "backends/mpi/control_message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace troupe::mpi {

namespace {

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

std::string fitting(std::string_view text) {
  const auto room = control_message{}.text.size();
  if (text.size() <= room) return std::string{text};
  const auto end = fmt::format("...#{:016x}", hash_of(text));
  return std::string{text.substr(0, room - end.size())} + end;
}

void put_text(control_message& into, std::string_view text) {
  const auto cut = fitting(text);
  into.text_size = static_cast<std::uint16_t>(cut.size());
  std::copy(cut.begin(), cut.end(), into.text.begin());
}

std::string text_of(const control_message& from) {
  return {from.text.data(), std::min<std::size_t>(from.text_size, from.text.size())};
}

control_message control_message_of(const collective_call& call, bool yes) {
  control_message made{.kind = control_message_kind::call,
                       .what = call.what,
                       .type = call.type,
                       .operation = call.operation,
                       .all = static_cast<std::uint8_t>(call.all),
                       .yes = static_cast<std::uint8_t>(yes),
                       .root = call.root,
                       .count = call.count};
  put_text(made, call.label);
  return made;
}

collective_call call_of(const control_message& from) {
  if (from.kind != control_message_kind::call || from.what > collective_kind::decide ||
      from.type > dtype::c128 || from.operation > reduction::product ||
      from.text_size > from.text.size())
    throw std::invalid_argument("a control message that no rank of this program sends");
  return {.what = from.what,
          .type = from.type,
          .operation = from.operation,
          .all = from.all != 0,
          .root = from.root,
          .count = from.count,
          .label = text_of(from)};
}

std::uint64_t channel_name(std::span<const std::int32_t> members) {
  std::string text;
  for (const auto rank : members) text += std::to_string(rank) + ",";
  return std::max<std::uint64_t>(1, hash_of(text));
}

}  // namespace troupe::mpi
