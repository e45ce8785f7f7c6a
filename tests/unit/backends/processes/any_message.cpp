#include "tests/unit/backends/processes/any_message.hpp"

namespace troupe::testing {

namespace {

class drawer {
public:
  explicit drawer(std::mt19937_64& draw) : draw_(draw) {}

  std::uint64_t number() { return draw_(); }
  std::int64_t small() { return static_cast<std::int64_t>(draw_() % 1000) - 1; }
  bool yes() { return draw_() % 2 == 0; }
  double real() { return static_cast<double>(small()) / 7; }
  std::string text() {
    std::string s(draw_() % 20, ' ');
    for (auto& c : s) c = static_cast<char>(draw_() % 256);
    return s;
  }
  fence at() {
    return {job_id{number()},         term_id{number()}, generation_id{number()},
            incarnation_id{number()}, step_id{small()},  sequence_id{number()}};
  }
  failure failed(int depth = 2) {
    failure f;
    f.kind = static_cast<failure_kind>(draw_() % 11);
    f.id = {incarnation_id{number()}, number()};
    f.type = text();
    f.what = text();
    f.rank = static_cast<std::int32_t>(small());
    f.hook = text();
    f.epoch = small();
    f.step = small();
    f.generation = number();
    f.sequence = number();
    f.signal = text();
    f.causes = {{text(), text()}};
    if (depth > 0) f.others = {failed(depth - 1), failed(depth - 1)};
    f.follows = yes();
    return f;
  }
  metrics numbers() { return {{"train/loss", real()}, {text(), real()}}; }
  loop_state loop() {
    loop_state all{small(), small(), small(), small(), yes(), numbers(), {{real(), yes(), 3}},
                   small(), small(), 2};
    all.monitored = {text(), small(), small()};
    all.ended_by = 1;
    all.of_validation = {text(), "val/loss"};
    return all;
  }
  resume_point point() {
    return {number(), resume_point::next::go, yes(), loop(), small(), 3, yes(), yes()};
  }
  position where() { return {stage::validate, small(), small(), small(), 1, 2}; }
  value some() {
    return value_map{{{"a", value_list{{1, 2.5, "x", true, value{}}}}, {"b", text()}}};
  }
  trainer_options options() {
    trainer_options o;
    o.ranks = 3;
    o.max_steps = small();
    o.min_epochs = small();
    o.max_time = std::chrono::nanoseconds{small()};
    o.overfit_batches = small();
    o.check_val_every_n_epoch = small();
    o.gradient_clip_val = real();
    o.gradients.comm_hook = comm_hook_kind::powersgd;
    o.gradients.broadcast_buffers = yes();
    o.gradients.sync_module_states = yes();
    o.gradient_clip_algorithm = hooks::clip_gradients::algorithm::value;
    o.limit_train_batches = small();
    o.detect_anomaly = yes();
    o.deterministic = deterministic_kind::warn;
    o.benchmark = yes();
    o.inference_mode = yes();
    o.seed = number();
    o.precision = own_name{text()};
    o.placement = placement_kind::processes;
    o.accelerator = own_name{text()};
    o.devices = {static_cast<std::int32_t>(small()), {2, 0}};
    o.stop_early = {{text(), real(), 2, yes()}};
    o.checkpoint.every_n_steps = small();
    o.checkpoint.on_exception = yes();
    o.accumulate_schedule = {{small(), small()}};
    o.time.detect = std::chrono::milliseconds{small()};
    o.elastic.max_restarts = static_cast<std::int32_t>(small());
    o.elastic.shards = 4;
    o.elastic.on_loss = elastic_options::loss::shrink;
    o.faults = {
        {fault_drill::kind::segv, 1, text(), small(), text(), std::chrono::milliseconds{5}}};
    return o;
  }
  hook some_hook() {
    switch (draw_() % 7) {
      case 0: return hooks::connect{{where()}};
      case 1: return hooks::backward{where(), 3, static_cast<std::uint32_t>(small())};
      case 2: return hooks::save_checkpoint{where(), loop()};
      case 3: return hooks::barrier{where(), text()};
      case 4: return hooks::lr_scheduler_step{where(), hooks::lr_scheduler_step::interval::plateau};
      case 5: return hooks::on_train_end{{where(), stop_reason::early_stopping}};
      default: return hooks::training_step{{where()}};
    }
  }
  observation seen_thing() {
    switch (draw_() % 5) {
      case 0: return seen::hook{1, some_hook()};
      case 3:
        return seen::collective{1,      3,        number(), number(), collective_kind::decide,
                                text(), number(), {},       {},       yes()};
      case 1: return seen::metrics{where(), numbers(), {text(), text()}};
      case 2: return seen::progress{where(), small(), small()};
      default:
        return seen::lifecycle{
            static_cast<lifecycle_kind>(draw_() % 16), 1, number(), small(), {{text(), text()}}};
    }
  }
  std::shared_ptr<const caught> thrown() {
    auto c = std::make_shared<caught>();
    c->record = failed();
    return c;
  }

private:
  std::mt19937_64& draw_;
};

}  // namespace

snapshot_ptr any_snapshot(std::mt19937_64& draw, std::size_t bytes) {
  drawer d{draw};
  auto s = std::make_shared<snapshot>();
  s->loop = d.loop();
  s->ranks = 2;
  s->weights_digest = d.text();
  s->state = d.text();
  const auto blob = [&](std::size_t size) {
    std::vector<std::byte> content(size);
    for (auto& b : content) b = static_cast<std::byte>(draw() & 0xff);
    return tensor_blob{d.text(),
                       "U8",
                       {static_cast<std::int64_t>(size)},
                       std::make_shared<const std::vector<std::byte>>(std::move(content))};
  };
  s->model = {blob(bytes), blob(0)};
  s->optimizer = {blob(bytes / 3)};
  return s;
}

link_message any_message(std::uint64_t seed, std::size_t index) {
  std::mt19937_64 draw{seed};
  drawer d{draw};
  const auto why = stop_reason::terminate;
  switch (index % message_kinds) {
    case 0:
      return rank_spec{job_id{d.number()},
                       1,
                       incarnation_id{d.number()},
                       stage::test,
                       d.options(),
                       d.text(),
                       d.text(),
                       d.text(),
                       {d.text(), d.text()},
                       d.yes(),
                       d.yes(),
                       d.yes(),
                       d.yes(),
                       d.yes() ? any_snapshot(draw, 100) : nullptr,
                       d.some()};
    case 1: return form_generation{d.at(), 3, d.point(), {0, 2}, d.text()};
    case 2: return activate_generation{d.at()};
    case 3: return propose_stop{d.at(), why};
    case 4: return stop_at{d.at(), why, d.yes()};
    case 5: return close_generation{d.at(), d.failed(), d.yes()};
    case 6: return tear_down{d.at(), d.yes()};
    case 7: return prepared{d.at(), d.text(), d.real()};
    case 8: return step_done{d.at()};
    case 9: return stop_vote{d.at()};
    case 10:
      return rank_finished{
          d.at(), d.loop(), why, any_snapshot(draw, 3000), {d.real(), d.real(), d.small()}};
    case 11: return rank_failed{d.at(), d.thrown()};
    case 12: return queue_value{d.at(), {d.some(), d.some()}};
    case 13:
      return closed_generation{d.at(),  d.point(), d.text(), {{d.where(), d.numbers()}},
                               d.yes(), d.yes()};
    case 14: return rank_busy{d.at(), d.text(), d.yes(), d.yes()};
    case 15: return torn_down{d.at(), d.some(), {d.failed()}, {{"val/loss", 0.5}}};
    case 16: return write_checkpoint{d.at(), any_snapshot(draw, 100), d.yes(), 3};
    case 17: return observed{d.seen_thing()};
    case 18: return dropped_observations{d.number(), d.number()};
    case 19: return hook_entered{1, d.some_hook()};
    case 20: return process_ready{d.yes()};
    case 21: return process_leaves{d.text()};
    case 22: return warm_up{d.options(), d.text()};
    case 23: return hooks_traced{7, d.text()};
    default: return rank_ended{incarnation_id{d.number()}, d.text()};
  }
}

}  // namespace troupe::testing
