#include "tests/unit/actors/fit_drive.hpp"

#include <sstream>

namespace fit_drive {

using namespace troupe;

driver::driver(fit_plan plan, facts known, interfere more)
    : machine(std::move(plan)), facts_(std::move(known)), more_(std::move(more)) {}

struct driver::filer {
  driver& self;
  void operator()(fit_actions::run& a) const {
    if (self.run) throw internal_error("two runs in flight");
    if (a.hooks.empty()) throw internal_error("an empty run");
    self.runs.push_back(a.hooks.size());
    self.run.emplace(std::move(a));
  }
  void operator()(fit_actions::is_set_up&) const { self.set_up = true; }
  void operator()(fit_actions::vote& a) const { self.votes.push_back(a.step); }
  void operator()(fit_actions::step_finished& a) const { self.steps.push_back(a.step); }
  void operator()(fit_actions::metrics_known& a) const { self.known.push_back(std::move(a)); }
  void operator()(fit_actions::finished& a) const {
    if (self.end) throw internal_error("finished twice");
    self.end.emplace(std::move(a));
  }
};

void driver::give(const fit_event& event) {
  for (auto& action : machine.on(event)) std::visit(filer{*this}, action);
}

hook_outcome driver::outcome_of(const hook& h) const {
  hook_outcome out;
  const auto lengths = [&](stage s, const std::vector<std::int64_t>& batches) {
    for (std::size_t i = 0; i < batches.size(); ++i)
      out.loaders.push_back({s, static_cast<std::int32_t>(i), batches[i], 10 * batches[i]});
  };
  const auto& at = where(h);
  if (h.is<hooks::process_dataloader>() && at.dataloader == 0) {
    if (at.stage == stage::train) lengths(stage::train, {facts_.train});
    if (at.stage == stage::validate) lengths(stage::validate, facts_.val);
    if (at.stage == stage::test || at.stage == stage::predict) lengths(at.stage, facts_.test);
  }
  if (h.is<hooks::setup_optimizers>()) out.optimizers = facts_.optimizers;
  if (h.is<hooks::load_checkpoint>() && facts_.restored) out.restored = *facts_.restored;
  if (h.is<hooks::on_validation_epoch_end>()) out.logged = facts_.validation;
  if (h.is<hooks::optimizer_step>()) out.samples = 7;
  if (h.is<hooks::tbptt_split_batch>())
    out.splits = facts_.splits[static_cast<std::size_t>(at.batch) % facts_.splits.size()];
  if (more_) more_(h, out);
  return out;
}

void driver::handled(const hook& h) {
  hooks.push_back(h);
  if (const auto* save = h.get_if<hooks::save_checkpoint>()) snapshots.push_back(save->loop);
}

bool driver::answer() {
  if (!run) return false;
  const auto now = std::move(*run);
  run.reset();
  fit_events::ran answer;
  for (const auto& h : now.hooks) {
    handled(h);
    ++answer.handled;
    answer.outcome.merge(outcome_of(h));
    if (answer.outcome.verdict == run_verdict::skip_epoch) break;
  }
  give(answer);
  return true;
}

void driver::cut(std::uint32_t n) {
  const auto now = std::move(*run);
  run.reset();
  fit_events::ran answer;
  for (; answer.handled < n; ++answer.handled) {
    handled(now.hooks[answer.handled]);
    answer.outcome.merge(outcome_of(now.hooks[answer.handled]));
  }
  answer.outcome.verdict = run_verdict::attention;
  give(answer);
}

void driver::interrupt(std::uint32_t n) {
  std::vector<fit_action> out;
  if (run) {
    const auto now = std::move(*run);
    run.reset();
    hook_outcome outcome;
    std::uint32_t handled = 0;
    for (; handled < std::min<std::size_t>(n, now.hooks.size()); ++handled) {
      this->handled(now.hooks[handled]);
      outcome.merge(outcome_of(now.hooks[handled]));
    }
    if (handled < now.hooks.size()) outcome.verdict = run_verdict::failed;
    machine.settle(handled, outcome, out);
  }
  for (auto& action : out)
    if (!std::holds_alternative<fit_actions::finished>(action)) std::visit(filer{*this}, action);
  end.reset();
  machine.rewind();
}

std::string names(const std::vector<hook>& hooks) {
  std::string text;
  for (const auto& h : hooks) text += (text.empty() ? "" : " ") + std::string{name(h)};
  return text;
}

std::vector<std::string> lines(const std::vector<hook>& hooks) {
  std::vector<std::string> out;
  for (const auto& h : hooks) {
    std::ostringstream line;
    line << h;
    out.push_back(line.str());
  }
  return out;
}

driver run_through(const fit_plan& plan, const facts& known, const interfere& more) {
  driver d{plan, known, more};
  d.begin();
  d.drain();
  return d;
}

}  // namespace fit_drive
