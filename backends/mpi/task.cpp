#include "backends/mpi/task.hpp"

#include "backends/collective/canonical_reduction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace troupe::mpi {

namespace {

// MPI counts elements in int, so a larger transfer is split.
constexpr std::size_t chunk_bytes = std::size_t{1} << 30;

template <class Transfer>
void in_chunks(std::size_t count, std::size_t element, const Transfer& transfer) {
  const auto most = chunk_bytes / element;
  for (std::size_t from = 0; from < count; from += most)
    transfer(from, static_cast<int>(std::min(most, count - from)));
}

std::unique_ptr<std::byte[]> scratch(std::size_t size) {
  return std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(size, 1));
}

}  // namespace

MPI_Request& task::request() { return requests_.emplace_back(MPI_REQUEST_NULL); }

// What MPI has not begun would look as if it had ended.
void task::need(int result) {
  if (result != MPI_SUCCESS && trouble_.empty())
    trouble_ =
        fmt::format("MPI reported an error in {}: {}", describe(what.call), error_text(result));
}

void task::start(const stage_of& where, const operations& arithmetic, bool aside) {
  started_ = true;
  try {
    start_with(where, arithmetic, aside);
  } catch (const std::exception& error) {  // no memory
    trouble_ = fmt::format("{}: {}", describe(what.call), error.what());
  }
}

void task::start_with(const stage_of& where, const operations& arithmetic, bool aside) {
  where_ = where;
  arithmetic_ = &arithmetic;
  aside_ = aside;
  if (what.call.what == collective_kind::barrier || what.call.what == collective_kind::decide)
    return;
  if (what.call.count == 0) return;
  in_ = static_cast<const std::byte*>(what.in);
  out_ = static_cast<std::byte*>(what.out);
  if (aside) {
    // What is read, then what is written, unless that is the same memory.
    const auto all = members() * bytes_each();
    const auto read = what.call.what == collective_kind::reduce_scatter ? all : bytes_each();
    const auto written = what.call.what == collective_kind::all_gather ? all : bytes_each();
    const bool in_place = what.call.what == collective_kind::all_reduce ||
                          what.call.what == collective_kind::broadcast;
    aside_memory_ = std::make_unique<std::byte[]>(in_place ? read : read + written);
    in_ = aside_memory_.get();
    out_ = aside_memory_.get() + (in_place ? 0 : read);
  }
  if (members() == 1) {  // every reduction over one rank is what that rank brings
    if (in_ != out_) std::memcpy(out_, in_, bytes_each());
    return;
  }
  start_transfer();
  start_vows();
}

void task::start_transfer() {
  if (where_.tag != 0) return start_exchange();
  switch (what.call.what) {
    case collective_kind::all_reduce: return start_all_reduce();
    case collective_kind::broadcast: return start_broadcast();
    case collective_kind::all_gather: return start_all_gather();
    case collective_kind::reduce_scatter: return start_reduce_scatter();
    case collective_kind::barrier:
    case collective_kind::decide:
    case collective_kind::work_together: return;  // never gets here: it needs one memory
  }
}

// Each member says whether it takes part with its own memory. A member that learned of an abort
// first takes part with scratch memory, because MPI needs all members to end the collective.
void task::start_vows() {
  const std::uint8_t mine = aside_ ? 0 : 1;
  if (where_.tag == 0) {
    own_memory_.assign(1, mine);
    need(MPI_Iallreduce(MPI_IN_PLACE, own_memory_.data(), 1, MPI_UINT8_T, MPI_MIN, where_.comm,
                        &request()));
    return;
  }
  own_memory_.assign(members(), mine);
  for (std::size_t peer = 0; peer < members(); ++peer) {
    if (peer == where_.member) continue;
    const auto to = static_cast<int>((*where_.members)[peer]);
    need(MPI_Irecv(&own_memory_[peer], 1, MPI_BYTE, to, where_.tag, where_.comm, &request()));
    need(MPI_Isend(&own_memory_[where_.member], 1, MPI_BYTE, to, where_.tag, where_.comm,
                   &request()));
  }
}

bool task::empty_participation() const {
  return std::find(own_memory_.begin(), own_memory_.end(), 0) != own_memory_.end();
}

bool task::bars(const task& later, std::size_t members) const {
  struct range {
    const std::byte* from;
    std::size_t size;
  };
  const auto meet = [](const range& a, const range& b) {
    const std::less<const std::byte*> before;
    return a.size != 0 && b.size != 0 && before(a.from, b.from + b.size) &&
           before(b.from, a.from + a.size);
  };
  const auto read = [&](const task& by) -> range {
    const bool all = by.what.call.what == collective_kind::reduce_scatter;
    return {static_cast<const std::byte*>(by.what.in), by.bytes_each() * (all ? members : 1)};
  };
  const auto written = [&](const task& by) -> range {
    const bool all = by.what.call.what == collective_kind::all_gather;
    return {static_cast<const std::byte*>(by.what.out), by.bytes_each() * (all ? members : 1)};
  };
  return meet(written(*this), read(later)) || meet(written(*this), written(later)) ||
         meet(read(*this), written(later));
}

void task::start_all_reduce() {
  const auto type = travel_type(what.call.type);
  auto* memory = out_;
  if (type != what.call.type) {
    staged_ = scratch(what.call.count * sizeof(float));
    widen(what.call.type, out_, reinterpret_cast<float*>(staged_.get()), what.call.count);
    memory = staged_.get();
  }
  if (what.call.operation == reduction::mean)
    shrink_for_mean(type, memory, what.call.count, members());
  const auto with = arithmetic_->of(type, what.call.operation);
  in_chunks(what.call.count, size_of(type), [&](std::size_t from, int count) {
    need(MPI_Iallreduce(MPI_IN_PLACE, memory + from * size_of(type), count, datatype_of(type), with,
                        where_.comm, &request()));
  });
}

void task::start_broadcast() {
  const auto root = static_cast<int>(what.call.root);
  in_chunks(bytes_each(), 1, [&](std::size_t from, int count) {
    need(MPI_Ibcast(out_ + from, count, MPI_BYTE, root, where_.comm, &request()));
  });
}

void task::start_all_gather() {
  const auto size = bytes_each();
  auto* mine = out_ + where_.member * size;
  if (in_ != mine) std::memcpy(mine, in_, size);
  if (size <= chunk_bytes) {
    need(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, out_, static_cast<int>(size), MPI_BYTE,
                        where_.comm, &request()));
    return;
  }
  for (std::size_t root = 0; root < members(); ++root)
    in_chunks(size, 1, [&](std::size_t from, int count) {
      need(MPI_Ibcast(out_ + root * size + from, count, MPI_BYTE, static_cast<int>(root),
                      where_.comm, &request()));
    });
}

void task::start_reduce_scatter() {
  const auto type = travel_type(what.call.type);
  const auto element = size_of(type);
  const auto each = what.call.count;
  const auto* from_all = in_;
  if (type != what.call.type) {
    staged_ = scratch(members() * each * element);
    widen(what.call.type, in_, reinterpret_cast<float*>(staged_.get()), members() * each);
    from_all = staged_.get();
  }
  if (what.call.operation == reduction::mean) {
    if (!staged_) {  // the input is not ours to change
      staged_ = scratch(members() * each * element);
      std::memcpy(staged_.get(), in_, members() * each * element);
      from_all = staged_.get();
    }
    shrink_for_mean(type, staged_.get(), members() * each, members());
  }
  // MPI does not allow the result to overlap the input.
  result_ = scratch(each * element);
  const auto with = arithmetic_->of(type, what.call.operation);
  if (members() * each * element <= chunk_bytes) {
    need(MPI_Ireduce_scatter_block(from_all, result_.get(), static_cast<int>(each),
                                   datatype_of(type), with, where_.comm, &request()));
    return;
  }
  for (std::size_t root = 0; root < members(); ++root)
    in_chunks(each, element, [&](std::size_t from, int count) {
      need(MPI_Ireduce(from_all + (root * each + from) * element, result_.get() + from * element,
                       count, datatype_of(type), with, static_cast<int>(root), where_.comm,
                       &request()));
    });
}

// In a subgroup: each member sends to each other member, in one message, what that one needs.
void task::start_exchange() {
  const auto size = bytes_each();
  const auto call = what.call.what;
  const bool scatter = call == collective_kind::reduce_scatter;
  result_ = scratch(members() * size);
  const auto to_all = [&](auto&& each) {
    for (std::size_t peer = 0; peer < members(); ++peer)
      if (peer != where_.member) each(peer, static_cast<int>((*where_.members)[peer]));
  };
  const auto send = [&](const std::byte* from, int to) {
    in_chunks(size, 1, [&](std::size_t at, int count) {
      need(MPI_Isend(from + at, count, MPI_BYTE, to, where_.tag, where_.comm, &request()));
    });
  };
  const auto receive = [&](std::byte* into, int from) {
    in_chunks(size, 1, [&](std::size_t at, int count) {
      need(MPI_Irecv(into + at, count, MPI_BYTE, from, where_.tag, where_.comm, &request()));
    });
  };
  if (call == collective_kind::broadcast) {
    const bool root = (*where_.members)[where_.member] == what.call.root;
    if (root) return to_all([&](std::size_t, int rank) { send(out_, rank); });
    return receive(out_, what.call.root);
  }
  const auto piece = [&](std::size_t member) { return in_ + (scatter ? member * size : 0); };
  std::memcpy(result_.get() + where_.member * size, piece(where_.member), size);
  to_all([&](std::size_t peer, int rank) {
    receive(result_.get() + peer * size, rank);
    send(piece(peer), rank);
  });
}

bool task::finished() {
  if (!requests_.empty()) {
    int done = 0;
    const auto result = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                                    MPI_STATUSES_IGNORE);
    need(result);
    if (result == MPI_SUCCESS && done == 0) return false;
  }
  if (!trouble_.empty()) how.end({work_status::aborted, trouble_, {}});
  if (!aside_ && !empty_participation() && !requests_.empty() && how.pending()) {
    if (where_.tag != 0)
      conclude_exchange();
    else
      conclude();
  }
  requests_.clear();
  staged_.reset();
  result_.reset();
  aside_memory_.reset();
  touching.store(false);
  return true;
}

void task::conclude() {
  const bool reduces = what.call.what == collective_kind::all_reduce ||
                       what.call.what == collective_kind::reduce_scatter;
  if (!reduces) return;
  const auto type = travel_type(what.call.type);
  auto* arrived = result_ ? result_.get() : staged_ ? staged_.get() : out_;
  if (what.call.operation == reduction::mean)
    finish_mean(type, arrived, what.call.count, members());
  if (type != what.call.type)
    narrow(what.call.type, reinterpret_cast<const float*>(arrived), out_, what.call.count);
  else if (arrived != out_)
    std::memcpy(out_, arrived, bytes_each());
}

void task::conclude_exchange() {
  const auto size = bytes_each();
  switch (what.call.what) {
    case collective_kind::all_gather: std::memcpy(out_, result_.get(), members() * size); return;
    case collective_kind::all_reduce:
    case collective_kind::reduce_scatter: {
      std::vector<const void*> sources;
      for (std::size_t i = 0; i < members(); ++i) sources.push_back(result_.get() + i * size);
      const std::vector<void*> targets{out_};
      canonical_reduce(what.call.type, what.call.operation, sources, targets, what.call.count);
      return;
    }
    default: return;
  }
}

}  // namespace troupe::mpi
