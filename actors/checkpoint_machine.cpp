#include "actors/checkpoint_machine.hpp"

#include "backends/checkpoint_io.hpp"
#include "messages/failure.hpp"
#include "messages/marks.hpp"
#include "messages/planted.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

using namespace checkpointing;

namespace {

void erase_step(std::vector<kept_checkpoint>& from, std::int64_t step) {
  std::erase_if(from, [&](const auto& one) { return one.step == step; });
}

}  // namespace

checkpoint_machine::checkpoint_machine(settings given) : given_(std::move(given)) {}

std::vector<action> checkpoint_machine::on(const event& what) {
  actions out;
  std::visit([&](const auto& e) { handle(e, out); }, what);
  return out;
}

void checkpoint_machine::handle(const begin&, actions& out) {
  if (phase_ != phase::asleep) throw internal_error("checkpoint machine: begun twice");
  go(phase::listing, {storage_ops::list{given_.folder}}, out);
}

void checkpoint_machine::handle(const offered& e, actions& out) {
  if (sometimes(e.generation < generation_, mark::snapshot_of_old_generation))
    return out.push_back(drop{e.ticket});
  generation_ = e.generation;
  if (!waiting_.empty() && (!waiting_.back().must || planted(bug::must_replaced))) {
    sometimes(true, mark::snapshot_replaced);
    out.push_back(drop{waiting_.back().ticket});
    waiting_.pop_back();
  }
  waiting_.push_back(e);
  // All but the last are `must`, and so is the last when there is one too many.
  if (sometimes(waiting_.size() > must_limit && waiting_.back().must, mark::snapshots_given_up)) {
    out.push_back(failed{waiting_.front().step,
                         fmt::format("the checkpoint of step {} was given up: {} newer ones wait "
                                     "for the disk",
                                     waiting_.front().step, must_limit)});
    out.push_back(drop{waiting_.front().ticket});
    waiting_.erase(waiting_.begin());
  }
  if (phase_ == phase::idle) next_offer(out);
}

void checkpoint_machine::handle(const opened& e, actions& out) {
  if (phase_ != phase::opening) throw internal_error("checkpoint machine: opened nothing");
  if (!e.why.empty()) {
    why_ = e.why;
    return finish(out);
  }
  const auto hidden = hidden_path_of(current_.step);
  std::vector<operation> script{storage_ops::remove{hidden}, storage_ops::make_folder{hidden}};
  for (std::size_t i = 0; i < e.files.size(); ++i)
    script.emplace_back(write_file{i, hidden + "/" + e.files[i]});
  if (!planted(bug::rename_before_sync)) script.emplace_back(storage_ops::sync_folder{hidden});
  script.emplace_back(storage_ops::rename{hidden, path_of(current_.step)});
  go(phase::writing, std::move(script), out);
}

void checkpoint_machine::handle(const answered& e, actions& out) {
  if (e.number != number_ || at_ >= script_.size()) return;  // of an operation before this one
  if (phase_ == phase::listing) learn(e.names);
  if (phase_ == phase::reading && e.text.empty()) {
    kept_[at_].has_monitor = e.has_monitor;
    kept_[at_].monitor = e.monitor;
  }
  if (!e.text.empty()) return went_wrong(e.text, out);
  if (phase_ == phase::retiring && at_ % 2 == 0) gone(retiring_[at_ / 2]);
  ++at_;
  next_operation(out);
}

void checkpoint_machine::handle(const flush&, actions& out) {
  flush_ = true;
  if (!sometimes(phase_ != phase::idle, mark::flush_waits)) next_offer(out);
}

// What a folder that is missing or cannot be read has to say is said by the first write into it.
void checkpoint_machine::learn(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    if (name.starts_with(".step-")) leftovers_.push_back(given_.folder + "/" + name);
    const auto step = step_of_checkpoint_folder(name);
    if (step < 0 || !given_.resumed) continue;
    if (step <= *given_.resumed)
      kept_.push_back({step, path_of(step), false, 0});
    else
      abandoned_.push_back(step);
  }
}

void checkpoint_machine::go(checkpointing::phase to, std::vector<operation> script, actions& out) {
  phase_ = to;
  script_ = std::move(script);
  at_ = 0;
  next_operation(out);
}

void checkpoint_machine::next_operation(actions& out) {
  if (at_ >= script_.size()) return script_done(out);
  out.push_back(store{++number_, script_[at_]});
}

void checkpoint_machine::script_done(actions& out) {
  std::vector<operation> script;
  switch (phase_) {
    case phase::listing:
      for (const auto& one : kept_)
        script.emplace_back(
            storage_ops::read{one.path + "/" + given_.commit_file, commit_file_limit});
      return go(phase::reading, std::move(script), out);
    case phase::reading:
      sometimes(!leftovers_.empty(), mark::leftovers_swept);
      for (const auto& path : std::exchange(leftovers_, {}))
        script.emplace_back(storage_ops::remove{path});
      return go(phase::sweeping, std::move(script), out);
    case phase::sweeping: phase_ = phase::idle; return next_offer(out);
    case phase::writing:
      enter_kept();
      if (planted(bug::parent_not_synced)) return retire(out);
      return go(phase::publishing,
                {storage_ops::sync_folder{given_.folder},
                 storage_ops::link{checkpoint_folder_name(current_.step),
                                   given_.folder + "/" + latest_link},
                 storage_ops::sync_folder{given_.folder}},
                out);
    case phase::publishing: return retire(out);
    case phase::retiring:
    case phase::undoing: return finish(out);
    case phase::asleep:
    case phase::idle:
    case phase::opening: throw internal_error("checkpoint machine: no script runs");
  }
}

void checkpoint_machine::went_wrong(const std::string& text, actions& out) {
  switch (phase_) {
    case phase::sweeping: out.push_back(failed{undefined, text}); break;
    case phase::writing:
      sometimes(true, mark::write_undone);
      why_ = text;
      return go(phase::undoing, {storage_ops::remove{hidden_path_of(current_.step)}}, out);
    case phase::publishing:
      sometimes(true, mark::publish_failed);
      why_ = text;
      return finish(out);
    case phase::retiring:
      sometimes(true, mark::retire_failed);
      out.push_back(failed{retiring_[at_ / 2], text});
      if (at_ % 2 == 0) ++at_;  // it is still where it was: tried again at the next commit
      break;
    case phase::undoing: why_ += "; what was written of it stays until the next start: " + text;
    default: break;  // listing, reading: nothing is known of it
  }
  ++at_;
  next_operation(out);
}

void checkpoint_machine::next_offer(actions& out) {
  if (waiting_.empty()) {
    if (std::exchange(flush_, false)) out.push_back(flushed{});
    return;
  }
  always(phase_ == phase::idle && current_.ticket == 0, mark::one_checkpoint_at_a_time);
  current_ = waiting_.front();
  waiting_.erase(waiting_.begin());
  phase_ = phase::opening;
  out.push_back(open{current_.ticket});
}

// The renamed one takes the place of another of its step; those of later steps are of a branch that
// this one is not on.
void checkpoint_machine::enter_kept() {
  gone(current_.step);
  for (const auto& one : kept_)
    if (one.step > current_.step) abandoned_.push_back(one.step);
  std::erase_if(kept_, [&](const auto& one) { return one.step > current_.step; });
  kept_.push_back({current_.step, path_of(current_.step), current_.has_monitor, current_.monitor});
}

void checkpoint_machine::gone(std::int64_t step) {
  erase_step(kept_, step);
  std::erase(abandoned_, step);
}

void checkpoint_machine::retire(actions& out) {
  retiring_ = abandoned_;
  sometimes(!abandoned_.empty(), mark::branch_abandoned);
  for (const auto step : to_remove(kept_, given_.policy)) retiring_.push_back(step);
  std::vector<operation> script;
  for (const auto step : retiring_) {
    always(step != current_.step, mark::newest_is_kept);
    script.emplace_back(storage_ops::rename{path_of(step), hidden_path_of(step)});
    script.emplace_back(storage_ops::remove{hidden_path_of(step)});
  }
  go(phase::retiring, std::move(script), out);
}

void checkpoint_machine::finish(actions& out) {
  if (why_.empty() || planted(bug::failed_write_is_written)) {
    const auto* best = best_checkpoint(kept_, given_.policy);
    out.push_back(written{current_.step, path_of(current_.step), best ? best->path : ""});
  } else {
    out.push_back(failed{current_.step, std::exchange(why_, {})});
  }
  out.push_back(drop{current_.ticket});
  current_ = {};
  script_.clear();
  retiring_.clear();
  phase_ = phase::idle;
  next_offer(out);
}

std::string checkpoint_machine::path_of(std::int64_t step) const {
  return given_.folder + "/" + checkpoint_folder_name(step);
}

std::string checkpoint_machine::hidden_path_of(std::int64_t step) const {
  return given_.folder + "/." + checkpoint_folder_name(step) + ".tmp";
}

}  // namespace troupe
