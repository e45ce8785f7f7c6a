#include "apps/troupe/run_control.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::program {

using nlohmann::ordered_json;

namespace {

// Failures that are listed: the newest ones.
constexpr std::size_t failures_max = 16;
// Samples per second are counted over the last one to two of these.
constexpr double rate_seconds = 2;
// Names of metrics whose last value is kept.
constexpr std::size_t metrics_max = 512;

struct mark {
  double at = 0;
  std::int64_t samples = 0;
};

std::string answer_text(const ordered_json& what) {
  return what.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

class status_observer : public observer {
public:
  explicit status_observer(std::function<void(const observation&)> see) : see_(std::move(see)) {}
  void on(const observation& what) override { see_(what); }

private:
  std::function<void(const observation&)> see_;
};

std::string detail(const seen::lifecycle& what, const char* name) {
  const auto found = what.details.find(name);
  return found == what.details.end() ? std::string{} : found->second;
}

}  // namespace

struct live_status::state {
  state(const trainer_options& o, std::function<double()> a, std::int64_t from)
      : options(o), age(std::move(a)), step(from), restarts_left(o.elastic.max_restarts) {}

  const trainer_options options;
  const std::function<double()> age;
  mutable std::mutex guard;  // guards what follows
  std::string stage = "train";
  std::string phase = "starting";
  std::uint64_t generation = 0;
  std::string ranks, shards;  // processes with shards, and shards, once a generation was active
  std::int64_t step;
  std::int64_t epoch = undefined, batch = undefined, batches = undefined, samples = undefined;
  std::int64_t checkpoint = undefined;  // the step of the newest one
  std::uint64_t checkpoints = 0;
  metrics values;  // the last ones
  std::int32_t restarts = 0;
  std::int32_t restarts_left;
  std::uint64_t failures = 0;
  std::deque<ordered_json> newest;    // failures
  std::optional<mark> before, since;  // samples at two moments of this generation
  mark last;

  void begin(const std::string& what) {
    const std::lock_guard hold{guard};
    stage = what;
    phase = "starting";
    generation = 0;
    before = since = std::nullopt;
  }
  void see(const observation& what) {
    const std::lock_guard hold{guard};
    if (const auto* event = std::get_if<seen::lifecycle>(&what)) see(*event);
    if (const auto* progress = std::get_if<seen::progress>(&what)) see(*progress);
    if (const auto* logged = std::get_if<seen::metrics>(&what)) see(*logged);
  }

  void see(const seen::progress& what) {
    if (stage == "train") {
      step = std::max(step, what.at.step);
      samples = std::max(samples, what.samples);
      epoch = std::max(epoch, what.at.epoch);
    }
    batch = what.at.batch;
    batches = what.batches;
    last = {age(), what.samples};
    if (!since) before = since = last;
    if (last.at - since->at >= rate_seconds) before = std::exchange(since, last);
  }
  // A learner may log under a new name in each step.
  void see(const seen::metrics& what) {
    for (const auto& [name, value] : what.logged)
      if (values.size() < metrics_max || values.contains(name)) values[name] = value;
  }
  void see(const seen::lifecycle& what) {
    generation = std::max(generation, what.generation);
    switch (what.event) {
      case lifecycle_kind::generation_forming:
        phase = "forming";
        if (detail(what, "cause") == "failure") ++restarts;
        if (const auto left = detail(what, "restarts_left"); !left.empty())
          restarts_left = std::stoi(left);
        before = since = std::nullopt;
        break;
      case lifecycle_kind::generation_active:
        phase = "active";
        ranks = detail(what, "ranks");
        shards = detail(what, "shards");
        break;
      case lifecycle_kind::rank_failed: failed(what); break;
      case lifecycle_kind::checkpoint_written:
        ++checkpoints;
        checkpoint = std::max(checkpoint, what.step);
        break;
      case lifecycle_kind::generation_closing: phase = "closing"; break;
      case lifecycle_kind::teardown: phase = "ending"; break;
      default: break;
    }
  }
  void failed(const seen::lifecycle& what) {
    ++failures;
    if (newest.size() == failures_max) newest.pop_front();
    newest.push_back({{"generation", what.generation},
                      {"rank", what.rank < 0 ? ordered_json(nullptr) : ordered_json(what.rank)},
                      {"step", what.step},
                      {"what", detail(what, "what")}});
  }
  // Null until a generation has trained for a while.
  ordered_json rate() const {
    if (!before || phase != "active") return nullptr;
    const auto seconds = age() - before->at;
    if (seconds < rate_seconds / 2) return nullptr;
    return static_cast<double>(last.samples - before->samples) / seconds;
  }
};

live_status::live_status(const trainer_options& options, std::function<double()> age,
                         std::int64_t step)
    : state_(std::make_shared<state>(options, std::move(age), step)) {}

observer_factory live_status::watch(std::string stage) const {
  return [s = state_, stage = std::move(stage)] {
    s->begin(stage);
    return std::make_unique<status_observer>([s](const observation& what) { s->see(what); });
  };
}

ordered_json live_status::as_json(bool stopping) const {
  const auto& s = *state_;
  const std::lock_guard hold{s.guard};
  const auto& elastic = s.options.elastic;
  const auto number = [](std::int64_t x) {
    return x == undefined ? ordered_json(nullptr) : ordered_json(x);
  };
  return {
      {"pid", ::getpid()},
      {"stage", s.stage},
      {"state", stopping && s.phase == "active" ? "stopping" : s.phase},
      {"generation", s.generation},
      {"ranks", s.ranks.empty() ? s.options.ranks : std::stoi(s.ranks)},
      {"shards", s.shards.empty() ? elastic.shards.value_or(s.options.ranks) : std::stoi(s.shards)},
      {"step", s.step},
      {"epoch", number(s.epoch)},
      {"epochs", number(s.options.max_epochs)},
      {"batch", number(s.batch)},
      {"batches", number(s.batches)},
      {"samples", number(s.samples)},
      {"samples_per_second", s.rate()},
      {"restarts", s.restarts},
      {"restarts_left", s.restarts_left},
      {"failures", s.failures},
      {"newest_failures", s.newest},
      {"checkpoints", s.checkpoints},
      {"checkpoint_step", number(s.checkpoint)},
      {"metrics", s.values}};
}

std::string ranks_fixed(const trainer_options& options, bool placed) {
  if (placed) return "mpirun has started the processes of the ranks: call mpirun -n N again";
  if (options.placement != placement_kind::processes)
    return "the ranks are threads of the program: begin the run with --placement processes";
  return {};
}

namespace {

ordered_json wrong(const std::string& why) { return {{"error", why}}; }

const ordered_json& agreed() {
  static const ordered_json yes{{"ok", true}};
  return yes;
}

class request {
public:
  explicit request(const std::string& line) : all_(ordered_json::parse(line, nullptr, false)) {}

  bool is_object() const { return all_.is_object(); }
  std::string command() const {
    const auto found = all_.find("command");
    return found != all_.end() && found->is_string() ? found->get<std::string>() : std::string{};
  }
  // Nothing: the field is there and has another type.
  std::optional<bool> flag(const char* name) const {
    const auto found = all_.find(name);
    if (found == all_.end()) return false;
    return found->is_boolean() ? std::optional{found->get<bool>()} : std::nullopt;
  }
  // Nothing: the field is not there, or is no number of ranks.
  std::optional<std::int32_t> count(const char* name) const {
    constexpr std::int64_t most = 1 << 20;
    const auto found = all_.find(name);
    if (found == all_.end() || !found->is_number_integer()) return std::nullopt;
    const auto number = found->get<std::int64_t>();
    if (number < 1 || number > most) return std::nullopt;
    return static_cast<std::int32_t>(number);
  }

private:
  ordered_json all_;
};

}  // namespace

std::string answer_request(const std::string& line, job_runner& runner, const live_status& live,
                           const std::string& fixed,
                           const std::function<void(const std::string&)>& note) {
  const request asked{line};
  if (!asked.is_object())
    return answer_text(
        wrong(R"(a request is one JSON object in a line, e.g. {"command":"status"})"));
  const auto command = asked.command();
  if (command == "status") {
    auto answer = agreed();
    answer["status"] = live.as_json(runner.stopping());
    return answer_text(answer);
  }
  if (command == "stop") {
    const auto now = asked.flag("now");
    if (!now) return answer_text(wrong(R"("now" of stop is no truth value: give true or false)"));
    note(*now ? "asked to end at once, without a checkpoint"
              : "asked to stop: stopping at the next step boundary, with a checkpoint");
    runner.stop(*now);
    return answer_text(agreed());
  }
  if (command == "scale") {
    const auto ranks = asked.count("ranks");
    if (!ranks)
      return answer_text(
          wrong(R"("ranks" of scale is no number of ranks: give an integer from 1 on)"));
    if (!fixed.empty()) return answer_text(wrong("the number of ranks cannot change: " + fixed));
    note(fmt::format("asked to go on with {} ranks", *ranks));
    runner.scale(*ranks);
    return answer_text(agreed());
  }
  return answer_text(
      wrong(fmt::format("there is no command \"{}\"; there are: status, stop, scale", command)));
}

}  // namespace troupe::program
