#include "backends/learner/state_transfer.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "troupe/communicator.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

constexpr std::size_t trailer_bytes = sizeof(std::uint64_t);
// Chunks in flight: bounds the memory for them.
constexpr std::size_t most_in_flight = 8;
constexpr std::size_t most_named = 6;
// As many as a generation may take to form (actors/time_knob.hpp, form_most).
constexpr int deadlines_of_arrival = 8;

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

void append_checksum(std::vector<std::byte>& bytes, std::uint64_t seed) {
  const auto size = bytes.size() - trailer_bytes;
  const auto sum = checksum(std::span{bytes}.first(size), seed);
  std::memcpy(bytes.data() + size, &sum, trailer_bytes);
}

bool has_checksum(const std::vector<std::byte>& bytes, std::uint64_t seed) {
  if (bytes.size() < trailer_bytes) return false;
  const auto size = bytes.size() - trailer_bytes;
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + size, trailer_bytes);
  return sum == checksum(std::span{bytes}.first(size), seed);
}

class header_writer {
public:
  void number(std::uint64_t x) { add(&x, sizeof x); }
  void text(const std::string& x) {
    number(x.size());
    add(x.data(), x.size());
  }
  std::vector<std::byte> with_checksum() {
    bytes_.resize(bytes_.size() + trailer_bytes);
    append_checksum(bytes_, 0);
    return std::move(bytes_);
  }

private:
  void add(const void* from, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  std::vector<std::byte> bytes_;
};

class header_reader {
public:
  explicit header_reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::uint64_t number() {
    std::uint64_t x = 0;
    std::memcpy(&x, piece(sizeof x).data(), sizeof x);
    return x;
  }
  std::string text() {
    const auto from = piece(number());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }

private:
  std::span<const std::byte> piece(std::uint64_t size) {
    if (size > rest_.size()) throw internal_error("state transfer: the header is cut off");
    const auto first = rest_.first(size);
    rest_ = rest_.subspan(size);
    return first;
  }
  std::span<const std::byte> rest_;
};

std::uint64_t bytes_in(const tensor_blob& tensor) {
  return tensor.bytes ? tensor.bytes->size() : 0;
}

std::vector<std::byte> header_of(const replica_state& state, std::size_t chunk_bytes) {
  header_writer out;
  out.text(state.digest);
  out.text(state.text);
  out.number(state.one_donor ? 1 : 0);
  out.number(chunk_bytes);
  out.number(state.tensors.size());
  for (const auto& tensor : state.tensors) {
    out.text(tensor.name);
    out.text(tensor.dtype);
    out.number(tensor.shape.size());
    for (const auto size : tensor.shape) out.number(static_cast<std::uint64_t>(size));
    out.number(bytes_in(tensor));
  }
  return out.with_checksum();
}

// Returns false when the caller has to come back. After it has thrown, the memory of aborted
// operations may be freed.
bool has_ended(communicator& world, const work_ptr& one, bool may_wait) {
  if (!may_wait && one->poll().status == work_status::pending) return false;
  try {
    one->wait();
  } catch (...) {
    while (may_wait && world.aborted() && !world.quiescent()) std::this_thread::yield();
    throw;
  }
  return true;
}

}  // namespace

state_transfer::state_transfer(std::shared_ptr<communicator> world,
                               std::vector<std::int32_t> donors, std::optional<replica_state> mine,
                               std::shared_ptr<partial_state> kept, std::size_t chunk_bytes)
    : world_(host_collectives(world)),
      donors_(std::move(donors)),
      kept_(std::move(kept)),
      chunk_bytes_(chunk_bytes) {
  if (donors_.empty()) throw internal_error("state transfer: no rank holds the state");
  for (std::int32_t r = 0; r < world_->group().world; ++r)
    if (!std::ranges::binary_search(donors_, r)) receivers_.push_back(r);
  gives_ = std::ranges::binary_search(donors_, rank());
  if (gives_ != mine.has_value())
    throw internal_error("state transfer: a donor brings a state, a receiver none");
  if (mine) state_ = std::move(*mine);
  if (!kept_) kept_ = std::make_shared<partial_state>();
}

bool state_transfer::go_on(bool may_wait) {
  while (stage_ != stage::done) {
    if (flying_.empty()) submit();
    for (; !flying_.empty(); flying_.pop_front())
      if (!has_ended(*world_, flying_.front(), may_wait)) return false;
    advance();
  }
  return true;
}

void state_transfer::submit() {
  switch (stage_) {
    case stage::arrival:
      flying_.push_back(
          world_->barrier("restore_state", deadlines_of_arrival * world_->group().deadline));
      return;
    case stage::size:
      if (rank() == donors_.front()) header_ = header_of(state_, chunk_bytes_);
      header_bytes_ = static_cast<std::int64_t>(header_.size());
      flying_.push_back(world_->broadcast({&header_bytes_, 1, dtype::i64}, donors_.front()));
      return;
    case stage::header:
      header_.resize(static_cast<std::size_t>(header_bytes_));
      flying_.push_back(
          world_->broadcast({header_.data(), header_.size(), dtype::u8}, donors_.front()));
      return;
    case stage::lacking:
      flying_.push_back(
          world_->all_reduce({lacking_.data(), lacking_.size(), dtype::u8}, reduction::max));
      return;
    case stage::chunks: return submit_chunks();
    case stage::done: return;
  }
}

void state_transfer::advance() {
  switch (stage_) {
    case stage::arrival: stage_ = stage::size; return;
    case stage::size: stage_ = stage::header; return;
    case stage::header:
      read_header();
      stage_ = stage::lacking;
      return;
    case stage::lacking:
      plan_chunks();
      stage_ = stage::chunks;
      return;
    case stage::chunks:
      take_chunks();
      if (next_ < due_.size()) return;
      finish();
      stage_ = stage::done;
      return;
    case stage::done: return;
  }
}

void state_transfer::read_header() {
  if (!has_checksum(header_, 0))
    throw user_error(errc::job_failed, "the header of a transferred state is damaged");
  header_reader in{header_};
  replica_state said;
  said.digest = in.text();
  said.text = in.text();
  said.one_donor = in.number() > 0;
  chunk_bytes_ = in.number();
  said.tensors.resize(in.number());
  for (auto& tensor : said.tensors) {
    tensor.name = in.text();
    tensor.dtype = in.text();
    tensor.shape.resize(in.number());
    for (auto& size : tensor.shape) size = static_cast<std::int64_t>(in.number());
    sizes_.push_back(in.number());
  }
  header_ = {};
  // One donor's tensors may be more than those of the others.
  const bool other_tensors = !said.one_donor && state_.tensors.size() != said.tensors.size();
  if (gives() && (state_.digest != said.digest || other_tensors))
    throw internal_error(
        fmt::format("state transfer: ranks that hold one point have different states: {} with {} "
                    "tensors and {} with {}",
                    said.digest, said.tensors.size(), state_.digest, state_.tensors.size()));
  offsets_.assign(1, 0);
  for (const auto size : sizes_) offsets_.push_back(offsets_.back() + size);
  lacking_.assign((offsets_.back() + chunk_bytes_ - 1) / chunk_bytes_, 0);
  if (gives()) {
    state_.text = std::move(said.text);
    state_.one_donor = said.one_donor;
    return;
  }
  state_ = std::move(said);
  prepare_to_receive();
}

void state_transfer::prepare_to_receive() {
  auto& k = *kept_;
  // Bytes that the digest leaves out may have come from another donor.
  const bool same =
      !state_.one_donor && k.digest == state_.digest && k.chunk_bytes == chunk_bytes_ &&
      k.lacks.size() == lacking_.size() && k.tensors.size() == sizes_.size() &&
      std::ranges::equal(k.tensors, sizes_, {}, [](const auto& t) { return t->size(); });
  if (!same) {
    k.clear();
    k.digest = state_.digest;
    k.chunk_bytes = chunk_bytes_;
    k.lacks.assign(lacking_.size(), 1);
    for (const auto size : sizes_)
      k.tensors.push_back(std::make_shared<std::vector<std::byte>>(size));
  }
  lacking_ = k.lacks;
}

void state_transfer::plan_chunks() {
  for (std::size_t i = 0; i < lacking_.size(); ++i)
    if (lacking_[i] > 0) due_.push_back(i);
}

std::int32_t state_transfer::donor_of(std::size_t chunk) const {
  // Not all of them: each is a subgroup, and a communicator has few.
  const auto many = std::min(donors_.size(), most_in_flight);
  return state_.one_donor ? donors_.front() : donors_[chunk % many];
}

std::size_t state_transfer::size_of_chunk(std::size_t chunk) const {
  return std::min<std::size_t>(chunk_bytes_, offsets_.back() - chunk * chunk_bytes_);
}

// The chunk's donor and all receivers. Empty: that is every rank.
subgroup state_transfer::concerned(std::size_t chunk) const {
  subgroup among{receivers_};
  if (static_cast<std::int32_t>(receivers_.size()) + 1 == world_->group().world) return {};
  among.ranks.push_back(donor_of(chunk));
  std::ranges::sort(among.ranks);
  return among;
}

// Calls use(tensor, offset in the tensor, offset in the chunk, bytes) for each tensor in a chunk.
template <class F>
void state_transfer::each_part(std::size_t chunk, F&& use) const {
  const std::uint64_t first = chunk * chunk_bytes_;
  const auto last = first + size_of_chunk(chunk);
  auto t =
      static_cast<std::size_t>(std::ranges::upper_bound(offsets_, first) - offsets_.begin()) - 1;
  for (; t < sizes_.size() && offsets_[t] < last; ++t) {
    const auto from = std::max(first, offsets_[t]);
    const auto to = std::min(last, offsets_[t + 1]);
    if (from < to) use(t, from - offsets_[t], from - first, to - from);
  }
}

std::string state_transfer::names_in(std::size_t chunk) const {
  std::string names;
  std::size_t count = 0;
  each_part(chunk, [&](std::size_t tensor, auto, auto, auto) {
    if (++count <= most_named) names += (names.empty() ? "" : ", ") + state_.tensors[tensor].name;
  });
  return count > most_named ? fmt::format("{} and {} more", names, count - most_named) : names;
}

void state_transfer::submit_chunks() {
  round_.clear();
  const auto most = std::min({donors_.size(), most_in_flight, due_.size() - next_});
  for (std::size_t i = 0; i < most; ++i) {
    auto& one = round_.emplace_back();
    one.chunk = due_[next_++];
    const auto donor = donor_of(one.chunk);
    one.member = !gives() || donor == rank() || concerned(one.chunk).ranks.empty();
    if (one.member) one.bytes.resize(size_of_chunk(one.chunk) + trailer_bytes);
    if (donor != rank()) continue;
    each_part(one.chunk, [&](std::size_t tensor, auto from, auto to, auto size) {
      std::memcpy(one.bytes.data() + to, state_.tensors[tensor].bytes->data() + from, size);
    });
    append_checksum(one.bytes, one.chunk);
  }
  for (auto& one : round_)
    if (one.member)
      flying_.push_back(world_->broadcast({one.bytes.data(), one.bytes.size(), dtype::u8},
                                          donor_of(one.chunk), concerned(one.chunk)));
}

void state_transfer::take_chunks() {
  sent_ += round_.size();
  for (const auto& one : round_) {
    if (gives()) continue;
    if (!has_checksum(one.bytes, one.chunk))
      throw user_error(
          errc::job_failed,
          fmt::format("chunk {} of the state that rank {} sent is damaged; it holds {}", one.chunk,
                      donor_of(one.chunk), names_in(one.chunk)));
    each_part(one.chunk, [&](std::size_t tensor, auto to, auto from, auto size) {
      std::memcpy(kept_->tensors[tensor]->data() + to, one.bytes.data() + from, size);
    });
    kept_->lacks[one.chunk] = 0;
  }
  round_.clear();
}

void state_transfer::finish() {
  if (gives()) return;
  for (std::size_t i = 0; i < state_.tensors.size(); ++i)
    state_.tensors[i].bytes = std::move(kept_->tensors[i]);
  kept_->clear();
}

}  // namespace troupe
