#include "actors/rank_process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "actors/job_check.hpp"
#include "actors/observer.hpp"
#include "actors/rank.hpp"
#include "actors/snapshot_sender.hpp"
#include "backends/launcher.hpp"
#include "backends/remote_trace.hpp"
#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace {

// In place of a recipe that could not be made: the rank fails where its learner is made.
class no_recipe : public learner_recipe {
public:
  explicit no_recipe(std::exception_ptr why) : why_(std::move(why)) {}
  std::unique_ptr<learner> make(const learner_context&) const override {
    std::rethrow_exception(why_);
  }

private:
  std::exception_ptr why_;
};

// In place of a communicator that could not be joined: the rank fails when it opens it.
class no_communicator : public communicator_backend {
public:
  explicit no_communicator(std::exception_ptr why) : why_(std::move(why)) {}
  std::string_view name() const override { return "none"; }
  std::string unusable() const override { return "the ranks' processes could not connect"; }
  std::shared_ptr<communicator> open(const group_description&) override {
    std::rethrow_exception(why_);
  }

private:
  std::exception_ptr why_;
};

const named_function* function_of(const rank_process_options& home, const std::string& identity) {
  const auto found = std::ranges::find(home.functions, identity, &named_function::identity);
  return found != home.functions.end() ? &*found : nullptr;
}

// How tensors in the arguments of those functions are read.
const tensor_bytes* tensors_of(const std::vector<named_function>& functions) {
  const auto found =
      std::ranges::find_if(functions, [](const auto& f) { return f.tensors() != nullptr; });
  return found != functions.end() ? found->tensors() : nullptr;
}

recipe_ptr recipe_of(const rank_process_options& home, const std::string& text) {
  try {
    auto made = home.recipe ? home.recipe(text) : nullptr;
    if (!made)
      throw user_error(errc::bad_configuration,
                       "the program's run_rank_if_child has no recipe for its ranks");
    return made;
  } catch (...) {
    return std::make_shared<no_recipe>(std::current_exception());
  }
}

[[noreturn]] void refuse_call(const rank_process_options& home, const std::string& identity) {
  std::string known;
  for (const auto& one : home.functions)
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", one.name());
  throw user_error(errc::bad_configuration,
                   fmt::format("the program's run_rank_if_child does not know the {}: put it into "
                               "rank_process_options::functions, which holds {}",
                               identity, known.empty() ? "none" : known));
}

recipe_ptr recipe_of(const rank_process_options& home, const rank_spec& brief) {
  if (!named_function::is_identity(brief.recipe)) return recipe_of(home, brief.recipe);
  try {
    if (const auto* called = function_of(home, brief.recipe))
      return called->recipe(brief.arguments);
    refuse_call(home, brief.recipe);
  } catch (...) {
    return std::make_shared<no_recipe>(std::current_exception());
  }
}

std::shared_ptr<communicator_backend> communicators_of(const ports& world,
                                                       const rendezvous_info& where,
                                                       const std::vector<int>& descriptors) {
  for (const auto& kind : world.rendezvous_kinds) {
    if (kind->name() != where.communicator) continue;
    if (auto joined = kind->join(where.address, descriptors)) return joined;
    throw user_error(errc::bad_usage,
                     fmt::format("the rendezvous kind \"{}\" joined no communicator: "
                                 "rendezvous_kind::join returned null; return one, or throw the "
                                 "reason",
                                 where.communicator));
  }
  throw user_error(errc::device,
                   fmt::format("a rank's process has no communicator \"{}\"", where.communicator));
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
  std::optional<torn_down> last_report;

  void watch();
  void down(const caf::actor_addr& who, const std::string& why);
  void torn(const torn_down& m);
  void queue(const queue_value& m);
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

// A value that cannot be encoded is the rank's failure.
void supervisor_proxy::queue(const queue_value& m) {
  try {
    report(m);
  } catch (const user_error&) {
    caught why{describe(std::current_exception()), std::current_exception()};
    why.record.generation = m.at.generation.value();
    report(rank_failed{m.at, std::make_shared<const caught>(std::move(why))});
  }
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
      m->late.push_back(describe(std::current_exception()));
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
      [&s](const rank_finished& m) { s.report(m); },
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
  const rank_process_options& home;
  caf::actor_system& system;
  recipe_ptr recipe;
  std::map<incarnation_id, resident> residents;
  std::shared_ptr<trace_gate> gate;  // null where nothing may wait

  std::shared_ptr<const job> job_of(const rank_spec& brief);
  void settle(const rank_spec& brief);
  void warm(const warm_up& needs);

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

void rank_host::inside::warm(const warm_up& needs) {
  if (recipe || named_function::is_identity(needs.recipe)) return;
  recipe = recipe_of(home, needs.recipe);
  try {
    recipe->warm_up(needs.options);
  } catch (...) {
    return;  // the first rank fails in the same way, and reports it
  }
}

// All ranks of a process share the recipe, because they belong to one job.
std::shared_ptr<const job> rank_host::inside::job_of(const rank_spec& brief) {
  if (!recipe) recipe = recipe_of(home, brief);
  auto what = std::make_shared<job>();
  what->purpose = brief.purpose;
  what->options = brief.options;
  what->recipe = recipe;
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
  const auto [place, added] = residents.try_emplace(brief.incarnation);
  if (!added) return;
  auto& [all, stand_in] = place->second;
  all = std::make_shared<watched>();
  all->incarnation = brief.incarnation;
  rank_setup setup;
  setup.plan = {brief.job, brief.rank, brief.incarnation,
                make_plan(brief.options, brief.purpose, brief.resume), derive(brief.options.time)};
  setup.what = job_of(brief);
  try {
    setup.world = home.world();
    check_ports(setup.world);
    setup.communicators = communicators_of(setup.world, brief.meets, parent.descriptors());
  } catch (...) {
    setup.world = local_ports();
    setup.communicators = std::make_shared<no_communicator>(std::current_exception());
  }
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
                         home,
                         system,
                         {},
                         {},
                         parent.has_threads() ? std::make_shared<trace_gate>() : nullptr}) {
  parent.control().send(process_ready{});
}

rank_host::~rank_host() {
  for (const auto& [id, one] : inside_->residents)
    if (!one.all->ended) caf::anon_send_exit(one.stand_in, caf::exit_reason::user_shutdown);
}

void rank_host::receive(link_message&& what) {
  if (const auto* brief = std::get_if<rank_spec>(&what)) return inside_->settle(*brief);
  if (const auto* needs = std::get_if<warm_up>(&what)) return inside_->warm(*needs);
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

void live(launcher_client& parent, const rank_process_options& home) {
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

std::function<recipe_ptr(const std::string&)> rank_process_options::the_only_recipe(
    std::function<recipe_ptr()> make) {
  return [make = std::move(make)](const std::string& wanted) {
    auto made = make();
    if (const auto is = made ? made->identity() : std::string{}; is != wanted)
      throw user_error(errc::bad_configuration,
                       fmt::format("the job's recipe is {}, but troupe::run_rank_if_child at the "
                                   "beginning of main makes {}: give both the same module, data "
                                   "and arguments",
                                   wanted.empty() ? "of no known identity" : wanted,
                                   is.empty() ? "one of no known identity" : is));
    return made;
  };
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
