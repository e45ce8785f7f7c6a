#include "backends/tcp/frame.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <concepts>
#include <type_traits>

namespace troupe::tcp {

namespace {

constexpr std::string_view magic{"\x89TROUPE\n", 8};
constexpr std::uint16_t frame_mark = 0x7254;

class writer {
public:
  explicit writer(std::span<std::byte> to) : to_(to) {}

  template <std::integral T>
  writer& put(T value) {
    using bits = std::make_unsigned_t<T>;
    for (std::size_t i = 0; i < sizeof value; ++i)
      put_byte(static_cast<std::byte>(static_cast<bits>(value) >> (8 * i) & 0xff));
    return *this;
  }
  writer& put(std::string_view text) {
    for (const char c : text) put_byte(static_cast<std::byte>(c));
    return *this;
  }
  writer& put(const job_secret& secret) {
    for (const auto b : secret) put_byte(static_cast<std::byte>(b));
    return *this;
  }

private:
  void put_byte(std::byte b) {
    if (at_ == to_.size()) throw internal_error("frame: a block is too small for what it holds");
    to_[at_++] = b;
  }
  std::span<std::byte> to_;
  std::size_t at_ = 0;
};

class reader {
public:
  explicit reader(std::span<const std::byte> from) : from_(from) {}

  template <class T>
  T get() {
    std::make_unsigned_t<T> value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
      value = static_cast<std::make_unsigned_t<T>>(
          value | static_cast<std::make_unsigned_t<T>>(get_byte()) << (8 * i));
    return static_cast<T>(value);
  }
  std::string text(std::size_t bytes) {
    std::string result;
    for (std::size_t i = 0; i < bytes; ++i) result += static_cast<char>(get_byte());
    return result;
  }
  job_secret secret() {
    job_secret result;
    for (auto& b : result) b = static_cast<std::uint8_t>(get_byte());
    return result;
  }
  std::size_t left() const { return from_.size() - at_; }
  void at_end() const {
    if (left() != 0) throw wire_error("sent an extension that is too long");
  }

private:
  std::byte get_byte() {
    if (left() == 0) throw wire_error("sent an extension that is too short");
    return from_[at_++];
  }
  std::span<const std::byte> from_;
  std::size_t at_ = 0;
};

// Enumerators are dense: anything up to the last one is one.
template <class Enum>
Enum checked(std::uint8_t value, Enum first, Enum last, std::string_view what) {
  if (value < static_cast<std::uint8_t>(first) || value > static_cast<std::uint8_t>(last))
    throw wire_error(fmt::format("sent {} {}, which does not exist", what, value));
  return static_cast<Enum>(value);
}

bool flag(std::uint8_t value, std::string_view what) {
  if (value > 1) throw wire_error(fmt::format("sent {} for {}, which is yes or no", value, what));
  return value == 1;
}

std::vector<std::int32_t> get_ranks(reader& in, std::size_t count, std::int32_t world) {
  if (count > static_cast<std::size_t>(world) || in.left() < 4 * count)
    throw wire_error(fmt::format("sent a list of {} ranks of a world of {}", count, world));
  std::vector<std::int32_t> ranks;
  for (std::size_t i = 0; i < count; ++i) {
    const auto rank = in.get<std::int32_t>();
    if (rank < 0 || rank >= world || (!ranks.empty() && rank <= ranks.back()))
      throw wire_error("sent a list of ranks that is none");
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

job_secret fresh_secret() {
  job_secret secret{};
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    throw internal_error("the kernel gave no random numbers");
  return secret;
}

bool same_secret(const job_secret& a, const job_secret& b) {
  unsigned differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differing |= a[i] ^ b[i];
  return differing == 0;
}

hello_block encode(const hello& what) {
  hello_block block{};
  writer{block}
      .put(magic)
      .put(what.version)
      .put(what.world)
      .put(what.secret)
      .put(what.job.value())
      .put(what.generation.value())
      .put(what.from)
      .put(what.to)
      .put(what.stream)
      .put(what.streams);
  return block;
}

hello decode_hello(const hello_block& block) {
  reader in{block};
  if (in.text(magic.size()) != magic) throw wire_error("does not speak Troupe's protocol");
  hello result;
  result.version = in.get<std::uint32_t>();
  if (result.version != wire_version) return result;
  result.world = in.get<std::int32_t>();
  result.secret = in.secret();
  result.job = job_id{in.get<std::uint64_t>()};
  result.generation = generation_id{in.get<std::uint64_t>()};
  result.from = in.get<std::int32_t>();
  result.to = in.get<std::int32_t>();
  result.stream = in.get<std::uint16_t>();
  result.streams = in.get<std::uint16_t>();
  return result;
}

answer_block encode(const answer& what) {
  answer_block block{};
  const auto text = std::string_view{what.text}.substr(0, answer_text_max);
  writer{block}
      .put(magic)
      .put(what.version)
      .put(static_cast<std::uint8_t>(what.code))
      .put(static_cast<std::uint8_t>(text.size()))
      .put(what.secret)
      .put(text);
  return block;
}

answer decode_answer(const answer_block& block) {
  reader in{block};
  if (in.text(magic.size()) != magic) throw wire_error("does not speak Troupe's protocol");
  answer result;
  result.version = in.get<std::uint32_t>();
  result.code =
      checked(in.get<std::uint8_t>(), answer_code::welcome, answer_code::aborted, "an answer");
  const auto length = in.get<std::uint8_t>();
  if (length > answer_text_max) throw wire_error("sent an answer that is too long");
  result.secret = in.secret();
  result.text = in.text(length);
  return result;
}

header_block encode(const frame_header& what) {
  header_block block{};
  const bool data = what.kind == frame_kind::data;
  const auto detail = data ? static_cast<std::uint8_t>(what.what)
                           : static_cast<std::uint8_t>((what.ready ? 1 : 0) | (what.yes ? 2 : 0));
  writer{block}
      .put(frame_mark)
      .put(static_cast<std::uint8_t>(what.kind))
      .put(detail)
      .put(what.channel)
      .put(what.number)
      .put(what.offset)
      .put(what.extension_bytes)
      .put(what.body_bytes);
  return block;
}

frame_header decode_header(std::span<const std::byte, header_bytes> block) {
  reader in{block};
  if (in.get<std::uint16_t>() != frame_mark) throw wire_error("sent bytes that are no frame");
  frame_header result;
  result.kind =
      checked(in.get<std::uint8_t>(), frame_kind::channel, frame_kind::bye, "a frame of kind");
  const auto detail = in.get<std::uint8_t>();
  result.channel = in.get<std::uint32_t>();
  result.number = in.get<std::uint64_t>();
  result.offset = in.get<std::uint64_t>();
  result.extension_bytes = in.get<std::uint32_t>();
  result.body_bytes = in.get<std::uint32_t>();
  const bool call = result.kind == frame_kind::call;
  const bool data = result.kind == frame_kind::data;
  if (data) {
    result.what = checked(detail, part::payload, part::result, "data of part");
  } else {
    if (detail > (call ? 3 : 0)) throw wire_error("sent a frame with flags that it has not");
    result.ready = (detail & 1) != 0;
    result.yes = (detail & 2) != 0;
  }
  const bool extended = call || result.kind == frame_kind::channel ||
                        result.kind == frame_kind::waits || result.kind == frame_kind::abort;
  if (result.extension_bytes > (extended ? extension_max : 0) ||
      result.body_bytes > (call || data ? body_max : 0) || (!data && result.offset != 0) ||
      (result.body_bytes != 0 && call && !result.ready))
    throw wire_error(fmt::format("sent a frame of kind {} with {} and {} bytes",
                                 static_cast<int>(result.kind), result.extension_bytes,
                                 result.body_bytes));
  return result;
}

trailer decode_trailer(std::byte what) {
  return checked(static_cast<std::uint8_t>(what), trailer::whole, trailer::torn, "a trailer");
}

extension encode(const collective_call& what) {
  extension bytes(16 + what.label.size());
  writer{bytes}
      .put(static_cast<std::uint8_t>(what.what))
      .put(static_cast<std::uint8_t>(what.type))
      .put(static_cast<std::uint8_t>(what.operation))
      .put(static_cast<std::uint8_t>(what.all ? 1 : 0))
      .put(what.root)
      .put(what.count)
      .put(what.label);
  return bytes;
}

collective_call decode_call(std::span<const std::byte> bytes) {
  reader in{bytes};
  collective_call result;
  result.what = checked(in.get<std::uint8_t>(), collective_kind::all_reduce,
                        collective_kind::decide, "an operation");
  result.type = checked(in.get<std::uint8_t>(), dtype::u8, dtype::c128, "an element type");
  result.operation =
      checked(in.get<std::uint8_t>(), reduction::sum, reduction::product, "a reduction");
  result.all = flag(in.get<std::uint8_t>(), "all or any");
  result.root = in.get<std::int32_t>();
  result.count = in.get<std::uint64_t>();
  if (in.left() > label_max) throw wire_error("sent a label that is too long");
  result.label = in.text(in.left());
  return result;
}

extension encode_ranks(std::span<const std::int32_t> ranks) {
  extension bytes(4 * ranks.size());
  writer out{bytes};
  for (const auto rank : ranks) out.put(rank);
  return bytes;
}

std::vector<std::int32_t> decode_ranks(std::span<const std::byte> bytes, std::int32_t world) {
  reader in{bytes};
  auto ranks = get_ranks(in, bytes.size() / 4, world);
  in.at_end();
  return ranks;
}

std::vector<std::int32_t> decode_members(std::span<const std::byte> bytes, std::int32_t world) {
  auto members = decode_ranks(bytes, world);
  if (members.size() < 2) throw wire_error("sent a subgroup of fewer than two ranks");
  return members;
}

extension encode(const collectives::end_reason& what) {
  const auto reason = std::string_view{what.text}.substr(0, reason_max);
  extension bytes(5 + 4 * what.missing.size() + reason.size());
  writer out{bytes};
  out.put(static_cast<std::uint8_t>(what.status))
      .put(static_cast<std::uint32_t>(what.missing.size()));
  for (const auto rank : what.missing) out.put(rank);
  out.put(reason);
  return bytes;
}

collectives::end_reason decode_end_reason(std::span<const std::byte> bytes, std::int32_t world) {
  reader in{bytes};
  collectives::end_reason result;
  result.status =
      checked(in.get<std::uint8_t>(), work_status::aborted, work_status::mismatch, "an end");
  result.missing = get_ranks(in, in.get<std::uint32_t>(), world);
  if (in.left() > reason_max) throw wire_error("sent a reason that is too long");
  result.text = in.text(in.left());
  return result;
}

}  // namespace troupe::tcp
