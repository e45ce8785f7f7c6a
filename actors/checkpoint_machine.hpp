// How checkpoints get onto the disk: events in, actions out. A regular value without CAF, clocks,
// threads or bytes; actors/checkpointer.cpp executes what it says, one storage operation at a time.
//
// A checkpoint is written into `.step-N.tmp`, its commit file last, synced, renamed to `step-N` and
// synced again; only then `latest` is made to name it, and only when that is durable those that the
// policy does not keep are removed (renamed to a hidden name first). So whatever operation is the
// last one before a crash or a loss of power, `latest`, or the newest good one, is a whole
// checkpoint, once there was one. A write that fails leaves nothing but its report.
//
// Nothing is written before its step is committed: until then a step may turn out not to have
// happened. When the machine is flushed, or a newer generation begins, it drops what is not
// committed.
//
// At its start the machine learns which checkpoints a resumed run already has and removes what a
// crash left half-written or half-removed. Checkpoints of later steps than the run went on from
// belong to a branch that was given up: they stay until the first commit of the new one.
#pragma once

#include "actors/deciders.hpp"
#include "messages/fence.hpp"
#include "troupe/options.hpp"
#include "troupe/storage.hpp"

#include <cstdint>
#include <optional>
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
/// Every member of the generation holds that step. Steps only rise within a generation.
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
};
/// Say `flushed` when nothing is in flight or waits any more.
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
/// A checkpoint could not be written, or (step undefined, or of an earlier one) removed.
struct failed {
  std::int64_t step = 0;
  std::string text;
  bool fatal = false;  ///< the folder of checkpoints cannot be made: none can be written
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

/// See the top of the file. These snapshots wait for the disk: the newest; the best of those that
/// keep_best would keep, at most min(keep_best, `waiting_best_limit`); and at most `must_limit`
/// that are `must`, beyond which the oldest is reported as failed. A newer snapshot replaces every
/// other one; the next `written` counts it. The same wait for their commit, and the oldest one.
class checkpoint_machine {
public:
  static constexpr std::size_t must_limit = 4;

  struct settings {
    checkpoint_policy policy;
    std::string folder;                   ///< the run's `checkpoints`
    std::string commit_file;              ///< name of each checkpoint's last file
    std::optional<std::int64_t> resumed;  ///< the step gone on from; none: a new run, which leaves
                                          ///< checkpoints it finds alone
    friend bool operator==(const settings&, const settings&) = default;
  };

  explicit checkpoint_machine(settings given);

  std::vector<checkpointing::action> on(const checkpointing::event& what);

  checkpointing::phase phase() const { return phase_; }
  /// Durable checkpoints of this run's branch, by step.
  const std::vector<kept_checkpoint>& kept() const { return kept_; }

  friend bool operator==(const checkpoint_machine&, const checkpoint_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const checkpoint_machine& machine);

private:
  using actions = std::vector<checkpointing::action>;

  void handle(const checkpointing::begin&, actions& out);
  void handle(const checkpointing::offered& e, actions& out);
  void handle(const checkpointing::committed& e, actions& out);
  void handle(const checkpointing::opened& e, actions& out);
  void handle(const checkpointing::answered& e, actions& out);
  void handle(const checkpointing::flush&, actions& out);

  void learn(const std::vector<std::string>& names);
  void go(checkpointing::phase to, std::vector<checkpointing::operation> script, actions& out);
  void next_operation(actions& out);
  void script_done(actions& out);
  void went_wrong(const std::string& text, actions& out);
  void undo(actions& out);
  void hear_of(generation_id newest, actions& out);
  void wait_for_commit(const checkpointing::offered& e, actions& out);
  void wait_for_disk(const checkpointing::offered& e, actions& out);
  void replace(std::vector<checkpointing::offered>& waiting, bool keep_oldest, actions& out);
  void bound(std::vector<checkpointing::offered>& waiting, std::string_view what_for, actions& out);
  void next_offer(actions& out);
  bool is_there(std::int64_t step) const;
  void enter_kept();
  void gone(std::int64_t step);
  void retire(actions& out);
  void finish(actions& out);

  std::string path_of(std::int64_t step) const;
  std::string hidden_path_of(std::int64_t step) const;

  settings given_;
  checkpointing::phase phase_ = checkpointing::phase::asleep;
  std::vector<kept_checkpoint> kept_;
  std::vector<std::int64_t> abandoned_;  ///< steps of a branch that was given up
  std::vector<std::string> leftovers_;   ///< hidden folders that a crash left
  std::vector<std::int64_t> retiring_;
  std::vector<checkpointing::offered> early_;    ///< not committed yet
  std::vector<checkpointing::offered> waiting_;  ///< for the disk
  std::int64_t committed_ = 0;
  checkpointing::offered current_;
  std::vector<checkpointing::operation> script_;
  std::size_t at_ = 0;        ///< in the script: the operation in flight
  std::uint64_t number_ = 0;  ///< of the operation in flight
  std::string why_;           ///< the current write failed; empty: it has not
  std::int64_t skipped_ = 0;  ///< snapshots that newer ones replaced since the last `written`
  bool lost_ = false;         ///< the last write failed
  generation_id generation_;
  bool flush_ = false;
};

}  // namespace troupe
