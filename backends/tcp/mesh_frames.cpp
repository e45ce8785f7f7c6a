// Handles the incoming frames of a mesh.
#include "backends/tcp/frame_handler.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::tcp {

bool mesh::frame_handler::early(const frame_header& header) {
  if (main_ || header.kind == frame_kind::bye) return false;
  if (header.kind != frame_kind::data || header.what == part::payload)
    throw wire_error("sent something else than a chunk over a further connection");
  const auto comes_yet = [&] {
    if (from_.main().left) throw wire_error("sent a chunk of nothing that it called");
    return true;
  };
  const auto named = from_.named(header.channel);
  if (!named) return comes_yet();
  auto& of = *named;
  const auto member = of.member(rank_);
  if (header.number >= of.called[member]) return comes_yet();
  return !in_.at(of, header.number)->steps.is_ready(member) && comes_yet();
}

std::byte* mesh::frame_handler::frame(const frame_header& header,
                                      std::span<const std::byte> extension) {
  if (stream_.left) throw wire_error("sent a frame after its last");
  switch (header.kind) {
    case frame_kind::channel: name_channel(header, extension); return nullptr;
    case frame_kind::call: return on_call(header, extension);
    case frame_kind::ready: be_ready(operation_of(header)); return nullptr;
    case frame_kind::data: return place(header);
    case frame_kind::ask: in_.answer_ask(rank_, channel_of(header), header); return nullptr;
    case frame_kind::waits:
      in_.on_answer(rank_, header, decode_ranks(extension, in_.who_.world));
      return nullptr;
    case frame_kind::abort: on_abort(header, extension); return nullptr;
    case frame_kind::bye: on_bye(); return nullptr;
  }
  return nullptr;
}

void mesh::frame_handler::landed(const frame_header& header) {
  if (header.kind != frame_kind::call && header.kind != frame_kind::ready &&
      header.kind != frame_kind::data)
    return;
  const auto what = std::exchange(stream_.current, nullptr);
  auto& of = what->in_channel;
  what->last_bytes = clock::now();
  if (header.kind == frame_kind::data || header.body_bytes != 0)
    what->steps.landed(of.member(rank_), header.what, header.offset, in_.end_.flag());
  if (in_.aborted()) throw group_over{};
  if (what->steps.met()) in_.pump(what);
  in_.settle(of);
}

channel& mesh::frame_handler::channel_of(const frame_header& header) {
  const auto named = from_.named(header.channel);
  if (!named)
    throw wire_error(fmt::format("speaks of a subgroup {} that it has not named", header.channel));
  return *named;
}

std::shared_ptr<operation> mesh::frame_handler::operation_of(const frame_header& header) {
  auto& of = channel_of(header);
  if (header.number >= of.called[of.member(rank_)])
    throw wire_error("speaks of a collective that it has not called");
  return stream_.current = in_.at(of, header.number);
}

void mesh::frame_handler::name_channel(const frame_header& header,
                                       std::span<const std::byte> extension) {
  auto members = decode_members(extension, in_.who_.world);
  const auto has = [&](std::int32_t rank) {
    return std::binary_search(members.begin(), members.end(), rank);
  };
  if (header.channel >= channels_max || from_.named(header.channel) || !has(rank_) ||
      !has(in_.who_.rank))
    throw wire_error("named a subgroup that cannot be");
  // The numbers between are those of the peer's subgroups without this rank.
  auto& known = from_.channels;
  if (header.channel >= known.size()) known.resize(header.channel + 1);
  known[header.channel] = &in_.channel_of(members);
}

std::byte* mesh::frame_handler::on_call(const frame_header& header,
                                        std::span<const std::byte> extension) {
  auto& of = channel_of(header);
  const auto member = of.member(rank_);
  if (header.number != of.called[member])
    throw wire_error(
        fmt::format("called collective {} instead of {}", header.number, of.called[member]));
  auto call = decode_call(extension);
  const auto what = in_.at(of, header.number);
  ++of.called[member];
  const bool yes = call.what == collective_kind::broadcast ? call.root == rank_ : header.yes;
  if (!what->steps.call(member, std::move(call), yes)) {
    in_.disagree(*what);
    throw group_over{};
  }
  stream_.current = what;
  if (header.ready) what->steps.ready(member);
  if (header.body_bytes == 0) return nullptr;
  return what->steps.place(member, part::payload, 0, header.body_bytes);
}

void mesh::frame_handler::be_ready(const std::shared_ptr<operation>& what) {
  what->steps.ready(what->in_channel.member(rank_));
}

std::byte* mesh::frame_handler::place(const frame_header& header) {
  const auto what = operation_of(header);
  if (header.what == part::payload) be_ready(what);
  return what->steps.place(what->in_channel.member(rank_), header.what, header.offset,
                           header.body_bytes);
}

void mesh::frame_handler::on_abort(const frame_header& header,
                                   std::span<const std::byte> extension) {
  auto why = decode_end_reason(extension, in_.who_.world);
  stream_.left = true;
  why.number = header.number;
  const auto named = from_.named(header.channel);
  why.channel = named ? named->id : no_channel;
  in_.fail(why);
  throw group_over{};
}

void mesh::frame_handler::on_bye() {
  stream_.left = true;
  if (!main_) return;
  from_.before.clear();
  for (auto& of : in_.channels_) {
    if (!std::binary_search(of.members.begin(), of.members.end(), rank_)) continue;
    of.departed = rank_;
    const auto member = of.member(rank_);
    for (const auto& open : of.open) {
      if (!open->submitted || open->steps.called(member)) continue;
      in_.fail(collectives::closed_in_flight(rank_, describe(open->steps.call_of(of.me))));
      throw group_over{};
    }
  }
}

}  // namespace troupe::tcp
