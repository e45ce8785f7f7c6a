#include "apps/troupe/run_control.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <utility>

namespace troupe::program {

using nlohmann::ordered_json;

namespace {

std::string answer_text(const ordered_json& what) {
  return what.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// The bounds of a job_status.
constexpr std::size_t shown_failures_max = 16;
constexpr std::size_t shown_metrics_max = 512;

}  // namespace

job_status together(job_status fit, const job_status& test) {
  auto all = test;
  all.step = fit.step;
  all.epoch = fit.epoch;
  all.epochs = fit.epochs;
  all.samples = fit.samples;
  all.restarts += fit.restarts;
  all.failures += fit.failures;
  all.checkpoints += fit.checkpoints;
  all.checkpoint_step = fit.checkpoint_step;
  all.newest_failures = std::move(fit.newest_failures);
  all.newest_failures.insert(all.newest_failures.end(), test.newest_failures.begin(),
                             test.newest_failures.end());
  auto& failures = all.newest_failures;
  if (failures.size() > shown_failures_max)
    failures.erase(failures.begin(),
                   failures.end() - static_cast<std::ptrdiff_t>(shown_failures_max));
  for (const auto& [name, value] : fit.last)
    if (all.last.size() < shown_metrics_max) all.last.emplace(name, value);
  return all;
}

live_status::live_status(const trainer_options& options, std::int64_t step, hidden_figures hidden)
    : hidden_(hidden) {
  before_.ranks = options.ranks;
  before_.shards = options.elastic.shards.value_or(options.ranks);
  before_.epochs = options.max_epochs;
  before_.restarts_left = options.elastic.max_restarts;
  before_.step = step;
}

void live_status::hold(job_handle now) {
  if (running_) before_ = as_status();
  fitted_ = static_cast<bool>(running_);
  running_ = std::move(now);
}

job_status live_status::as_status() const {
  auto all = unfiltered();
  std::erase_if(all.last, [this](const auto& one) { return hidden_.hides(one.first); });
  return all;
}

job_status live_status::unfiltered() const {
  if (!running_) return before_;
  return fitted_ ? together(before_, running_.status()) : running_.status();
}

ordered_json live_status::as_json() const {
  ordered_json all{{"pid", ::getpid()}};
  all.update(ordered_json::parse(to_json(as_status())));
  return all;
}

namespace {

// Why the job cannot have this number of ranks; empty: it can. Before the job knows its shards,
// `now` has 0.
std::string wrong_number(const request_rules& rules, std::int32_t ranks, const job_status& now) {
  const auto& options = rules.options;
  if (rules.by) return place_is_fixed(*rules.by);
  if (options.placement != placement_kind::processes)
    return "the ranks are threads of the program: begin the run with --placement processes";
  if (!options.elastic.enabled())
    return "the run has no restarts: begin it with --max-restarts above 0";
  if (ranks < options.elastic.min_ranks)
    return fmt::format("elastic.min_ranks is {0}; ask for {0} at least", options.elastic.min_ranks);
  if (now.shards > 0 && ranks > now.shards)
    return fmt::format("the run has {0} shards; ask for {0} at most", now.shards);
  if (now.purpose != stage::train)
    return "the fit has ended, and its test keeps the ranks that it began with";
  if (now.state >= job_state::ending) return "the fit has ended";
  return {};
}

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
  // False if the field is absent. Nothing if it has another type.
  std::optional<bool> flag(const char* name) const {
    const auto found = all_.find(name);
    if (found == all_.end()) return false;
    return found->is_boolean() ? std::optional{found->get<bool>()} : std::nullopt;
  }
  // Nothing if the field is absent or is not a number of ranks.
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
                           const request_rules& rules,
                           const std::function<void(const std::string&)>& note) {
  const request asked{line};
  if (!asked.is_object())
    return answer_text(
        wrong(R"(a request is one JSON object in a line, e.g. {"command":"status"})"));
  const auto command = asked.command();
  if (command == "status") {
    auto answer = agreed();
    answer["status"] = live.as_json();
    return answer_text(answer);
  }
  if (command == "stop") {
    const auto now = asked.flag("now");
    if (!now) return answer_text(wrong(R"("now" of stop is no truth value: give true or false)"));
    runner.stop(*now);
    const bool saves = !*now && rules.left == left_by_stop::checkpoint;
    note(fmt::format("asked to {}{}",
                     *now ? "end at once" : "stop: stopping at the next step boundary",
                     saves ? ", with a checkpoint" : ", without a checkpoint"));
    return answer_text(agreed());
  }
  if (command == "scale") {
    const auto ranks = asked.count("ranks");
    if (!ranks)
      return answer_text(
          wrong(R"("ranks" of scale is no number of ranks: give an integer from 1 on)"));
    const auto number = fmt::format("{} rank{}", *ranks, *ranks == 1 ? "" : "s");
    if (const auto why = wrong_number(rules, *ranks, live.as_status()); !why.empty())
      return answer_text(wrong(fmt::format("the run cannot go on with {}: {}", number, why)));
    runner.scale(*ranks);
    note("asked to go on with " + number);
    return answer_text(agreed());
  }
  return answer_text(
      wrong(fmt::format("there is no command \"{}\"; there are: status, stop, scale", command)));
}

}  // namespace troupe::program
