#include "apps/testing/exhaustive/checkpoint_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "troupe/checkpoint.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe::testing {

namespace {

using namespace checkpointing;
using kind = storage_fault::kind;

checkpoint_policy policy_of(const checkpoint_search& options) {
  checkpoint_policy policy;
  policy.keep_last = options.keep_last;
  policy.keep_best = options.keep_best;
  return policy;
}

std::optional<std::int64_t> step_or_none(std::int64_t step) {
  return step > 0 ? std::optional{step} : std::nullopt;
}

std::string text_of(const operation& what) {
  std::ostringstream text;
  text << action{store{0, what}};
  return text.str().substr(3);  // its number is the machine's affair
}

}  // namespace

checkpoint_state::checkpoint_state(const checkpoint_search& options, std::int64_t run,
                                   simulated_disk disk, std::int64_t resumed, std::string how)
    : options_(&options),
      run_(run),
      machine_({policy_of(options), checkpoints_path, commit_file, step_or_none(resumed)}),
      disk_(std::move(disk)),
      disk_history_(static_cast<std::uint64_t>(run)),
      found_(resolved(disk_)),
      last_(resumed + options.steps),
      resumed_(resumed),
      offered_(resumed),
      committed_(resumed) {
  for (const auto& name : names_on(disk_).all) {
    const auto step = step_of_checkpoint_folder(name);
    if (step > 0 && !whole(disk_, name)) exact_ = false;
    if (step > 0 && step <= resumed) kept_.push_back(step);
  }
  note(std::move(how));
  feed(begin{});
}

// --- the machine and its world -------------------------------------------------------------------

void checkpoint_state::note(std::string text) {
  way_ = std::make_shared<const line>(line{std::move(text), std::move(way_)});
}

std::string checkpoint_state::way() const {
  std::string text;
  for (auto at = way_; at; at = at->before) text = fmt::format("  {}\n{}", at->text, text);
  std::ostringstream machine;
  machine << machine_;
  return text + "  then: " + machine.str();
}

void checkpoint_state::feed(const event& what) {
  try {
    for (const auto& a : machine_.on(what)) take(a);
  } catch (const std::exception& e) {
    object(fmt::format("the machine threw: {}", e.what()));
  }
}

void checkpoint_state::take(const action& a) {
  if (const auto* x = std::get_if<checkpointing::open>(&a)) {
    const auto found = std::ranges::find(held_, x->ticket, &held_snapshot::ticket);
    if (found == held_.end()) return object("a snapshot is opened that was let go");
    open_ = found->of;
    feed(opened{{data_file, commit_file}, {}});
  } else if (const auto* x = std::get_if<store>(&a)) {
    if (in_flight_) object("two operations are in flight");
    in_flight_ = *x;
  } else if (const auto* x = std::get_if<drop>(&a)) {
    const auto found = std::ranges::find(held_, x->ticket, &held_snapshot::ticket);
    if (found == held_.end()) return object("a snapshot is let go that is not held");
    const bool retired = found->of == open_ && open_.step == written_;
    held_.erase(found);
    if (retired) look_at_kept();
  } else if (const auto* x = std::get_if<checkpointing::written>(&a)) {
    written(*x);
  } else if (std::holds_alternative<checkpointing::flushed>(a)) {
    if (!flushing_ || flushed_) object("it says that it is flushed, without a request");
    flushed_ = true;
  }
}

std::uint64_t checkpoint_state::committed_by(std::int64_t step) const {
  return step > resumed_ && step <= committed_ ? by_[static_cast<std::size_t>(step - resumed_ - 1)]
                                               : 0;
}

bool checkpoint_state::is_committed(const checkpoint_origin& of) const {
  return (of.run == run_ && of.generation == committed_by(of.step)) ||
         std::ranges::find(given_up_, of) != given_up_.end();
}

// The checkpoints of this run's branch that the policy keeps, ascending.
std::vector<std::int64_t> checkpoint_state::keep() const {
  auto by_monitor = kept_;
  std::ranges::sort(by_monitor, {}, monitor_of);
  std::vector<std::int64_t> stay;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const auto rank = std::ranges::find(by_monitor, kept_[i]) - by_monitor.begin();
    if (kept_.size() - i <= static_cast<std::size_t>(std::max(1, options_->keep_last)) ||
        rank < options_->keep_best)
      stay.push_back(kept_[i]);
  }
  return stay;
}

void checkpoint_state::written(const checkpointing::written& what) {
  const auto name = checkpoint_folder_name(what.step);
  const auto of = whole(disk_, name);
  if (what.path != fmt::format("{}/{}", checkpoints_path, name) || !of)
    return object(fmt::format("step {} is reported as written, and is not there", what.step));
  if (!is_committed(*of)) return object(to_string(*of) + " is written, and was never committed");
  if (std::pair{of->generation, what.step} < std::pair{written_by_, written_})
    return object(fmt::format("step {} is written again", what.step));
  const auto names = names_on(disk_);
  if (names.latest != name)
    return object(fmt::format("step {} is written, and the latest is {}", what.step, names.latest));
  written_ = what.step;
  written_by_ = of->generation;
  std::erase_if(kept_, [&](auto step) { return step > what.step; });
  if (kept_.empty() || kept_.back() != what.step) kept_.push_back(what.step);
  kept_ = keep();
  if (!exact_ || (resumed_ == 0 && found_)) return;
  if (const auto best = *std::ranges::min_element(kept_, {}, monitor_of);
      what.best != fmt::format("{}/{}", checkpoints_path, checkpoint_folder_name(best)))
    object(fmt::format("the best is step {}, not {}", best, what.best));
}

// After the end of a write.
void checkpoint_state::look_at_kept() {
  if (!exact_) return;
  auto there = names_on(disk_).all;
  std::erase(there, latest_link);
  std::vector<std::string> should;
  for (const auto step : kept_) should.push_back(checkpoint_folder_name(step));
  if (resumed_ == 0 && found_) return;  // a new run keeps checkpoints that it finds
  if (there != should)
    object(fmt::format("after step {} there are {} checkpoints, and {} are to be kept", written_,
                       there.size(), should.size()));
}

std::optional<storage_op> checkpoint_state::next_operation() const {
  if (!in_flight_) return std::nullopt;
  return std::visit(
      [&](const auto& x) -> storage_op {
        if constexpr (std::is_same_v<decltype(x), const write_file&>)
          return storage_ops::write{x.path, {content_of(open_)}};
        else
          return x;
      },
      in_flight_->what);
}

// --- what may happen -----------------------------------------------------------------------------

void checkpoint_state::moves(std::vector<checkpoint_move>& to) const {
  to.clear();
  if (!flushing_) {
    if (offered_ < last_) to.push_back(checkpoint_move::offer);
    if (late_) to.push_back(checkpoint_move::offer_late);
    // Here the commit of a step may arrive before its snapshot, by one step at most.
    if (committed_ < std::min(offered_ + 1, last_)) to.push_back(checkpoint_move::commit);
    if (generation_ < options_->generations) {
      to.push_back(checkpoint_move::new_generation);
      if (fall_back_to() < committed_) to.push_back(checkpoint_move::fall_back);
    }
    to.push_back(checkpoint_move::flush);
  }
  if (!in_flight_) return;
  to.push_back(checkpoint_move::answer);
  if (failures_ >= options_->failures) return;
  to.push_back(checkpoint_move::refuse);
  to.push_back(checkpoint_move::fail_to_sync);
}

void checkpoint_state::make(checkpoint_move what) {
  switch (what) {
    case checkpoint_move::offer:
      offer({run_, generation_, ++offered_});
      if (offered_ == last_) last_by_ = generation_;
      break;
    case checkpoint_move::offer_late: offer(*std::exchange(late_, std::nullopt)); break;
    case checkpoint_move::commit: commit(); break;
    case checkpoint_move::new_generation: begin_generation(); break;
    case checkpoint_move::fall_back:
      for (; committed_ > fall_back_to(); --committed_) {
        given_up_.push_back({run_, by_.back(), committed_});
        by_.pop_back();
      }
      begin_generation();
      feed(checkpointing::committed{generation_id{generation_}, committed_});
      break;
    case checkpoint_move::flush:
      flushing_ = true;
      note("flush");
      feed(flush{});
      break;
    case checkpoint_move::answer: answer(kind::none); break;
    case checkpoint_move::refuse: answer(kind::error); break;
    case checkpoint_move::fail_to_sync: answer(kind::failed_sync); break;
  }
  check_rest();
}

void checkpoint_state::offer(const checkpoint_origin& of) {
  held_.push_back({++tickets_, of});
  note(to_string(of) + " is offered");
  feed(checkpointing::offered{tickets_, of.step, generation_id{of.generation}, of.step == last_,
                              true, monitor_of(of.step)});
}

// Where the run goes on when all of its ranks are lost.
std::int64_t checkpoint_state::fall_back_to() const { return std::max(written_, resumed_); }

void checkpoint_state::begin_generation() {
  if (offered_ < last_) late_ = {run_, generation_, offered_ + 1};
  ++generation_;
  offered_ = committed_;
  note(fmt::format("generation {} begins after step {}", generation_, committed_));
}

void checkpoint_state::commit() {
  ++committed_;
  by_.push_back(generation_);
  note(fmt::format("step {} is committed", committed_));
  feed(checkpointing::committed{generation_id{generation_}, committed_});
}

void checkpoint_state::answer(kind fault) {
  const auto operation = next_operation();
  const auto op = *std::exchange(in_flight_, std::nullopt);
  const auto text = text_of(op.what);
  if (fault != kind::none) ++failures_, exact_ = false;
  note(fault == kind::none ? text : fmt::format("{}: {}", text, to_string(fault)));
  if (fault != kind::error) {
    stable_hasher history;
    history.add(disk_history_).add(text).add(fault);
    if (std::holds_alternative<write_file>(op.what))
      history.add(open_.run).add(open_.generation).add(open_.step);
    disk_history_ = history.digest();
  }
  const auto result = disk_.perform(*operation, {fault});
  answered e{op.number, result.text, result.names};
  if (const auto* read = std::get_if<storage_ops::read>(&op.what); read && result.bytes) {
    const auto of = origin_in(disk_, read->path);
    e.has_monitor = of.has_value();
    if (of) e.monitor = monitor_of(of->step);
  }
  feed(e);
}

// --- what must hold ------------------------------------------------------------------------------

void checkpoint_state::check_rest() {
  if (in_flight_) return;
  for (const auto& h : held_)
    if (is_committed(h.of)) object(to_string(h.of) + " waits, and no operation is in progress");
}

void checkpoint_state::receive_late() {
  const auto before = machine_;
  const auto ignored = [&](const event& what, const char* name,
                           const std::vector<action>& answer = {}) {
    auto copy = machine_;
    if (copy.on(what) != answer || copy != before)
      object(fmt::format("{} changes something", name));
  };
  const auto number = in_flight_ ? in_flight_->number : std::uint64_t{0};
  if (number > 1) ignored(answered{number - 1, "late", {}}, "an answer to an earlier operation");
  ignored(answered{number + 1000, "", {}}, "an answer to no operation");
  if (committed_ > resumed_)
    ignored(committed{generation_id{committed_by(committed_)}, committed_}, "a repeated commit");
  if (tickets_ == 0 && committed_ == resumed_) return;  // no generation has begun
  constexpr std::uint64_t ticket = 1'000'000;
  ignored(offered{ticket, last_, generation_id{0}, true, true, 0},
          "a snapshot of an older generation", {drop{ticket}});
  ignored(committed{generation_id{0}, last_}, "a commit of an older generation");
}

void checkpoint_state::check_end() {
  if (!flushed_) return object("nothing is left to do, and it is not flushed");
  if (!held_.empty()) object(fmt::format("{} snapshots are held for ever", held_.size()));
  if (failures_ == 0 && committed_ == last_ && committed_by(last_) == last_by_ && written_ != last_)
    object(fmt::format("the last checkpoint is of step {}", written_));
  if (failures_ > 0 || generation_ > 1 || options_->keep_best == 0) return;
  for (auto step = resumed_ + 1; step <= std::min(offered_, committed_); ++step)
    if (std::ranges::none_of(kept_,
                             [&](std::int64_t one) { return monitor_of(one) <= monitor_of(step); }))
      object(fmt::format("step {} is better than all that is kept", step));
}

void checkpoint_state::look_at(const simulated_disk& left, const std::string& how) {
  const auto of = resolved(left);
  const bool old = written_ == 0 && of == found_;
  if (!old && !of) return object(how + ": no checkpoint is left");
  if (!old && of->run != run_) return object(how + ": it resolves to " + to_string(*of));
  if (!old && std::pair{of->generation, of->step} < std::pair{written_by_, written_})
    return object(fmt::format("{}: step {} was written, and it resolves to step {}", how, written_,
                              of->step));
  if (!old && !is_committed(*of))
    return object(
        fmt::format("{}: it resolves to {}, which was never committed", how, to_string(*of)));
  if (written_ == 0 || options_->keep_best == 0 || !exact_) return;
  const auto best = monitor_of(*std::ranges::min_element(kept_, {}, monitor_of));
  const auto names = names_on(left).all;
  if (std::ranges::none_of(names, [&](const auto& name) {
        const auto one = whole(left, name);
        return one && monitor_of(one->step) <= best;
      }))
    object(how + ": the best checkpoint is gone");
}

void checkpoint_state::take_next_step() {
  commit();
  offer({run_, generation_, ++offered_});
}

void checkpoint_state::check_next_step() {
  if (written_ != resumed_ + 1) object("the new run wrote nothing");
  for (const auto& name : names_on(disk_).all)
    if (name.starts_with(".")) object(name + " is never swept");
  const auto left = resolved(disk_.after_power_loss(0));
  if (!left || left->run != run_) object("power is lost again: the new checkpoint is gone");
}

std::uint64_t checkpoint_state::crash_digest() const {
  stable_hasher hash;
  hash.add(disk_history_).add(written_).add(written_by_).add(committed_).add(exact_);
  for (const auto by : by_) hash.add(by);
  for (const auto& of : given_up_) hash.add(of.generation).add(of.step);
  for (const auto step : kept_) hash.add(step);
  hash.add(in_flight_.has_value());
  if (in_flight_) hash.add(text_of(in_flight_->what));
  hash.add(open_.generation).add(open_.step);
  return hash.digest();
}

std::uint64_t checkpoint_state::digest() const {
  stable_hasher hash;
  hash.add(machine_.digest())
      .add(crash_digest())
      .add(offered_)
      .add(generation_)
      .add(failures_)
      .add(last_by_);
  hash.add(late_.has_value()).add(late_ ? late_->step : 0).add(flushing_).add(flushed_);
  for (const auto& h : held_) hash.add(h.ticket).add(h.of.generation).add(h.of.step);
  return hash.digest();
}

}  // namespace troupe::testing
