#include "backends/processes/message_assembler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint64_t greeting_mark = 0x324b4e494c525054;  // "TPRLINK2"
constexpr std::uint32_t message_mark = 0x4d505254;           // "TRPM"
constexpr std::size_t staging_size = 1 << 16;
constexpr std::size_t grown_at_once = 1 << 20;

struct greeting {
  std::uint64_t mark = greeting_mark;
  std::uint64_t job = 0;
  std::uint64_t incarnation = 0;
  std::int64_t patience = 0;  // nanoseconds
};
struct prefix {
  std::uint32_t mark = message_mark;
  std::uint32_t attachments = 0;
  std::uint64_t head = 0;
};

template <class T>
void append(std::vector<std::byte>& to, const T& x) {
  const auto before = to.size();
  to.resize(before + sizeof x);
  std::memcpy(to.data() + before, &x, sizeof x);
}

template <class T>
T read_as(const std::vector<std::byte>& bytes) {
  T x;
  std::memcpy(&x, bytes.data(), sizeof x);
  return x;
}

}  // namespace

std::vector<std::byte> link_greeting(const link_identity& who, std::chrono::nanoseconds patience) {
  std::vector<std::byte> bytes;
  append(bytes,
         greeting{greeting_mark, who.job.value(), who.incarnation.value(), patience.count()});
  return bytes;
}

std::vector<std::byte> heartbeat() {
  std::vector<std::byte> bytes;
  append(bytes, prefix{});
  return bytes;
}

std::vector<std::byte> message_prefix(const packed_message& what) {
  std::vector<std::byte> bytes;
  append(bytes, prefix{message_mark, static_cast<std::uint32_t>(what.attachments.size()),
                       what.head.size()});
  for (const auto& one : what.attachments) append(bytes, std::uint64_t{one->size()});
  return bytes;
}

message_assembler::message_assembler(link_identity expected, message_bounds bounds)
    : expected_(expected), bounds_(bounds), staging_(staging_size) {
  begin(part::greeting, sizeof(greeting));
}

bool message_assembler::direct() const { return wanted_ - have_ >= staging_size; }

void message_assembler::grow() {
  if (have_ < bytes_.size()) return;
  const auto more = std::min<std::uint64_t>(wanted_ - have_, grown_at_once);
  bytes_.resize(have_ + static_cast<std::size_t>(more));
}

std::span<std::byte> message_assembler::room() {
  if (!direct()) return staging_;
  grow();
  return std::span{bytes_}.subspan(have_);
}

void message_assembler::filled(std::size_t size) {
  if (!direct()) return take(std::span{staging_}.first(size));
  have_ += size;
  if (have_ == wanted_) finish_part();
}

void message_assembler::take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    grow();
    const auto size = std::min(bytes.size(), bytes_.size() - have_);
    std::memcpy(bytes_.data() + have_, bytes.data(), size);
    have_ += size;
    bytes = bytes.subspan(size);
    if (have_ == wanted_) finish_part();
  }
}

void message_assembler::begin(part what, std::uint64_t size) {
  now_ = what;
  wanted_ = size;
  have_ = 0;
  bytes_.clear();
}

void message_assembler::finish_part() {
  switch (now_) {
    case part::greeting: return finish_greeting();
    case part::prefix: return finish_prefix();
    case part::sizes: return finish_sizes();
    case part::head: building_.head = std::move(bytes_); return go_on();
    case part::attachment:
      building_.attachments.push_back(
          std::make_shared<const std::vector<std::byte>>(std::move(bytes_)));
      return go_on();
  }
}

void message_assembler::finish_greeting() {
  const auto said = read_as<greeting>(bytes_);
  if (said.mark != greeting_mark)
    throw damaged_message("the other side speaks no link, or one of another version");
  if (said.job != expected_.job.value() || said.incarnation != expected_.incarnation.value())
    throw damaged_message("the other side belongs to another job or to another life of the rank");
  if (said.patience < 0) throw damaged_message("a greeting with a negative patience");
  patience_ = std::chrono::nanoseconds{said.patience};
  begin(part::prefix, sizeof(prefix));
}

void message_assembler::finish_prefix() {
  const auto said = read_as<prefix>(bytes_);
  if (said.mark != message_mark) throw damaged_message("no control message: its mark is missing");
  if (said.head == 0 && said.attachments == 0) return begin(part::prefix, sizeof(prefix));
  if (said.head == 0 || said.head > bounds_.head)
    throw damaged_message(fmt::format("no control message: a head of {} bytes", said.head));
  if (said.attachments > bounds_.attachments)
    throw damaged_message(fmt::format("no control message: {} attachments", said.attachments));
  head_size_ = said.head;
  sizes_.clear();
  if (said.attachments == 0) return begin(part::head, head_size_);
  begin(part::sizes, said.attachments * sizeof(std::uint64_t));
}

void message_assembler::finish_sizes() {
  sizes_.resize(bytes_.size() / sizeof(std::uint64_t));
  std::memcpy(sizes_.data(), bytes_.data(), bytes_.size());
  for (const auto size : sizes_)
    if (size > bounds_.attachment)
      throw damaged_message(fmt::format("no control message: an attachment of {} bytes", size));
  begin(part::head, head_size_);
}

void message_assembler::go_on() {
  for (;;) {
    const auto have = building_.attachments.size();
    if (have == sizes_.size()) {
      whole_.push_back(std::exchange(building_, {}));
      return begin(part::prefix, sizeof(prefix));
    }
    if (sizes_[have] > 0) return begin(part::attachment, sizes_[have]);
    building_.attachments.push_back(std::make_shared<const std::vector<std::byte>>());
  }
}

std::optional<packed_message> message_assembler::next() {
  if (whole_.empty()) return std::nullopt;
  auto first = std::move(whole_.front());
  whole_.pop_front();
  return first;
}

}  // namespace troupe
