// The file that the processes of a job share: its generations, their ranks, and the offsets of
// their regions.
#pragma once

#include "backends/local/file_descriptor.hpp"
#include "backends/local/process_life.hpp"
#include "backends/shm/region.hpp"
#include "backends/shm/shm.hpp"
#include "troupe/communicator.hpp"

#include <pthread.h>

namespace troupe {

namespace shm {

struct control_segment_entry {
  std::uint32_t used;
  std::uint32_t world;
  std::uint64_t job;
  std::uint64_t generation;
  std::uint64_t offset;  ///< of the region; never given out again
  rank_set ever;         ///< ranks that have opened it
  rank_set left;         ///< ranks that have closed it
  std::array<process_life, world_max> lives;
};

struct begun {
  std::uint64_t job;
  std::uint64_t generation;  ///< the latest of the job
  std::uint64_t given_up;    ///< the latest that all left before the last rank came, or 0
};

inline constexpr std::size_t generations_max = 64;
struct control_segment_words {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t bytes;  ///< size of this struct: differs between incompatible compilers
  std::uint64_t slot_bytes;
  std::uint64_t registered_bytes;
  pthread_mutex_t mutex;  ///< robust, of processes; only for opening and closing
  std::uint64_t next_offset;
  std::uint64_t next_begun;
  std::array<begun, generations_max> latest;
  std::array<control_segment_entry, generations_max> entries;
};

/// A rank's place in a generation.
struct admission {
  std::size_t entry = 0;
  std::size_t offset = 0;
  region_layout layout;
  std::string stale;  ///< not empty: the generation is over, for this reason; nothing was opened
};

}  // namespace shm

/// The mapped file. Thread-safe.
class shm_rendezvous::control_segment {
public:
  /// Takes the descriptor over. `fresh`: lays it out first.
  control_segment(file_descriptor file, const shm_sizes* fresh);
  ~control_segment();
  control_segment(const control_segment&) = delete;
  control_segment& operator=(const control_segment&) = delete;

  int file() const { return file_.get(); }

  /// Throws as shm_backend::open does. Calls `abort`, with the offset of the region, if this rank's
  /// description contradicts that of the others, which ends the group.
  shm::admission enter(const group_description& who,
                       const std::function<void(const shm::admission&, std::string)>& abort);
  void leave(const group_description& who, const shm::admission& at) noexcept;
  /// The process of a rank that has opened the generation of `at` and not closed it.
  std::optional<process_life> life(const shm::admission& at, std::int32_t rank) const;
  /// All ranks have opened it.
  bool complete(const shm::admission& at) const;

  /// Answers processes that ask by name from now on, until this object ends.
  void answer(std::shared_ptr<void> usher) { usher_ = std::move(usher); }

private:
  class hold;
  shm::control_segment_entry* find(const group_description& who) const;
  std::string overtaken(const group_description& who);
  shm::control_segment_entry& begin(const group_description& who);
  void forget(shm::control_segment_entry& entry) const noexcept;

  const file_descriptor file_;
  shm::control_segment_words* words_ = nullptr;
  std::shared_ptr<void> usher_;  // ends before `file_`, which its thread hands out
};

}  // namespace troupe
