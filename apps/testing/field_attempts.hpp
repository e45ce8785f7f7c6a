// One run of a field job under faults, attempt after attempt: the inside of `run_field`.
#pragma once

#include "actors/time_knob.hpp"
#include "apps/testing/conduct.hpp"
#include "apps/testing/field_oracles.hpp"
#include "apps/testing/field_run.hpp"
#include "apps/testing/old_words.hpp"
#include "apps/testing/storage_lies.hpp"
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

class field_run {
public:
  field_run(const field_job& what, const run_plan& plan, choices from, field_reference& reference)
      : job_(what),
        plan_(plan),
        world_(std::move(from), plan.world),
        stage_(world_, ground_of(plan)),
        disk_(std::make_shared<simulated_storage>(
            world_.later_of(0), [this](const storage_op&) { return storage_cost(); },
            [this](const storage_op& op) { return storage_fault_now(op); })),
        io_(disk_checkpoints([this]() -> const simulated_storage& { return *disk_; })),
        trained_(plan.payload ? plan.payload->of(what) : nullptr),
        oracles_(what, reference, trained_.get(), report_, world_),
        recipe_(trained_ ? foreign_recipe() : field_payload()) {
    report_.seed = world_.draws().seed();
    stage_.use({disk_, io_});
    stage_.listen([this](const seen::lifecycle& what) {
      conduct_.announced(what, world_.time());
      if (what.event == lifecycle_kind::checkpoint_written)
        written(what.step, what.details.at("path"));
    });
    auto guests = plan.guests;
    if (plan.watched != watching::nobody) guests.push_back(watched_by(plan.watched));
    for (const auto& make : guests) {
      guests_.push_back(make());
      recipe_ = guests_.back()->recipe(recipe_);
    }
    world_.marks().know(plan.marks);
    exist_ = draw_swarm(world_.draws(), plan.faults);
    how_often_ = draw_how_often(world_.draws(), plan.faults);
    listen_at_the_door();
    if (exist_.has(fault::rare_paths)) world_.marks().draw_rare();
    const auto hooks_a_step = std::chrono::milliseconds{1};
    const auto exchange =
        trained_ ? trained_->exchange_of_step(plan.around.network) : nanoseconds{0};
    span_ = (longest_step(plan.around) + hooks_a_step + exchange) * what.steps + what.detect;
    events_ = static_cast<std::uint64_t>((what.steps * 10 + 40) * what.ranks);
  }

  run_report go();

private:
  enum class ending { finished, again, stuck };
  static surroundings ground_of(const run_plan& plan) {
    auto around = plan.around;
    around.lane_threads = plan.payload && plan.payload->waits();
    return around;
  }
  recipe_ptr field_payload();
  recipe_ptr foreign_recipe();
  ending attempt(std::uint32_t number);
  ending judge();
  std::string newest_good();
  void run_attempt(nanoseconds limit);
  void strike_due();
  world::moment next_strike() const;
  void know_delays();
  void carry_out(const strike& s);
  void carry_out_on(const strike& s, rank_life& life);
  void carry_out_on_program(const strike& s);
  bool carry_out_on_guest(const strike& s);
  void cut(const strike& s, const std::shared_ptr<control_link>& link);
  void hold_up(const strike& s, world::place where);
  void struck_at(fault what, world::place where);
  nanoseconds ways_down() const;
  void heal_later(nanoseconds after, later_call how) { world_.at(0, after, std::move(how)); }
  void stepped(const field_step& s);
  void written(std::int64_t step, const std::string& path);
  complain_fn complain() {
    ++report_.checks;
    return [this](violation v) { oracles_.violate(std::move(v)); };
  }
  void maybe_throw(const learner_context& context, const hook& h);
  bool strike_gradient(const learner_context& context);
  void listen_at_the_door();
  void say_old_words();
  void program_ends(const job_outcome& outcome);
  void program_leaves();
  void drain();
  void try_until_finished();
  void hear_marks();
  nanoseconds storage_cost();
  storage_fault storage_fault_now(const storage_op& op);
  template <class Text>
  void note_fault(world::place where, Text text) {
    world_.note(-1, static_cast<std::int32_t>(where), [&] { return "fault: " + text(); });
  }
  void note_step(const field_step& s) {
    for (const auto& life : stage_.lives())
      if (life.job == s.job && life.rank == s.rank)
        world_.note(static_cast<std::int32_t>(life.place), static_cast<std::int32_t>(life.place),
                    [&] { return "step " + std::to_string(s.step); });
  }
  void mark(const std::string& what) { ++report_.marks[what]; }
  static constexpr std::uint64_t longest = 15;
  nanoseconds length(std::uint64_t amount) const {
    return job_.detect * static_cast<std::int64_t>(amount * amount + 1) / 24;
  }

  const field_job& job_;
  const run_plan& plan_;
  run_report report_;
  world world_;
  rehearsal stage_;
  std::shared_ptr<simulated_storage> disk_;
  std::shared_ptr<const checkpoint_io> io_;
  std::shared_ptr<payload_job> trained_;  // null: the field payload
  field_oracles oracles_;
  recipe_ptr recipe_;
  old_words old_words_{world_};
  conduct conduct_{report_.checks, [this](violation v) { oracles_.violate(std::move(v)); }};
  std::vector<std::unique_ptr<guest>> guests_;
  fault_set exist_;
  fault_options how_often_;
  nanoseconds span_{0};
  std::uint64_t events_ = 0;
  attempt_faults now_;
  attempt_facts facts_;
  std::vector<armed_throw> armed_;
  std::vector<std::int32_t> poisoned_;  // ranks whose next gradient is NaN
  std::vector<strike> left_;            // not struck yet
  std::uint64_t began_events_ = 0;
  std::int64_t began_ = 0;
  std::uint64_t rare_faults_before_ = 0;  // this attempt
  path_counts path_before_;               // this attempt
  storage_lies lies_;
};

}  // namespace troupe::testing
