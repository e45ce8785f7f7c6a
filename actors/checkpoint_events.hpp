// Events, actions and phases of the checkpoint machine (actors/checkpoint_machine.hpp). An error is
// an `answered` with a text. The edges that matter:
//
// phase       event               next phase: actions
// asleep      begin               listing: store list
// listing     answered            reading: store read, for each checkpoint of the run
// listing     answered: an error  making: store make_folder
// making      answered            sweeping; after an error: failed, fatal
// reading     the last answered   sweeping: found, store sync_folder, then remove of each leftover
// sweeping    the last answered   idle
// idle        offered, committed  opening: open, once a snapshot is committed
// opening     opened              writing: store remove, make_folder, write_file of each file,
//                                   sync_folder, rename; without files idle: failed, drop
// writing     the last answered   publishing: store sync_folder, link, sync_folder
// writing     answered: an error  undoing: store remove
// publishing  the last answered   retiring: store rename and remove of each that is not kept
// publishing  answered: an error  idle: failed, drop
// retiring    the last answered   idle: written, drop; opening: open, if another snapshot waits
// undoing     the last answered   idle: failed, drop; opening as after retiring
// any         offered             the same; drop, for each snapshot that a newer one replaces
// any         flush               the same; flushed, in idle, once no committed snapshot waits
//
// event      sent by         when
// begin      the shell       first of all
// offered    a rank          it has taken a snapshot
// committed  the supervisor  every member of the generation holds the step
// opened     the shell       answer to `open`
// answered   the storage     answer to `store`
// flush      the supervisor  the job ends
//
// action          what the shell does
// open, drop      makes the files of a snapshot, or forgets the snapshot
// store           passes one operation to the storage
// written, found  reports a durable checkpoint, or the best one that a resumed run has
// failed          reports a checkpoint that could not be written or removed
// flushed         reports that nothing is in progress or waits any more
#pragma once

#include "messages/fence.hpp"
#include "troupe/checkpoint.hpp"

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe {

namespace checkpointing {

// --- events --------------------------------------------------------------------------------------

/// First of all.
struct begin {};
/// A snapshot, known to the shell as `ticket`. One of an older generation than the newest seen is
/// dropped.
struct offered {
  std::uint64_t ticket = 0;
  std::int64_t step = 0;
  generation_id generation;
  bool must = false;
  bool has_monitor = false;  ///< the policy's monitor had been logged when it was taken
  double monitor = 0;
  std::int64_t skipped = 0;  ///< snapshots before it that were replaced on their way here
  friend bool operator==(const offered&, const offered&) = default;
};
/// Every member of the generation holds that step. Steps only rise within a generation; one that
/// begins at a checkpoint may begin below what was committed before it, and says so first.
struct committed {
  generation_id generation;
  std::int64_t step = 0;
};
/// Answer to `open`, at once: the names of its files, the commit file last; or why it has none.
struct opened {
  std::vector<std::string> files;
  std::string why;
};
/// Answer to `store`. `text` is empty when it went well.
struct answered {
  std::uint64_t number = 0;
  std::string text;
  std::vector<std::string> names;  ///< of a list
  bool has_monitor = false;        ///< what a commit file that was read says
  double monitor = 0;
  bool missing = false;  ///< `text` says that the path is not there
};
/// Asks for `flushed`, which follows when nothing is in flight and nothing waits.
struct flush {};

using event = std::variant<begin, offered, committed, opened, answered, flush>;

// --- actions -------------------------------------------------------------------------------------

/// Make the files of a snapshot; answered by `opened`.
struct open {
  std::uint64_t ticket = 0;
  friend bool operator==(const open&, const open&) = default;
};
/// The snapshot is not needed any more.
struct drop {
  std::uint64_t ticket = 0;
  friend bool operator==(const drop&, const drop&) = default;
};
/// Write the opened snapshot's `file`-th file.
struct write_file {
  std::size_t file = 0;
  std::string path;
  friend bool operator==(const write_file&, const write_file&) = default;
};
using operation = std::variant<write_file, storage_ops::make_folder, storage_ops::sync_folder,
                               storage_ops::rename, storage_ops::remove, storage_ops::link,
                               storage_ops::list, storage_ops::read>;
/// Hand this to the storage port; answered by `answered` with the same number. Never two at a time.
struct store {
  std::uint64_t number = 0;
  operation what;
  friend bool operator==(const store&, const store&) = default;
};
/// Durable, and what `latest` names. `best` is the best one's path, empty when none is known.
struct written {
  std::int64_t step = 0;
  std::string path;
  std::string best;
  std::int64_t behind = 0;   ///< committed steps after this one
  std::int64_t skipped = 0;  ///< snapshots that newer ones replaced since the last `written`
  friend bool operator==(const written&, const written&) = default;
};
/// The best of the checkpoints that a resumed run already has. Once, before anything is written.
struct found {
  std::string best;
  friend bool operator==(const found&, const found&) = default;
};
enum class failure_of {
  write,
  removal,  ///< of a checkpoint that is no longer kept, or (step undefined) of leftovers
  folder,   ///< the folder of checkpoints cannot be made: none can be written
};
struct failed {
  std::int64_t step = 0;
  std::string text;
  failure_of what = failure_of::write;
  friend bool operator==(const failed&, const failed&) = default;
};
/// `lost`: the last write has failed, as its `failed` said.
struct flushed {
  bool lost = false;
  friend bool operator==(const flushed&, const flushed&) = default;
};

using action = std::variant<open, drop, store, written, found, failed, flushed>;
std::ostream& operator<<(std::ostream& out, const action& a);

enum class phase : std::uint8_t {
  asleep,    ///< before `begin`
  listing,   ///< which checkpoints are there
  making,    ///< the folder of checkpoints, when it cannot be listed
  reading,   ///< their commit files, for the monitor
  sweeping,  ///< what a crash left
  idle,
  opening,     ///< the shell makes the files
  writing,     ///< up to and with the rename
  publishing,  ///< making that durable, and `latest`
  retiring,    ///< what the policy does not keep
  undoing,     ///< a failed write's hidden folder
};
std::string_view to_string(phase p);

}  // namespace checkpointing

}  // namespace troupe
