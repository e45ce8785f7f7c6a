#include "actors/checkpoint_machine.hpp"

#include "troupe/checkpoint.hpp"
#include "troupe/detail/coverage.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

using namespace checkpointing;

namespace {

kept_checkpoint as_kept(const offered& one) { return {one.step, {}, one.has_monitor, one.monitor}; }

void erase_step(std::vector<kept_checkpoint>& from, std::int64_t step) {
  std::erase_if(from, [&](const auto& one) { return one.step == step; });
}

}  // namespace

checkpoint_machine::checkpoint_machine(settings given)
    : given_(std::move(given)), committed_(given_.resumed.value_or(0)) {}

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
  // A thread that is preempted before it sends the snapshot may be that late. Simulated actors are
  // not preempted, so the exhaustive search of this machine takes this path, and no campaign.
  if (e.generation < generation_) return out.push_back(drop{e.ticket});
  see_generation(e.generation, out);
  if (e.step <= committed_) {
    wait_for_disk(e, out);
    if (phase_ == phase::idle) next_offer(out);
    return;
  }
  wait_for_commit(e, out);
}

void checkpoint_machine::handle(const committed& e, actions& out) {
  if (e.generation < generation_) return;
  see_generation(e.generation, out);
  committed_ = e.step;
  while (!early_.empty() && early_.front().step <= committed_) {
    wait_for_disk(early_.front(), out);
    early_.erase(early_.begin());
  }
  if (phase_ == phase::idle) next_offer(out);
}

// A step that an older generation took and did not commit is taken again, maybe by other ranks:
// what that one made of it never happened.
void checkpoint_machine::see_generation(generation_id newest, actions& out) {
  if (newest == generation_) return;
  generation_ = newest;
  for (const auto& one : std::exchange(early_, {})) out.emplace_back(drop{one.ticket});
}

void checkpoint_machine::wait_for_commit(const offered& e, actions& out) {
  early_.push_back(e);
  replace(early_, true, out);
}

void checkpoint_machine::wait_for_disk(const offered& e, actions& out) {
  waiting_.push_back(e);
  replace(waiting_, false, out);
}

// - The newest snapshot stays, because it may be the last.
// - `keep_oldest`: the oldest of those that wait for their commit stays too, so that one of them is
//   always written.
// - A snapshot that keep_best would keep is never replaced by a worse one.
// - Only the newest `must` snapshot stays: if there are two, the run went on after the earlier one.
void checkpoint_machine::replace(std::vector<offered>& waiting, bool keep_oldest, actions& out) {
  auto others = kept_;
  if (current_.ticket != 0) others.push_back(as_kept(current_));
  for (const auto& one : &waiting == &early_ ? waiting_ : early_) others.push_back(as_kept(one));
  std::vector<kept_checkpoint> all;
  for (const auto& one : waiting) all.push_back(as_kept(one));
  const offered* oldest = nullptr;
  const offered* newest = keep_oldest ? nullptr : &waiting.back();
  const offered* must = nullptr;
  for (const auto& one : waiting) {
    if (one.must) must = &one;
    if (one.must || !keep_oldest) continue;
    if (!oldest) oldest = &one;
    newest = &one;
  }
  const auto stays = [&](const offered& one) {
    return &one == must || &one == newest || &one == oldest ||
           waits_as_best(as_kept(one), all, others, given_.policy);
  };
  std::vector<offered> left;
  for (const auto& one : waiting) {
    if (stays(one)) {
      left.push_back(one);
      continue;
    }
    sometimes(!keep_oldest, coverage_point::snapshot_replaced);
    skipped_ += 1 + one.skipped;
    out.emplace_back(drop{one.ticket});
  }
  waiting = std::move(left);
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
  script.emplace_back(storage_ops::sync_folder{hidden});
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
  const bool renames_retired = phase_ == phase::retiring && at_ % 2 == 0;
  if (e.missing && renames_retired) {  // something else has removed it
    gone(retiring_[at_ / 2]);
    at_ += 2;
    return next_operation(out);
  }
  if (!e.text.empty()) return went_wrong(e.text, out);
  if (renames_retired) gone(retiring_[at_ / 2]);
  ++at_;
  next_operation(out);
}

void checkpoint_machine::handle(const flush&, actions& out) {
  flush_ = true;
  if (!sometimes(phase_ != phase::idle, coverage_point::flush_waits)) next_offer(out);
}

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
  out.emplace_back(store{++number_, script_[at_]});
}

void checkpoint_machine::script_done(actions& out) {
  std::vector<operation> script;
  switch (phase_) {
    case phase::listing:
      for (const auto& one : kept_)
        script.emplace_back(
            storage_ops::read{one.path + "/" + given_.commit_file, commit_file_limit});
      return go(phase::reading, std::move(script), out);
    case phase::making: return go(phase::sweeping, {}, out);
    case phase::reading:
      if (const auto* best = best_checkpoint(kept_, given_.policy))
        out.emplace_back(found{best->path});
      // First what is there becomes durable: a loss of power must not bring back by halves what one
      // of them was before it was renamed.
      if (sometimes(!leftovers_.empty(), coverage_point::leftovers_swept))
        script.emplace_back(storage_ops::sync_folder{given_.folder});
      for (const auto& path : std::exchange(leftovers_, {}))
        script.emplace_back(storage_ops::remove{path});
      return go(phase::sweeping, std::move(script), out);
    case phase::sweeping: phase_ = phase::idle; return next_offer(out);
    case phase::writing:
      enter_kept();
      script = {storage_ops::sync_folder{given_.folder},
                storage_ops::link{checkpoint_folder_name(current_.step),
                                  given_.folder + "/" + latest_link}};
      script.emplace_back(storage_ops::sync_folder{given_.folder});
      return go(phase::publishing, std::move(script), out);
    case phase::publishing: return report(out), retire(out);
    case phase::retiring:
    case phase::undoing: return finish(out);
    case phase::asleep:
    case phase::idle:
    case phase::opening: throw internal_error("checkpoint machine: no script runs");
  }
}

void checkpoint_machine::went_wrong(const std::string& text, actions& out) {
  switch (phase_) {
    // Missing, or it cannot be read: then making it fails too, or the first write into it.
    case phase::listing: return go(phase::making, {storage_ops::make_folder{given_.folder}}, out);
    case phase::making:
      lost_ = true;
      out.emplace_back(failed{undefined, text, failure_of::folder});
      break;
    case phase::sweeping:
      out.emplace_back(failed{undefined, text, failure_of::removal});
      if (at_ == 0) at_ = script_.size() - 1;  // not durable: nothing is removed
      break;
    case phase::writing:
      sometimes(true, coverage_point::write_undone);
      why_ = text;
      return undo(out);
    case phase::publishing:
      sometimes(true, coverage_point::publish_failed);
      why_ = text;
      return finish(out);
    case phase::retiring:
      sometimes(true, coverage_point::retire_failed);
      out.emplace_back(failed{retiring_[at_ / 2], text, failure_of::removal});
      if (at_ % 2 == 0) ++at_;  // it is still where it was: tried again at the next commit
      break;
    case phase::undoing:
      why_ += "; what was written of it stays until the next start: " + text;
      return finish(out);
    default: break;  // reading: nothing is known of it
  }
  ++at_;
  next_operation(out);
}

// A rename that failed late has exchanged the folder with another one of its step, which a loss of
// power would bring back: nothing of that one is removed before the exchange is durable.
void checkpoint_machine::undo(actions& out) {
  const auto hidden = hidden_path_of(current_.step);
  std::vector<operation> script;
  if (std::holds_alternative<storage_ops::rename>(script_[at_]))
    script.emplace_back(storage_ops::sync_folder{given_.folder});
  script.emplace_back(storage_ops::remove{hidden});
  go(phase::undoing, std::move(script), out);
}

void checkpoint_machine::next_offer(actions& out) {
  while (!waiting_.empty() && is_there(waiting_.front().step)) {
    out.emplace_back(drop{waiting_.front().ticket});
    waiting_.erase(waiting_.begin());
  }
  if (waiting_.empty()) {
    if (!flush_) return;
    for (const auto& one : std::exchange(early_, {})) out.emplace_back(drop{one.ticket});
    flush_ = false;
    out.emplace_back(flushed{lost_});
    return;
  }
  always(phase_ == phase::idle && current_.ticket == 0, coverage_point::one_checkpoint_at_a_time);
  current_ = waiting_.front();
  waiting_.erase(waiting_.begin());
  phase_ = phase::opening;
  out.emplace_back(open{current_.ticket});
}

// True for the checkpoint that the run resumed from, while the run has written no later one.
bool checkpoint_machine::is_there(std::int64_t step) const {
  return given_.resumed == step && !kept_.empty() && kept_.back().step == step;
}

// The renamed checkpoint replaces another one of its step. Checkpoints of later steps belong to an
// abandoned branch of the run.
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

// Before anything is removed: a job that begins at the newest checkpoint must know this one.
void checkpoint_machine::report(actions& out) {
  auto stays = kept_;
  for (const auto step : to_remove(kept_, given_.policy)) erase_step(stays, step);
  const auto* best = best_checkpoint(stays, given_.policy);
  out.emplace_back(written{current_.step, path_of(current_.step), best ? best->path : "",
                           std::max<std::int64_t>(0, committed_ - current_.step),
                           std::exchange(skipped_, 0) + current_.skipped});
  lost_ = false;
}

void checkpoint_machine::retire(actions& out) {
  retiring_ = abandoned_;
  sometimes(!abandoned_.empty(), coverage_point::branch_abandoned);
  for (const auto step : to_remove(kept_, given_.policy)) retiring_.push_back(step);
  std::vector<operation> script;
  for (const auto step : retiring_) {
    always(step != current_.step, coverage_point::newest_is_kept);
    script.emplace_back(storage_ops::rename{path_of(step), hidden_path_of(step)});
    script.emplace_back(storage_ops::remove{hidden_path_of(step)});
  }
  go(phase::retiring, std::move(script), out);
}

void checkpoint_machine::finish(actions& out) {
  if (!why_.empty()) {
    out.emplace_back(failed{current_.step, std::exchange(why_, {})});
    skipped_ += current_.skipped;
    lost_ = true;
  }
  out.emplace_back(drop{current_.ticket});
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
