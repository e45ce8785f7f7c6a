#include "apps/troupe/job_parts.hpp"

#include "actors/job_check.hpp"
#include "apps/troupe/duration_text.hpp"
#include "apps/troupe/fault_spec.hpp"
#include "apps/troupe/output_file.hpp"
#include "apps/troupe/recipe_text.hpp"
#include "backends/checkpoint/digest.hpp"
#include "backends/checkpoint/safetensors.hpp"
#include "backends/telemetry/hook_trace.hpp"
#include "backends/telemetry/progress_line.hpp"
#include "troupe/outcome.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

namespace troupe::program {

namespace {

batch_limit limit_of(const settings& s, std::string_view key) {
  const auto& value = s.at(key).value;
  if (const auto* count = std::get_if<std::int64_t>(&value)) return *count;
  return std::get<double>(value);
}

std::chrono::nanoseconds duration_of(const settings& s, std::string_view key) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>{s.number(key)});
}

// "4:2,8:1": epochs with the numbers that hold from them on.
std::map<std::int64_t, std::int64_t> read_schedule(std::string_view text) {
  const auto refuse = [&] {
    throw user_error(errc::bad_configuration,
                     fmt::format("accumulate_schedule = \"{}\": write EPOCH:BATCHES, several with "
                                 "commas, each epoch once, as 4:2,8:1",
                                 text));
  };
  const auto number = [&](std::string_view digits) {
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (error != std::errc{} || end != digits.data() + digits.size()) refuse();
    return n;
  };
  std::map<std::int64_t, std::int64_t> all;
  for (auto rest = text; !rest.empty() || all.empty();) {
    const auto piece = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(piece.size() + 1, rest.size()));
    const auto colon = piece.find(':');
    if (colon == std::string_view::npos) refuse();
    if (!all.emplace(number(piece.substr(0, colon)), number(piece.substr(colon + 1))).second)
      refuse();
  }
  return all;
}

void read_limits(const settings& s, trainer_options& o) {
  o.limit_train_batches = limit_of(s, "limit_train_batches");
  o.limit_val_batches = limit_of(s, "limit_val_batches");
  o.limit_test_batches = limit_of(s, "limit_test_batches");
  o.limit_predict_batches = limit_of(s, "limit_predict_batches");
  o.val_check_interval = limit_of(s, "val_check_interval");
  if (s.is_set("val_check_time"))
    o.val_check_time = read_duration("val_check_time", s.text("val_check_time"));
  o.overfit_batches = limit_of(s, "overfit_batches");
  o.check_val_every_n_epoch = s.integer("check_val_every_n_epoch");
  o.num_sanity_val_steps = s.integer("num_sanity_val_steps");
  o.fast_dev_run = s.integer("fast_dev_run");
  o.log_every_n_steps = s.integer("log_every_n_steps");
}

void read_policies(const settings& s, trainer_options& o) {
  const bool saves = s.flag("enable_checkpointing");
  o.checkpoint.every_epoch = saves && s.flag("checkpoint.every_epoch");
  if (saves) o.checkpoint.every_n_steps = s.find<std::int64_t>("checkpoint.every_n_steps");
  if (const auto minutes = s.find<double>("checkpoint.every_n_minutes"); saves && minutes)
    o.checkpoint.every = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double, std::ratio<60>>{*minutes});
  o.checkpoint.on_exception = saves && s.flag("checkpoint.on_exception");
  o.checkpoint.keep_last = static_cast<std::int32_t>(s.integer("checkpoint.keep_last"));
  o.checkpoint.keep_best = static_cast<std::int32_t>(s.integer("checkpoint.keep_best"));
  o.checkpoint.monitor = s.text("checkpoint.monitor");
  o.checkpoint.maximize = s.text("checkpoint.mode") == "max";
  if (s.is_set("early_stopping.monitor"))
    o.stop_early.push_back({s.text("early_stopping.monitor"), s.number("early_stopping.min_delta"),
                            static_cast<std::int32_t>(s.integer("early_stopping.patience")),
                            s.text("early_stopping.mode") == "max"});
  o.time.detect = duration_of(s, "time.detect_seconds");
  o.time.hook_limit = duration_of(s, "time.hook_limit_seconds");
  o.elastic.max_restarts = static_cast<std::int32_t>(s.integer("elastic.max_restarts"));
  using on_exception = elastic_options::on_exception;
  o.elastic.exceptions =
      s.text("elastic.exceptions") == "fail" ? on_exception::fail : on_exception::restart;
  o.elastic.window = duration_of(s, "elastic.window_seconds");
  if (const auto shards = s.find<std::int64_t>("elastic.shards"))
    o.elastic.shards = static_cast<std::int32_t>(*shards);
  using loss = elastic_options::loss;
  o.elastic.on_loss = s.text("elastic.on_loss") == "shrink" ? loss::shrink : loss::replace;
  o.elastic.min_ranks = static_cast<std::int32_t>(s.integer("elastic.min_ranks"));
  o.elastic.wait = duration_of(s, "elastic.wait_seconds");
  o.elastic.spares = static_cast<std::int32_t>(s.integer("elastic.spares"));
}

powersgd_options powersgd_of(const settings& s) {
  return {.rank = static_cast<std::int32_t>(s.integer("strategy.powersgd.rank")),
          .start_step = s.integer("strategy.powersgd.start_step"),
          .min_rate = s.number("strategy.powersgd.min_rate"),
          .error_feedback = s.flag("strategy.powersgd.error_feedback"),
          .warm_start = s.flag("strategy.powersgd.warm_start"),
          .epsilon = s.number("strategy.powersgd.epsilon"),
          .seed = static_cast<std::uint32_t>(s.integer("strategy.powersgd.seed"))};
}

gradient_options gradients_of(const settings& s) {
  return {.bucket_cap_mb = s.find<double>("strategy.bucket_cap_mb"),
          .overlap = s.flag("strategy.overlap"),
          .find_unused_parameters = s.flag("strategy.find_unused_parameters"),
          .static_graph = s.flag("strategy.static_graph"),
          .comm_hook = comm_hook_named(s.text("strategy.comm_hook")),
          .powersgd = powersgd_of(s),
          .fused_step = s.find<bool>("strategy.fused_step"),
          .broadcast_buffers = s.flag("strategy.broadcast_buffers"),
          .sync_module_states = s.flag("strategy.sync_module_states")};
}

// Weights with the model's keys, as a rank's first state.
snapshot_ptr read_weights(const std::string& path) {
  auto weights = std::make_shared<snapshot>();
  weights->model = read_safetensors(regular_file{path}).tensors;
  weights->weights_digest = weights_digest(weights->model);
  return weights;
}

device_choice devices_of(const settings& s) {
  device_choice devices;
  const auto& given = s.at("devices").value;
  if (const auto* count = std::get_if<std::int64_t>(&given))
    devices.count = static_cast<std::int32_t>(*count);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&given))
    for (const auto index : *list) devices.indices.push_back(static_cast<std::int32_t>(index));
  return devices;
}

}  // namespace

trainer_options options_of(const settings& s) {
  trainer_options o;
  o.ranks = static_cast<std::int32_t>(s.integer("ranks"));
  o.max_epochs = s.integer("max_epochs");
  o.max_steps = s.find<std::int64_t>("max_steps");
  o.min_epochs = s.find<std::int64_t>("min_epochs");
  o.min_steps = s.find<std::int64_t>("min_steps");
  if (s.is_set("max_time")) o.max_time = read_duration("max_time", s.text("max_time"));
  o.batch_size = s.integer("batch_size");
  o.accumulate_grad_batches = s.integer("accumulate_grad_batches");
  if (s.is_set("accumulate_schedule"))
    o.accumulate_schedule = read_schedule(s.text("accumulate_schedule"));
  o.truncated_bptt_steps = s.integer("truncated_bptt_steps");
  o.gradient_clip_val = s.find<double>("gradient_clip_val");
  using algorithm = hooks::clip_gradients::algorithm;
  o.gradient_clip_algorithm =
      s.text("gradient_clip_algorithm") == "norm" ? algorithm::norm : algorithm::value;
  o.seed = static_cast<std::uint64_t>(s.integer("seed"));
  o.precision = own_name{s.text("precision")};
  o.strategy = own_name{s.text("strategy.name")};
  o.gradients = gradients_of(s);
  o.communicator = own_name{s.text("communicator")};
  o.tcp_streams = s.find<std::int64_t>("tcp.streams");
  o.detect_anomaly = s.flag("detect_anomaly");
  const auto same = s.text("deterministic");
  o.deterministic = same == "warn"   ? deterministic_kind::warn
                    : same == "true" ? deterministic_kind::on
                                     : deterministic_kind::off;
  o.benchmark = s.find<bool>("benchmark");
  o.inference_mode = s.flag("inference_mode");
  if (s.text("profiler") == "simple") o.profiler = profiler_kind::simple;
  o.placement = placement_named(s.text("placement"));
  o.accelerator = own_name{s.text("accelerator")};
  o.devices = devices_of(s);
  o.one_hook_per_run = s.flag("fine");
  read_limits(s, o);
  read_policies(s, o);
  for (const auto& spec : s.get<std::vector<std::string>>("fault"))
    o.faults.push_back(parse_fault(spec));
  return o;
}

namespace {

// A setting of the built-in models or data sets, if that is what is trained.
template <class T>
void read_built_in(const settings& s, std::string_view key, T& into) {
  const auto* one = find_setting(s.all(), key);
  if (one && !one->own && s.is_set(key)) into = s.get<T>(key);
}

void read_own(const settings& s, learning& into) {
  for (const auto& one : s.all()) {
    if (!one.own || !s.is_set(one.key)) continue;
    auto& values = one.chooser == "model.name" ? into.model_settings : into.data_settings;
    values.emplace(one.key.substr(one.key.find('.') + 1), s.at(one.key).value);
  }
}

}  // namespace

learning learning_of(const settings& s) {
  learning what{.model = s.text("model.name"),
                .data = s.text("data.name"),
                .epochs = s.integer("max_epochs"),
                .callbacks = s.get<std::vector<std::string>>("callbacks")};
  read_built_in(s, "model.hidden", what.hidden);
  read_built_in(s, "model.dropout", what.dropout);
  read_built_in(s, "data.dir", what.data_folder);
  read_built_in(s, "data.target", what.target);
  read_built_in(s, "data.samples", what.samples);
  read_built_in(s, "data.evaluation_samples", what.evaluation_samples);
  read_built_in(s, "optimizer.name", what.optimizer);
  read_built_in(s, "optimizer.learning_rate", what.learning_rate);
  read_built_in(s, "optimizer.momentum", what.momentum);
  read_built_in(s, "optimizer.weight_decay", what.weight_decay);
  read_built_in(s, "optimizer.scheduler", what.scheduler);
  read_built_in(s, "optimizer.warmup_epochs", what.warmup_epochs);
  read_own(s, what);
  return what;
}

void check_place(const settings& s) {
  if (const auto placement = s.text("placement");
      placement != "threads" && placement != "processes")
    throw user_error(errc::bad_configuration,
                     fmt::format("placement = \"{}\": ranks of a fit are threads or processes; "
                                 "use --placement threads",
                                 placement));
}

// Words that the schema reads and that this build never trains on.
void check_accelerator(const settings& s, const catalog& learning) {
  const auto wanted = s.text("accelerator");
  std::string names{to_string(accelerator_kind::automatic)};
  if (wanted == names) return;
  for (const auto& one : learning.devices()) {
    if (one.name == wanted) return;
    names += ", " + one.name;
  }
  throw user_error(errc::device,
                   fmt::format("accelerator = \"{}\": this program has {}; use one of "
                               "these",
                               wanted, names));
}

namespace {

// Whether a callback's text (learning::callbacks) sets the policy of checkpoints.
bool is_model_checkpoint(std::string_view callback) {
  return callback.substr(0, callback.find(',')) == "model_checkpoint";
}

// The program has no option of the job for it: without a run's folder nothing is written.
void refuse_policy_without_files(const settings& s, const learning& what) {
  if (s.flag("enable_checkpointing")) return;
  const auto found = std::ranges::find_if(what.callbacks, is_model_checkpoint);
  const auto refuse = [](const std::string& other) {
    throw user_error(errc::bad_configuration,
                     fmt::format("enable_checkpointing is false, and {} says which checkpoints are "
                                 "written: leave one of them out",
                                 other));
  };
  if (found != what.callbacks.end()) refuse(fmt::format("the callback \"{}\"", *found));
  // A file may keep a policy for runs that write checkpoints.
  for (const auto& one : s.all()) {
    const auto& from = s.at(one.key).origin;
    if (one.key.starts_with("checkpoint.") && from.from > source::file)
      refuse(fmt::format("{} ({})", one.key, from.text()));
  }
}

job learning_job(const settings& s, const context& around,
                 const std::function<void(learning&, trainer_options&)>& change) {
  check_place(s);
  job shared;
  shared.options = options_of(s);
  auto learns = learning_of(s);
  if (change) change(learns, shared.options);
  refuse_policy_without_files(s, learns);
  shared.recipe = around.learning.recipe(learns);
  shared.recipe_text = recipe_text(learns);
  return shared;
}

}  // namespace

void check_settings(const settings& s, const context& around) {
  check_options(learning_job(s, around, {}), around.world());
}

job shared_job(const settings& s, const context& around,
               const std::function<void(learning&, trainer_options&)>& change) {
  check_accelerator(s, around.learning);
  return learning_job(s, around, change);
}

void add_init_weights(const settings& s, job& to) {
  if (s.is_set("init_weights")) to.initial = read_weights(s.text("init_weights"));
}

void check_traces(const settings& s) {
  if (s.is_set("trace_hooks")) check_is_like("--trace-hooks", s.text("trace_hooks"), hooks_head);
  if (s.is_set("trace")) check_is_like("--trace", s.text("trace"), run_trace::head);
  if (!s.is_set("trace_hooks") || !s.is_set("trace")) return;
  std::error_code ignored;
  const auto whole = [&](const char* key) {
    return std::filesystem::weakly_canonical(s.text(key), ignored);
  };
  if (whole("trace") == whole("trace_hooks"))
    throw user_error(
        errc::bad_usage,
        fmt::format("--trace and --trace-hooks both name {}: name two files", s.text("trace")));
}

job_traces add_traces(const settings& s, job& to) {
  check_traces(s);
  job_traces all;
  auto& [hooks, slices] = all;
  if (s.is_set("trace_hooks")) hooks = std::make_shared<hook_trace>(s.text("trace_hooks"));
  if (s.is_set("trace")) {
    slices = std::make_shared<run_trace>(
        s.text("trace"), [] { return std::chrono::steady_clock::now().time_since_epoch(); });
    to.observers.push_back(lifecycle_of(slices));
  }
  if (hooks || slices)
    to.trace = [all](std::int32_t rank, const hook& what) {
      if (all.hooks) (*all.hooks)(rank, what);
      if (all.slices) all.slices->enter(rank, what);
    };
  return all;
}

void report_traces(console& screen, const job_traces& all) {
  const auto report = [&](const std::string& why) {
    if (!why.empty()) screen.error(fmt::format("the trace ends early: {}", why));
  };
  if (all.hooks) report(all.hooks->trouble());
  if (!all.slices) return;
  all.slices->finish();
  report(all.slices->trouble());
}

void note_unused(console& screen, const settings& s, std::string_view command,
                 const std::vector<std::string_view>& keys) {
  for (const auto key : keys)
    if (s.at(key).origin.from >= source::assignment)
      screen.note(
          fmt::format("note: {} ({}) has no effect on {}", key, s.at(key).origin.text(), command));
}

settings settled_on(console& screen, resolution found) {
  const auto notes = std::move(found.notes);
  auto all = settled(std::move(found));
  if (all.flag("quiet")) screen.be_quiet();
  for (const auto& note : notes) screen.note(note);
  return all;
}

void report_profile(console& screen, const job_outcome& outcome) {
  if (const auto table = to_string(profile_of(outcome)); !table.empty())
    screen.answer(table.substr(0, table.size() - 1));
}

bool shows_live(const settings& s, const context& around) {
  const auto wanted = s.text("progress");
  if (wanted == "never" || around.screen.quiet()) return false;
  return wanted == "always" || around.screen.facts().live;
}

std::vector<observer_factory> progress_of(const settings& s, const context& around) {
  if (s.text("progress") == "never" || around.screen.quiet()) return {};
  const auto& terminal = around.screen.facts();
  auto how = progress_line::style::of(options_of(s));
  how.live = shows_live(s, around);
  how.columns = terminal.columns;
  if (terminal.live) how.rows = terminal.rows;  // lines of ranks are drawn anew below each other
  auto* screen = &around.screen;
  return {[how, screen] {
    return std::make_unique<progress_line>(
        how, [] { return std::chrono::steady_clock::now().time_since_epoch(); },
        [screen](std::string_view text) { screen->progress(text); });
  }};
}

}  // namespace troupe::program
