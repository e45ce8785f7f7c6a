#include "backends/shm/control_segment.hpp"

#include "backends/collective/submission.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace troupe {

namespace {

using shm::contains;
using shm::insert;

constexpr std::uint64_t magic = 0x74726f7570650001;  // "troupe"
constexpr std::uint64_t memory_page = 4096;
constexpr int lock_seconds = 5;  // for a section of microseconds

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

void init(pthread_mutex_t& mutex) {
  pthread_mutexattr_t how;
  pthread_mutexattr_init(&how);
  pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &how);
  pthread_mutexattr_destroy(&how);
}

// Slots take memory when a generation opens: a damaged or hostile size must not take all memory.
bool possible(std::uint64_t slot_bytes, std::uint64_t registered_bytes) {
  return slot_bytes != 0 && slot_bytes % memory_page == 0 &&
         slot_bytes <= std::uint64_t{16} << 20 &&
         registered_bytes % shm::region_layout::huge_page == 0 &&
         registered_bytes <= std::uint64_t{1} << 40;
}

[[noreturn]] void no_rendezvous(std::string_view why) {
  throw user_error(errc::device, fmt::format("shm: this is no rendezvous of ranks: {}", why));
}

}  // namespace

/// Holds the control segment's mutex. A process that died while it held the mutex left valid
/// entries, because `used` is written last.
class shm_rendezvous::control_segment::hold {
public:
  explicit hold(pthread_mutex_t& mutex) : mutex_(mutex) {
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += lock_seconds;
    switch (pthread_mutex_timedlock(&mutex, &until)) {
      case 0: return;
      case EOWNERDEAD: pthread_mutex_consistent(&mutex); return;
      case ETIMEDOUT:
        throw user_error(errc::membership,
                         "shm: another process of the job was stopped while it opened a "
                         "generation; continue or end it");
      default: throw internal_error("shm: the control segment's mutex is broken");
    }
  }
  ~hold() { pthread_mutex_unlock(&mutex_); }
  hold(const hold&) = delete;
  hold& operator=(const hold&) = delete;

private:
  pthread_mutex_t& mutex_;
};

shm_rendezvous::control_segment::control_segment(file_descriptor file, const shm_sizes* fresh)
    : file_(std::move(file)) {
  using shm::control_segment_words;
  if (fresh) {
    if (!possible(fresh->slot_bytes, fresh->registered_bytes))
      throw std::invalid_argument(
          "shm: slot_bytes must be a multiple of 4096 up to 16 MiB, registered_bytes of 2 MiB up "
          "to "
          "1 TiB");
    shm::reserve(file_.get(), 0, sizeof(control_segment_words), "a rendezvous of ranks");
  } else {
    control_segment_words head{};
    constexpr auto known = offsetof(control_segment_words, mutex);
    if (pread(file_.get(), &head, known, 0) != static_cast<ssize_t>(known) || head.magic != magic)
      no_rendezvous("the descriptor is something else");
    if (head.version != shm::layout_version || head.bytes != sizeof(control_segment_words))
      no_rendezvous(
          fmt::format("it has version {}, this program {}; start all ranks from one build",
                      head.version, shm::layout_version));
    struct stat about {};
    if (fstat(file_.get(), &about) != 0 || about.st_size < off_t{sizeof(control_segment_words)})
      no_rendezvous("it is cut short");
    if (!possible(head.slot_bytes, head.registered_bytes)) no_rendezvous("its sizes cannot be");
  }
  void* at = mmap(nullptr, sizeof(control_segment_words), PROT_READ | PROT_WRITE, MAP_SHARED,
                  file_.get(), 0);
  if (at == MAP_FAILED) no_rendezvous(std::strerror(errno));
  words_ = static_cast<control_segment_words*>(at);
  if (!fresh) return;
  words_->version = shm::layout_version;
  words_->bytes = sizeof(control_segment_words);
  words_->slot_bytes = fresh->slot_bytes;
  words_->registered_bytes = fresh->registered_bytes;
  words_->next_offset = round_up(sizeof(control_segment_words), shm::region_layout::huge_page);
  init(words_->mutex);
  words_->magic = magic;
}

shm_rendezvous::control_segment::~control_segment() { munmap(words_, sizeof(*words_)); }

shm::control_segment_entry* shm_rendezvous::control_segment::find(
    const group_description& who) const {
  for (auto& entry : words_->entries)
    if (entry.used && entry.job == who.job.value() && entry.generation == who.generation.value())
      return &entry;
  return nullptr;
}

// Frees the entry if all its members have left or ended. Other processes may still have the region
// mapped: they keep the addresses, without the memory.
void shm_rendezvous::control_segment::forget(shm::control_segment_entry& entry) const noexcept {
  bool whole = true;
  for (std::uint32_t rank = 0; rank < entry.world; ++rank) {
    const auto r = static_cast<std::int32_t>(rank);
    if (!contains(entry.ever, r))
      whole = false;
    else if (!contains(entry.left, r) && !entry.lives[rank].over())
      return;
  }
  for (auto& last : words_->latest)
    if (!whole && last.job == entry.job) last.given_up = entry.generation;
  const shm::region_layout layout{entry.world, words_->slot_bytes, words_->registered_bytes};
  fallocate(file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(entry.offset),
            static_cast<off_t>(layout.bytes()));
  entry.used = 0;
}

// Remembers the latest generation of each of the last 64 jobs. Returns why this generation is over,
// or nothing.
std::string shm_rendezvous::control_segment::overtaken(const group_description& who) {
  const auto generation = who.generation.value();
  for (auto& last : words_->latest) {
    if (last.job != who.job.value() || last.generation == 0) continue;
    if (last.generation > generation)
      return fmt::format("generation {} is over: generation {} has begun", generation,
                         last.generation);
    if (last.given_up == generation)
      return fmt::format("generation {} is over: the ranks that opened it have left", generation);
    last.generation = generation;
    return {};
  }
  words_->latest[words_->next_begun++ % words_->latest.size()] = {who.job.value(), generation, 0};
  return {};
}

shm::control_segment_entry& shm_rendezvous::control_segment::begin(const group_description& who) {
  for (auto& entry : words_->entries)
    if (entry.used) forget(entry);
  const auto free = std::find_if(words_->entries.begin(), words_->entries.end(),
                                 [](const auto& entry) { return !entry.used; });
  if (free == words_->entries.end())
    throw user_error(errc::device,
                     fmt::format("shm: {} generations are open, and more are not possible; "
                                 "close communicators that are not used any more",
                                 shm::generations_max));
  const auto world = static_cast<std::size_t>(who.world);
  const shm::region_layout layout{world, words_->slot_bytes, words_->registered_bytes};
  const auto offset = words_->next_offset;
  shm::reserve(file(), offset, layout.control_bytes(), "a generation's state");
  words_->next_offset = round_up(offset + layout.bytes(), shm::region_layout::huge_page);
  free->world = static_cast<std::uint32_t>(world);
  free->job = who.job.value();
  free->generation = who.generation.value();
  free->offset = offset;
  free->ever = {};
  free->left = {};
  free->used = 1;
  return *free;
}

shm::admission shm_rendezvous::control_segment::enter(
    const group_description& who,
    const std::function<void(const shm::admission&, std::string)>& abort) {
  collectives::check_rank(who);
  const auto of = collectives::generation_text(who);
  if (static_cast<std::size_t>(who.world) > shm::world_max)
    throw user_error(errc::device, fmt::format("shm: {} ranks on one host, {} at most; use tcp",
                                               who.world, shm::world_max));
  const auto life = process_life::own();
  const hold locked{words_->mutex};
  auto* entry = find(who);
  if (!entry) {
    if (auto stale = overtaken(who); !stale.empty()) return {0, 0, {}, std::move(stale)};
    entry = &begin(who);
  }
  shm::admission at{static_cast<std::size_t>(entry - words_->entries.data()),
                    entry->offset,
                    {entry->world, words_->slot_bytes, words_->registered_bytes},
                    {}};
  if (static_cast<std::int32_t>(entry->world) != who.world) {
    auto text = fmt::format("{}: rank {} says its world is {}, others said {}", of, who.rank,
                            who.world, entry->world);
    abort(at, text);
    throw std::invalid_argument(text);
  }
  if (contains(entry->ever, who.rank))
    throw internal_error(fmt::format("{}: rank {} opened it before", of, who.rank));
  entry->lives[static_cast<std::size_t>(who.rank)] = life;
  insert(entry->ever, who.rank);
  return at;
}

void shm_rendezvous::control_segment::leave(const group_description& who,
                                            const shm::admission& at) noexcept {
  try {
    const hold locked{words_->mutex};
    auto& entry = words_->entries[at.entry];
    insert(entry.left, who.rank);
    forget(entry);
  } catch (const std::exception&) {
    // Without the mutex the entry stays until this process has ended.
  }
}

std::optional<process_life> shm_rendezvous::control_segment::life(const shm::admission& at,
                                                                  std::int32_t rank) const {
  const hold locked{words_->mutex};
  const auto& entry = words_->entries[at.entry];
  if (!contains(entry.ever, rank) || contains(entry.left, rank)) return std::nullopt;
  return entry.lives[static_cast<std::size_t>(rank)];
}

bool shm_rendezvous::control_segment::complete(const shm::admission& at) const {
  const hold locked{words_->mutex};
  const auto& entry = words_->entries[at.entry];
  for (std::uint32_t rank = 0; rank < entry.world; ++rank)
    if (!contains(entry.ever, static_cast<std::int32_t>(rank))) return false;
  return true;
}

}  // namespace troupe
