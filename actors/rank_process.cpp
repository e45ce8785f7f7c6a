#include "actors/rank_process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "actors/observer.hpp"
#include "actors/process_parts.hpp"
#include "actors/rank.hpp"
#include "actors/snapshot_sender.hpp"
#include "backends/launcher.hpp"
#include "backends/remote_trace.hpp"
#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace {

// How tensors in the arguments of those functions are read.
const tensor_bytes* tensors_of(const std::vector<named_function>& functions) {
  const auto found =
      std::ranges::find_if(functions, [](const auto& f) { return f.tensors() != nullptr; });
  return found != functions.end() ? found->tensors() : nullptr;
}

// Sends observations to the observers in the supervisor's process. Progress and hooks may be
// dropped.
class far_observer : public observer {
public:
  far_observer(link& to, bool hooks, std::shared_ptr<dropped_observations> dropped)
      : to_(to), hooks_(hooks), dropped_(std::move(dropped)) {}
  bool wants_hooks() const override { return hooks_; }
  void on(const observation& what) override {
    const bool may_go = std::holds_alternative<seen::progress>(what) || is_detail(what);
    const bool sent = to_.send(observed{what}, may_go ? keep::if_room : keep::always);
    if (sometimes(!sent, coverage_point::observation_not_sent)) dropped_->add(what);
  }

private:
  link& to_;
  bool hooks_;
  std::shared_ptr<dropped_observations> dropped_;
};

// What the supervisor's proxy monitors; complete before the proxy receives begin_job.
struct watched {
  rank_actor rank;
  std::optional<listed_observer> observer;
  /// Observations that the observer's actor dropped before a half-full link; complete when it
  /// ended.
  std::shared_ptr<dropped_observations> dropped = std::make_shared<dropped_observations>();
  checkpointer_actor checkpointer;  ///< may be invalid
  std::int32_t number = 0;          ///< the rank's
  incarnation_id incarnation;
  std::atomic<bool> ended{false};  ///< rank_ended is sent
};

// The supervisor's proxy in a rank's process: sends the rank's reports over the link. The last
// report waits until all snapshots and observations are sent, because the supervisor ignores what
// follows.
struct supervisor_proxy;
using proxy_pointer = supervisor_actor::stateful_pointer<supervisor_proxy>;

struct supervisor_proxy {
  static constexpr const char* name = "rank_process";

  proxy_pointer self = nullptr;
  link* control = nullptr;
  std::shared_ptr<watched> all;
  caf::actor_addr rank;
  bool rank_lives = true;
  int others = 0;  // observer and checkpointer, as long as they run
  std::string rank_why;
  generation_id finished;  // whose rank_finished is sent
  std::optional<torn_down> last_report;

  void watch();
  void down(const caf::actor_addr& who, const std::string& why);
  void finish(const rank_finished& m);
  void torn(const torn_down& m);
  void queue(const queue_value& m);
  void not_sent(const fence& at);
  void flush_others();
  void say_dropped();
  void go_on_ending();

  void report(link_message m) { control->send(std::move(m)); }
};

void supervisor_proxy::watch() {
  rank = all->rank.address();
  self->monitor(all->rank);
  if (all->observer) {
    ++others;
    self->monitor(all->observer->actor);
  }
  if (all->checkpointer) {
    ++others;
    self->monitor(all->checkpointer);
  }
}

void supervisor_proxy::queue(const queue_value& m) {
  try {
    report(m);
  } catch (const user_error&) {
    not_sent(m.at);
  }
}

// In a handler: a value that cannot be encoded is the rank's failure.
void supervisor_proxy::not_sent(const fence& at) {
  caught why{describe(std::current_exception()), std::current_exception()};
  why.record.rank = all->number;
  why.record.generation = at.generation.value();
  report(rank_failed{at, std::make_shared<const caught>(std::move(why))});
}

// A rank that is asked again repeats its report, with the whole state. The link loses nothing, so
// the repetition would only arrive after the first one.
void supervisor_proxy::finish(const rank_finished& m) {
  if (std::exchange(finished, m.at.generation) != m.at.generation) report(m);
}

void supervisor_proxy::torn(const torn_down& m) {
  last_report = m;
  flush_others();
  go_on_ending();
}

void supervisor_proxy::down(const caf::actor_addr& who, const std::string& why) {
  if (who == rank) {
    rank_lives = false;
    rank_why = why;
    flush_others();
  } else {
    --others;
    if (all->observer && who == all->observer->actor.address()) say_dropped();
  }
  go_on_ending();
}

void supervisor_proxy::flush_others() {
  if (all->observer) self->send(all->observer->actor, flush{});
  if (all->checkpointer) self->send(all->checkpointer, flush{});
}

void supervisor_proxy::say_dropped() {
  auto count = *all->dropped;
  count.add(all->observer->queue->dropped());
  if (count.all() > 0) report(count);
}

void supervisor_proxy::go_on_ending() {
  if (others > 0) return;
  if (auto m = std::exchange(last_report, std::nullopt)) {
    try {
      report(*m);
    } catch (const user_error&) {
      not_sent(m->at);
      m->result = {};
      report(*std::move(m));
    }
  }
  if (rank_lives) return;
  all->ended = true;
  report(rank_ended{all->incarnation, rank_why});
  self->quit();
}

seam::one_way_handlers<supervisor_actor> behaviour(proxy_pointer self) {
  auto& s = self->state;
  return {
      [&s](begin_job) { s.watch(); },
      [&s](const prepared& m) { s.report(m); },
      [&s](const step_done& m) { s.report(m); },
      [&s](const stop_vote& m) { s.report(m); },
      [&s](const rank_finished& m) { s.finish(m); },
      [&s](const rank_failed& m) { s.report(m); },
      [&s](const queue_value& m) { s.queue(m); },
      [&s](const closed_generation& m) { s.report(m); },
      [&s](const rank_busy& m) { s.report(m); },
      [&s](const torn_down& m) { s.torn(m); },
      [](const checkpoint_report&) {},
      [](const flushed&) {},
      [](const process_changed&) {},
      [](const caller_request&) {},
      [](const deadline_passed&) {},
  };
}

supervisor_actor spawn_home(caf::actor_system& system, link& control,
                            std::shared_ptr<watched> all) {
  return seam::spawn<supervisor_actor, supervisor_proxy>(
      system, {}, [&control, all](proxy_pointer self) -> seam::one_way_handlers<supervisor_actor> {
        auto& s = self->state;
        s.self = self;
        s.control = &control;
        s.all = all;
        seam::on_down(*self,
                      [&s](const caf::actor_addr& who, std::string why) { s.down(who, why); });
        return behaviour(self);
      });
}

struct far_checkpointer_state {
  static constexpr const char* name = "far_checkpointer";
  std::optional<snapshot_sender> sender;
};

checkpointer_actor far_checkpointer(caf::actor_system& system, link& control,
                                    const checkpoint_policy& policy) {
  return seam::spawn<checkpointer_actor, far_checkpointer_state>(
      system, {},
      [&control, policy](checkpointer_actor::stateful_pointer<far_checkpointer_state> self)
          -> seam::one_way_handlers<checkpointer_actor> {
        auto& sender = self->state.sender;
        sender.emplace(control, policy);
        return {
            [&sender](const write_checkpoint& m) { sender->send(m); },
            [](const step_committed&) {},
            [](const storage_answered&) {},
            [self](const flush&) { self->quit(); },
        };
      });
}

}  // namespace

struct rank_host::inside {
  // A rank that lives here, or has lived here.
  struct resident {
    std::shared_ptr<watched> all;
    supervisor_actor stand_in;  // keeps the proxy alive: CAF ends actors without strong references
  };

  launcher_client& parent;
  caf::actor_system& system;
  process_parts parts;
  std::map<incarnation_id, resident> residents;
  std::shared_ptr<trace_gate> gate;  // null where nothing may wait

  std::shared_ptr<const job> job_of(const rank_spec& brief);
  void settle(const rank_spec& brief);

  template <class T>
  void pass(T& m) {
    if constexpr (std::is_same_v<T, form_generation> || std::is_same_v<T, activate_generation> ||
                  std::is_same_v<T, propose_stop> || std::is_same_v<T, stop_at> ||
                  std::is_same_v<T, close_generation> || std::is_same_v<T, tear_down>) {
      constexpr bool ends = std::is_same_v<T, close_generation> || std::is_same_v<T, tear_down>;
      if (gate && ends) gate->open();
      if (gate && std::is_same_v<T, activate_generation>) gate->close();
      const auto to = residents.find(m.at.incarnation);
      if (to != residents.end()) caf::anon_send(to->second.all->rank, std::move(m));
    } else if constexpr (std::is_same_v<T, hooks_traced>) {
      if (gate) gate->traced(m);
    }
  }
};

std::shared_ptr<const job> rank_host::inside::job_of(const rank_spec& brief) {
  auto what = std::make_shared<job>();
  what->purpose = brief.purpose;
  what->options = brief.options;
  what->recipe = parts.recipe(brief);
  if (!brief.resume.empty()) what->resume = brief.resume;
  what->initial = brief.initial;
  what->trace = [parent = &parent, traced = brief.traced, gate = gate](std::int32_t rank,
                                                                       const hook& h) {
    parent->enter(rank, h);
    if (!traced) return;
    if (gate) gate->enter();
    parent->control().send(hook_entered{rank, h});
  };
  return what;
}

void rank_host::inside::settle(const rank_spec& brief) {
  const auto [at, added] = residents.try_emplace(brief.incarnation);
  if (!added) return;
  auto& [all, stand_in] = at->second;
  all = std::make_shared<watched>();
  all->number = brief.rank;
  all->incarnation = brief.incarnation;
  rank_setup setup;
  setup.plan = {brief.job, brief.rank, brief.incarnation,
                make_plan(brief.options, brief.purpose, brief.resume), derive(brief.options.time)};
  setup.what = job_of(brief);
  auto place = parts.meet(brief, parent.descriptors());
  setup.world = std::move(place.world);
  setup.communicators = std::move(place.communicators);
  parent.carry(setup.what->recipe->tensors());
  auto& control = parent.control();
  setup.supervisor = spawn_home(system, control, all);
  if (brief.checkpoints)
    all->checkpointer = far_checkpointer(system, control, brief.options.checkpoint);
  setup.checkpointer = all->checkpointer;
  if (brief.watched) {
    const auto make = [&control, hooks = brief.hooks, dropped = all->dropped] {
      return std::make_unique<far_observer>(control, hooks, dropped);
    };
    all->observer = spawn_observer(system, {}, make, setup.supervisor);
    setup.observers.add(*all->observer);
    setup.show = [&control](const seen::metrics& what) { control.send(observed{what}); };
  }
  stand_in = setup.supervisor;
  all->rank = spawn_rank(system, {}, std::move(setup));
  caf::anon_send(stand_in, begin_job{});
}

rank_host::rank_host(launcher_client& parent, const rank_process_options& home,
                     caf::actor_system& system)
    : inside_(new inside{parent,
                         system,
                         process_parts{home},
                         {},
                         parent.has_threads() ? std::make_shared<trace_gate>() : nullptr}) {
  // In a simulation no warm-up takes time.
  parent.control().send(process_ready{.warm = !parent.has_threads()});
}

rank_host::~rank_host() {
  for (const auto& [id, one] : inside_->residents)
    if (!one.all->ended) caf::anon_send_exit(one.stand_in, caf::exit_reason::user_shutdown);
}

void rank_host::receive(link_message&& what) {
  if (const auto* brief = std::get_if<rank_spec>(&what)) return inside_->settle(*brief);
  if (const auto* needs = std::get_if<warm_up>(&what)) {
    inside_->parts.warm(*needs);
    if (inside_->parent.has_threads()) inside_->parent.control().send(process_ready{.warm = true});
    return;
  }
  std::visit([this](auto& order) { inside_->pass(order); }, what);
}

bool rank_host::ended() const {
  const auto over = [](const auto& one) { return one.second.all->ended.load(); };
  return std::ranges::all_of(inside_->residents, over);
}

namespace {

void check_names(const rank_process_options& home) {
  std::set<std::string> names;
  for (const auto& one : home.functions)
    if (!names.insert(one.name()).second)
      throw user_error(errc::bad_usage,
                       fmt::format("rank_process_options::functions has \"{}\" twice: give each "
                                   "function a name of its own",
                                   one.name()));
}

// The ranks of a process get the same ports.
rank_process_options with_shared_ports(rank_process_options home) {
  home.world = [make = home.world, made = std::make_shared<std::optional<ports>>()] {
    if (!*made) *made = make();
    return **made;
  };
  return home;
}

void live(launcher_client& parent, const rank_process_options& by) {
  const auto home = with_shared_ports(by);
  seam::system_config config(2);
  caf::actor_system system(config);
  parent.carry(tensors_of(home.functions));
  rank_host here(parent, home, system);
  const bool closed = parent.serve([&here](link_message&& m) { here.receive(std::move(m)); });
  // The supervisor has given this rank up, and its lane may still run user code: end without
  // cleanup.
  if (!closed || !here.ended()) std::_Exit(1);
}

}  // namespace

int run_placed_rank(std::int32_t rank, const std::string& join_info,
                    const rank_process_options& home) {
  bool has_lived = false;
  try {
    while (const auto parent = placed_client(rank, join_info)) {
      has_lived = true;
      live(*parent, home);
    }
    return 0;
  } catch (const user_error&) {
    if (!has_lived) throw;
    return 1;  // the first process has reported why
  }
}

std::optional<int> run_rank_if_child(int count, const char* const* arguments,
                                     const rank_process_options& home) {
  check_names(home);
  const auto parent = launcher_client_of(count, arguments);
  if (!parent) return std::nullopt;
  live(*parent, home);
  return 0;
}

}  // namespace troupe
