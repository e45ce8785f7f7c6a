// One run of a job under faults, attempt after attempt: the implementation of `run_job`.
#pragma once

#include "actors/time_knob.hpp"
#include "apps/testing/durability_tracker.hpp"
#include "apps/testing/job_oracles.hpp"
#include "apps/testing/job_run.hpp"
#include "apps/testing/protocol_checker.hpp"
#include "apps/testing/stale_messages.hpp"
#include "backends/simulated/disk_checkpoints.hpp"
#include "backends/simulated/simulated_storage.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

struct armed_throw {
  std::int32_t rank = 0;
  std::string_view hook;
  bool memory = false;
  std::string text;
};

class job_run {
public:
  job_run(const job_spec& what, const run_plan& plan, choices from, modular_reference& reference)
      : job_(what),
        plan_(plan),
        simulation_(std::move(from), plan.simulation),
        sim_job_(simulation_, cluster_of(plan)),
        disk_(std::make_shared<simulated_storage>(
            simulation_.later_of(0), [this](const storage_op&) { return storage_cost(); },
            [this](const storage_op& op) { return storage_fault_now(op); })),
        io_(disk_checkpoints([this]() -> const simulated_storage& { return *disk_; })),
        trained_(plan.payload ? plan.payload->of(what) : nullptr),
        oracles_(what, reference, trained_.get(), report_, simulation_),
        recipe_(trained_ ? foreign_recipe() : integer_payload()) {
    report_.seed = simulation_.draws().seed();
    sim_job_.use({disk_, io_});
    sim_job_.listen([this](const seen::lifecycle& what) {
      checker_.announced(what, simulation_.time());
      if (what.event == lifecycle_kind::generation_forming) generation_forms(what);
      if (what.event == lifecycle_kind::generation_active) generation_begins(what);
      if (what.event == lifecycle_kind::checkpoint_written)
        written(what.step, what.details.at("path"));
    });
    auto extensions = plan.extensions;
    if (plan.observer != test_observer::none)
      extensions.push_back(observed_by(plan.observer, !trained_));
    for (const auto& make : extensions) {
      extensions_.push_back(make());
      if (!extensions_.back())
        throw user_error(errc::bad_usage,
                         "run_plan::extensions: a function of it made no extension; return one");
      recipe_ = extensions_.back()->recipe(recipe_);
    }
    simulation_.marks().know(plan.marks);
    exist_ = draw_swarm(simulation_.draws(), plan.faults);
    how_often_ = draw_how_often(simulation_.draws(), plan.faults);
    install_message_filter();
    if (exist_.has(fault::rare_paths)) simulation_.marks().draw_rare();
    const auto hooks_a_step = std::chrono::milliseconds{1};
    const auto exchange =
        trained_ ? trained_->exchange_of_step(plan.cluster.network) : nanoseconds{0};
    span_ = (longest_step(plan.cluster) + hooks_a_step + exchange) * what.steps + what.detect;
    events_ = static_cast<std::uint64_t>((what.steps * 10 + 40) * what.ranks);
  }

  run_report go();

private:
  enum class ending { finished, again, stuck };
  static cluster_model cluster_of(const run_plan& plan) {
    auto cluster = plan.cluster;
    cluster.lane_threads = plan.payload && plan.payload->waits();
    return cluster;
  }
  recipe_ptr integer_payload();
  recipe_ptr foreign_recipe();
  ending attempt(std::uint32_t number);
  ending judge();
  std::string newest_good();
  void run_attempt(nanoseconds limit);
  void apply_due_faults();
  simulation::moment next_fault() const;
  void know_delays();
  void know_ranks();
  void apply_fault(const scheduled_fault& s);
  void apply_to_ranks(const scheduled_fault& s, simulation::node_id node, bool all);
  void apply_to_rank(const scheduled_fault& s, rank_incarnation& life);
  bool apply_to_idle_process(const scheduled_fault& s);
  void apply_to_process(const scheduled_fault& s, simulated_process& process);
  void read_slowly(const scheduled_fault& s, const std::shared_ptr<simulated_stream>& link);
  void apply_to_program(const scheduled_fault& s);
  bool apply_to_test_node(const scheduled_fault& s);
  void cut(const scheduled_fault& s, const std::shared_ptr<simulated_stream>& link);
  void disturb_node(const scheduled_fault& s, simulation::node_id where);
  void record_fault(fault what, simulation::node_id where);
  nanoseconds shutdown_time() const;
  /// Times in this run that a generation did not form in time.
  std::uint64_t forming_deadlines();
  void heal_later(nanoseconds after, later_call how) { simulation_.at(0, after, std::move(how)); }
  void stepped(finished_step s);
  void generation_forms(const seen::lifecycle& what);
  void generation_begins(const seen::lifecycle& what);
  void written(std::int64_t step, const std::string& path);
  complain_fn complain() {
    ++report_.checks;
    return [this](violation v) { oracles_.violate(std::move(v)); };
  }
  void maybe_throw(const learner_context& context, const hook& h);
  bool poison_gradient(const learner_context& context);
  void install_message_filter();
  void arm_stale_messages();
  void program_ends(const job_outcome& outcome);
  void program_leaves();
  void drain();
  void try_until_finished();
  void collect_marks();
  nanoseconds storage_cost();
  storage_fault storage_fault_now(const storage_op& op);
  template <class Text>
  void note_fault(simulation::node_id where, Text text) {
    simulation_.note(-1, static_cast<std::int32_t>(where), [&] { return "fault: " + text(); });
  }
  void note_step(const rank_incarnation& life, const finished_step& s) {
    simulation_.note(static_cast<std::int32_t>(life.node), static_cast<std::int32_t>(life.node),
                     [&] { return "step " + std::to_string(s.step); });
  }
  void mark(const std::string& what) { ++report_.marks[what]; }
  static constexpr std::uint64_t longest = 15;
  nanoseconds length(std::uint64_t amount) const {
    return job_.detect * static_cast<std::int64_t>(amount * amount + 1) / 24;
  }

  const job_spec& job_;
  const run_plan& plan_;
  run_report report_;
  simulation simulation_;
  simulated_job sim_job_;
  std::shared_ptr<simulated_storage> disk_;
  std::shared_ptr<const checkpoint_io> io_;
  std::shared_ptr<payload_job> trained_;  // null: the integer payload
  job_oracles oracles_;
  recipe_ptr recipe_;
  stale_messages stale_messages_{simulation_};
  protocol_checker checker_{report_.checks,
                            [this](violation v) { oracles_.violate(std::move(v)); }};
  std::vector<std::unique_ptr<extension>> extensions_;
  fault_set exist_;
  fault_options how_often_;
  nanoseconds span_{0};
  std::uint64_t events_ = 0;
  attempt_faults now_;
  attempt_facts facts_;
  std::vector<armed_throw> armed_;
  std::vector<std::int32_t> poisoned_;           // ranks whose next gradient becomes NaN
  std::vector<scheduled_fault> waiting_faults_;  // not applied yet
  std::uint64_t began_events_ = 0;
  std::int64_t began_ = 0;
  std::uint64_t rare_faults_before_ = 0;        // when this attempt began
  std::uint64_t forming_deadlines_before_ = 0;  // when this attempt began
  durability_tracker durability_;
  std::int64_t last_saved_ = 0;  // step of the job's last checkpoint
  std::int64_t fallback_ = 0;    // the same, and the newest that must exist, when the newest
  std::int64_t durable_ = 0;     // generation was formed
};

}  // namespace troupe::testing
