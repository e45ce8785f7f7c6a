// The fault injector of a run: applies scheduled faults.
#include "apps/testing/job_attempts.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <stdexcept>

#include "apps/testing/message_text.hpp"

namespace troupe::testing {

namespace {

// Hooks in which a throw can be injected, in the order of a run.
const std::vector<std::string_view>& throwing_hooks() {
  static const std::vector<std::string_view> all{"training_step",
                                                 "setup",
                                                 "on_train_batch_start",
                                                 "backward",
                                                 "optimizer_step",
                                                 "on_train_batch_end",
                                                 "on_train_start",
                                                 "on_train_epoch_start",
                                                 "on_train_epoch_end",
                                                 "save_checkpoint",
                                                 "load_checkpoint",
                                                 "on_fit_start",
                                                 "on_fit_end",
                                                 "post_dispatch",
                                                 "teardown",
                                                 "on_exception",
                                                 "barrier",
                                                 "model_to_device",
                                                 "optimizer_zero_grad",
                                                 "configure_model"};
  return all;
}

// Ranks beside the supervisor have neither a link nor a process of their own.
bool needs_process(fault what) {
  return what == fault::cut || what == fault::one_way_cut || what == fault::disconnect ||
         what == fault::slow_reader || what == fault::leave;
}

}  // namespace

nanoseconds job_run::storage_cost() {
  return std::chrono::microseconds{200} + simulation_.lateness(0, std::chrono::microseconds{500});
}

storage_fault job_run::storage_fault_now(const storage_op& op) {
  const auto f = draw_storage_fault(simulation_.draws(), now_);
  durability_.meets(op, f);
  if (f.what == storage_fault::kind::none) return f;
  const auto which = static_cast<fault>(static_cast<std::size_t>(fault::storage_error) +
                                        static_cast<std::size_t>(f.what) - 1);
  ++report_.faults[static_cast<std::size_t>(which)];
  facts_.storage.add(which);
  if (which == fault::storage_slow) facts_.delayed += f.lasts;
  if (which == fault::storage_hang) facts_.delayed += derive(job_.options().time).flush;
  simulation_.note(-1, static_cast<std::int32_t>(sim_job_.supervisor_node()),
                   [&] { return "fault: " + std::string{to_string(which)}; });
  return f;
}

bool job_run::poison_gradient(const learner_context& context) {
  if (context.job != sim_job_.running() || std::erase(poisoned_, context.rank) == 0) return false;
  ++report_.faults[static_cast<std::size_t>(fault::not_a_number)];
  facts_.applied.push_back(fault::not_a_number);
  simulation_.note(0, -1,
                   [&] { return "NaN in a gradient of rank " + std::to_string(context.rank); });
  return true;
}

void job_run::maybe_throw(const learner_context& context, const hook& h) {
  if (context.job != sim_job_.running()) return;
  const auto found = std::ranges::find_if(
      armed_, [&](const armed_throw& a) { return a.rank == context.rank && a.hook == name(h); });
  if (found == armed_.end()) return;
  const auto what = *found;
  armed_.erase(found);
  const auto kind = what.memory ? fault::out_of_memory : fault::throw_in_hook;
  ++report_.faults[static_cast<std::size_t>(kind)];
  facts_.applied.push_back(kind);
  const auto* life = sim_job_.life_at(simulation_.here(), what.rank);
  facts_.thrown.push_back({what.rank, std::string{what.hook}, where(h).step,
                           what.memory ? "std::bad_alloc" : "std::domain_error",
                           what.memory ? "std::bad_alloc" : what.text,
                           life ? life->generation : 0});
  note_fault(life ? life->node : sim_job_.supervisor_node(),
             [&] { return std::string{to_string(kind)} + " in " + std::string{what.hook}; });
  if (what.memory) throw std::bad_alloc{};
  throw std::domain_error{what.text};
}

// A rank that is very slow may outlive its generation, and be overdue in the next one again.
void job_run::know_delays() {
  if (facts_.any({fault::slow}))
    facts_.delayed += job_.hook_limit * std::max(0, checker_.generations() - 1);
}

// Adds the ranks that lived in a process with a fault, before or after the fault.
void job_run::know_ranks() {
  for (const auto& life : sim_job_.lives())
    if (life.job == sim_job_.running() &&
        std::ranges::find(facts_.nodes, life.node) != facts_.nodes.end())
      facts_.ranks.push_back(life.rank);
}

void job_run::install_message_filter() {
  sim_job_.message_filter = [this](std::int32_t rank, bool to_supervisor, const link_message& what,
                                   const caf::strong_actor_ptr& to) {
    if (to_supervisor) checker_.reported(what);
    if (!exist_.has(fault::stale_message)) return false;
    const auto* life = to_supervisor ? nullptr : sim_job_.life_of(rank);
    stale_messages_.pass(rank, to_supervisor, life ? life->node : sim_job_.supervisor_node(), what,
                         to);
    return false;
  };
}

// A receiver must ignore stale messages. So they are not added to `facts_`, and each oracle expects
// the same as without them.
void job_run::arm_stale_messages() {
  stale_messages_.attempt_begins(
      {now_.stale_messages_per_million, length(longest),
       [this](simulation::node_id to, const link_message& what) {
         ++report_.faults[static_cast<std::size_t>(fault::stale_message)];
         simulation_.note(-1, static_cast<std::int32_t>(to),
                          [&] { return "fault: old_word " + short_text(what); });
       }});
}

// --- applying ------------------------------------------------------------------------------------

void job_run::apply_due_faults() {
  const coverage_scope no_sink{nullptr};  // done by the simulator, not by code under test
  const not_delivering own;
  const auto events = simulation_.events() - began_events_;
  const auto time = static_cast<std::uint64_t>(simulation_.time().count() - began_);
  for (std::size_t i = 0; i < waiting_faults_.size();) {
    const auto& s = waiting_faults_[i];
    if (s.moment > (s.by_event ? events : time)) {
      ++i;
      continue;
    }
    const auto what = s;
    waiting_faults_.erase(waiting_faults_.begin() + static_cast<std::ptrdiff_t>(i));
    apply_fault(what);
  }
}

// Returns the moment before which no fault in `waiting_faults_` is due.
simulation::moment job_run::next_fault() const {
  simulation::moment next{std::numeric_limits<std::uint64_t>::max(),
                          std::numeric_limits<std::int64_t>::max()};
  for (const auto& s : waiting_faults_)
    if (s.by_event)
      next.event = std::min(next.event, began_events_ + s.moment);
    else
      next.time = std::min(next.time, began_ + static_cast<std::int64_t>(s.moment));
  return next;
}

void job_run::record_fault(fault what, simulation::node_id where) {
  ++report_.faults[static_cast<std::size_t>(what)];
  note_fault(where, [&] { return std::string{to_string(what)}; });
}

// Upper bound for detecting a failure, closing the generation and shutting down.
nanoseconds job_run::shutdown_time() const {
  const auto limits = derive(job_.options().time);
  return limits.detect * 2 + limits.settle + limits.close + limits.teardown +
         std::chrono::seconds{1};
}

void job_run::apply_fault(const scheduled_fault& s) {
  const auto applied = [&] {
    facts_.applied.push_back(s.what);
    record_fault(s.what, sim_job_.supervisor_node());
  };
  switch (s.what) {
    case fault::crash_supervisor:
    case fault::power_loss:
      applied();
      if (s.what == fault::power_loss)
        disk_->crash(s.amount, [&](std::size_t i) { return (s.where >> (i % 32) & 1) != 0; });
      else
        disk_->kill(s.amount);
      return sim_job_.crash_program(s.what == fault::power_loss);
    case fault::stop:
      applied();
      return caf::anon_send(sim_job_.supervisor(),
                            caller_request{request_stop{stop_reason::caller}});
    case fault::abort:
      applied();
      return caf::anon_send(sim_job_.supervisor(),
                            caller_request{request_abort{"the operator aborted"}});
    case fault::scale:
      applied();
      checker_.change_requested();
      // Two of these numbers are refused: none, and more than there are ranks.
      return caf::anon_send(sim_job_.supervisor(),
                            caller_request{request_scale{static_cast<std::int32_t>(
                                s.where % (static_cast<std::uint64_t>(job_.ranks) + 2))}});
    case fault::not_a_number: poisoned_.push_back(s.rank); return;
    case fault::throw_in_hook:
    case fault::out_of_memory: {
      const auto& hooks = throwing_hooks();
      armed_.push_back({s.rank, hooks[s.where % hooks.size()], s.what == fault::out_of_memory,
                        "injected " + std::to_string(s.where)});
      return;
    }
    default: break;
  }
  if (!simulation_.alive(sim_job_.supervisor_node())) return;
  const auto whom = applies_to(s.what, s.whom) ? s.whom : target::rank;
  if (whom == target::program) return apply_to_program(s);
  if (whom == target::test_node && apply_to_test_node(s)) return;
  if (whom == target::rank && s.where % 8 == 7 && apply_to_idle_process(s)) return;
  auto* life = sim_job_.life_of(s.rank);
  if (!life || !simulation_.alive(life->node)) return;
  if (needs_process(s.what) && !life->process) return;  // it runs in the supervisor's process
  record_fault(s.what, life->node);
  facts_.applied.push_back(s.what);
  const bool all = whom == target::host || s.what == fault::crash_host;
  const auto host = simulation_.host_of(life->node);
  apply_to_ranks(s, life->node, all);
  if (!all) return;
  for (const auto& p : sim_job_.idle_processes())
    if (simulation_.host_of(p->node()) == host) apply_to_process(s, *p);
  for (const auto p : sim_job_.test_nodes())
    if (simulation_.host_of(p) == host)
      s.what == fault::crash_host ? simulation_.crash(p) : disturb_node(s, p);
}

// To all ranks of the process, or of its host.
void job_run::apply_to_ranks(const scheduled_fault& s, simulation::node_id node, bool all) {
  const auto host = simulation_.host_of(node);
  std::vector<rank_incarnation*> hit;
  for (std::int32_t r = 0; r < job_.ranks; ++r) {
    auto* one = sim_job_.life_of(r);
    if (one && simulation_.alive(one->node) &&
        (one->node == node || (all && simulation_.host_of(one->node) == host)))
      hit.push_back(one);
  }
  std::vector<simulation::node_id> done;
  for (auto* one : hit) {
    facts_.ranks.push_back(one->rank);
    const auto delayed = facts_.delayed;
    if (!one->process || s.what == fault::slow || s.what == fault::data_cut)
      apply_to_rank(s, *one);
    else if (std::ranges::find(done, one->node) == done.end())
      apply_to_process(s, *one->process);
    done.push_back(one->node);
    if (one->rank != s.rank) facts_.delayed = delayed;  // all are delayed at the same time
  }
}

// One without ranks. False: there is none, or the fault needs a rank.
bool job_run::apply_to_idle_process(const scheduled_fault& s) {
  const auto idle = sim_job_.idle_processes();
  const bool needs_rank =
      s.what == fault::slow || s.what == fault::data_cut || s.what == fault::crash_host;
  if (idle.empty() || needs_rank) return false;
  auto& chosen = *idle[s.where / 8 % idle.size()];
  record_fault(s.what, chosen.node());
  facts_.applied.push_back(s.what);
  apply_to_process(s, chosen);
  return true;
}

// Ranks that come to the process later are concerned, too.
void job_run::apply_to_process(const scheduled_fault& s, simulated_process& process) {
  if (s.what != fault::leave) facts_.nodes.push_back(process.node());
  switch (s.what) {
    case fault::crash_rank: return process.die(false);
    case fault::crash_host: return process.die(true);
    case fault::cut:
    case fault::one_way_cut: return cut(s, process.stream());
    case fault::disconnect: return process.stream()->disconnect();
    case fault::slow_reader: return read_slowly(s, process.stream());
    case fault::leave:
      if (process.leave()) checker_.change_requested();
      return;
    default: return disturb_node(s, process.node());
  }
}

void job_run::apply_to_rank(const scheduled_fault& s, rank_incarnation& life) {
  const auto lasts = length(s.amount);
  const auto rank = life.rank;
  switch (s.what) {
    case fault::crash_rank:
    case fault::crash_host: sim_job_.crash(rank, s.what == fault::crash_host); break;
    case fault::slow: {
      const bool very = s.amount >= 12;  // each hook exceeds its limit
      if (very && s.where % 2 == 1) {    // by so little that its rank may end it before a look
        life.longest = job_.hook_limit + job_.detect * static_cast<std::int64_t>(s.where / 2 % 16);
        facts_.delayed += life.longest * job_.steps * job_.accumulate;
      }
      life.slow_per_cent = very ? 1'000'000 : static_cast<std::int64_t>(200 + 400 * s.amount);
      facts_.delayed += very ? job_.hook_limit : span_ * job_.accumulate * life.slow_per_cent / 100;
      break;
    }
    case fault::data_cut:
      facts_.delayed += lasts * 2;
      sim_job_.fabric().cut(rank, true);
      heal_later(lasts * 2, [this, rank] { sim_job_.fabric().cut(rank, false); });
      break;
    default: disturb_node(s, life.node); break;
  }
}

void job_run::cut(const scheduled_fault& s, const std::shared_ptr<simulated_stream>& link) {
  const auto lasts = length(s.amount);
  facts_.delayed += lasts;
  using cut_of = simulated_stream::cut_of;
  const auto one_way = s.where % 2 == 0 ? cut_of::near_to_far : cut_of::far_to_near;
  link->cut(s.what == fault::cut ? cut_of::both : one_way);
  heal_later(lasts, [link] { link->cut(cut_of::none); });
}

// Most often the supervisor's end, which receives more. It reads up to 15 messages in all. The
// other end's path takes fewer bytes, and its queue fewer messages.
void job_run::read_slowly(const scheduled_fault& s, const std::shared_ptr<simulated_stream>& link) {
  constexpr std::array<std::size_t, 4> bytes{65536, 4096, 512, 0};
  constexpr std::array<std::size_t, 4> messages{8192, 64, 16, 4};
  const auto lasts = length(s.amount);
  const simulated_stream::side at = s.where % 4 == 1 ? 1 : 0;
  const auto reads = static_cast<std::int64_t>(s.where / 2 % 16);
  facts_.delayed += lasts;
  link->read_slowly(at, {lasts / (1 + reads), bytes[s.where / 32 % bytes.size()],
                         messages[s.where / 128 % messages.size()]});
  heal_later(lasts, [link, at] { link->read_as_before(at); });
}

// Faults that apply to any process.
void job_run::disturb_node(const scheduled_fault& s, simulation::node_id where) {
  const auto amount = static_cast<std::int32_t>(s.amount);
  switch (s.what) {
    case fault::pause:
      facts_.delayed += length(s.amount);
      simulation_.pause(where, simulation_.time() + length(s.amount));
      break;
    case fault::skew: {
      const auto per_mille = (s.where % 2 == 0 ? 20 : -20) * (amount + 1);
      facts_.delayed += std::chrono::seconds{1};
      // With a slow clock the hook limit is noticed late.
      if (per_mille < 0) facts_.delayed += job_.hook_limit * -per_mille / (1000 + per_mille);
      simulation_.skew(where, per_mille);
      break;
    }
    case fault::late_timers:
      facts_.delayed += std::chrono::seconds{1};
      simulation_.late_timers(where, std::chrono::milliseconds{20} * (amount + 1));
      break;
    default: break;
  }
}

// Applies the fault to the whole process: the supervisor, the observers and the ranks beside it. It
// may cost links to any rank and make any deadline pass.
void job_run::apply_to_program(const scheduled_fault& s) {
  record_fault(s.what, sim_job_.supervisor_node());
  facts_.applied.push_back(s.what);
  facts_.program = true;
  for (const auto where : sim_job_.program()) disturb_node(s, where);
  if (s.what == fault::skew) facts_.delayed += shutdown_time() / 2;
  if (s.what != fault::slow) return;
  const auto each =
      std::chrono::milliseconds{4} * static_cast<std::int64_t>(s.amount + 1) / (16 * job_.ranks);
  simulation_.slow(sim_job_.supervisor_node(), each);
  facts_.delayed += each * static_cast<std::int64_t>(events_) * 2;
}

// The product never waits for a test's node, so this fault excuses no oracle.
bool job_run::apply_to_test_node(const scheduled_fault& s) {
  const auto there = sim_job_.test_nodes();
  if (there.empty()) return false;
  const auto where = there[static_cast<std::size_t>(s.rank) % there.size()];
  const auto before = facts_;
  if (s.what == fault::crash_rank) {
    sim_job_.crash_test_node(where);
  } else if (s.what == fault::cut || s.what == fault::one_way_cut || s.what == fault::disconnect) {
    bool any = false;
    for (const auto& l : sim_job_.own_links()) {
      if (!l->stream()->reaches(where)) continue;
      any = true;
      s.what == fault::disconnect ? l->stream()->disconnect() : cut(s, l->stream());
    }
    if (!any) return false;
  } else {
    disturb_node(s, where);
  }
  facts_ = before;
  record_fault(s.what, where);
  return true;
}

}  // namespace troupe::testing
