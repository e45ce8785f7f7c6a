#include "apps/testing/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "messages/failure.hpp"

namespace troupe::testing {

namespace {

[[noreturn]] void refuse(std::string_view line, std::string_view why) {
  throw user_error(errc::bad_usage, fmt::format("not a case: {}: \"{}\"", why, line));
}

std::int64_t number(std::string_view text, std::string_view line) {
  std::int64_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc{} || end != text.data() + text.size()) refuse(line, "no number");
  return x;
}

// Each field as a name and a number: `visit(name, get, set)`.
template <class F>
void job_fields(field_job& job, F visit) {
  const auto take = [&](const char* name, auto& field) {
    using type = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<type, nanoseconds>)
      visit(name, field.count(), [&](std::int64_t x) { field = nanoseconds{x}; });
    else
      visit(name, static_cast<std::int64_t>(field),
            [&](std::int64_t x) { field = static_cast<type>(x); });
  };
  take("ranks", job.ranks);
  take("steps", job.steps);
  take("samples", job.samples);
  take("batch_size", job.batch_size);
  take("accumulate", job.accumulate);
  take("checkpoint_every", job.checkpoint_every);
  take("width", job.width);
  take("buffers", job.buffers);
  take("fine", job.fine);
  take("seed", job.seed);
  take("detect", job.detect);
  take("hook_limit", job.hook_limit);
}

template <class F>
void plan_fields(run_plan& plan, F visit) {
  const auto take = [&](const char* name, auto& field) {
    using type = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<type, nanoseconds>)
      visit(name, field.count(), [&](std::int64_t x) { field = nanoseconds{x}; });
    else
      visit(name, static_cast<std::int64_t>(field),
            [&](std::int64_t x) { field = static_cast<type>(x); });
  };
  take("schedule", plan.world.schedule);
  take("depth", plan.world.depth);
  take("horizon", plan.world.horizon);
  take("elastic", plan.world.elastic);
  take("ranks_per_host", plan.around.ranks_per_host);
  take("compute", plan.around.compute);
  take("control_latency", plan.around.control_latency);
  take("spans", plan.around.lanes_in_spans);
  take("swarm", plan.faults.swarm);
  take("strikes", plan.faults.strikes);
  take("strike_per_million", plan.faults.strike_per_million);
  take("attempts", plan.attempts);
  take("events_limit", plan.events_limit);
}

template <class Fields>
void read_fields(std::string_view rest, std::string_view line, Fields fields) {
  while (!rest.empty()) {
    const auto space = rest.find(' ');
    const auto one = rest.substr(0, space);
    const auto equals = one.find('=');
    if (equals == std::string_view::npos) refuse(line, "no NAME=NUMBER");
    bool known = false;
    fields([&](std::string_view name, std::int64_t, auto set) {
      if (name != one.substr(0, equals)) return;
      set(number(one.substr(equals + 1), line));
      known = true;
    });
    if (!known) refuse(line, "unknown field");
    rest = space == std::string_view::npos ? std::string_view{} : rest.substr(space + 1);
  }
}

choice parse_choice(std::string_view text, std::string_view line) {
  const auto first = text.find('.');
  const auto second = text.find('.', first + 1);
  const auto equals = text.find('=');
  if (first == std::string_view::npos || second == std::string_view::npos ||
      equals == std::string_view::npos)
    refuse(line, "no SITE.WHO.OCCURRENCE=VALUE");
  choice c;
  bool known = false;
  for (int s = 0; s < static_cast<int>(site::count_); ++s)
    if (to_string(static_cast<site>(s)) == text.substr(0, first)) {
      c.where = static_cast<site>(s);
      known = true;
    }
  if (!known) refuse(line, "unknown site");
  c.who = static_cast<std::uint32_t>(number(text.substr(first + 1, second - first - 1), line));
  c.occurrence =
      static_cast<std::uint32_t>(number(text.substr(second + 1, equals - second - 1), line));
  c.value = static_cast<std::uint64_t>(number(text.substr(equals + 1), line));
  return c;
}

std::vector<choice> parse_choices(std::string_view rest, std::string_view line) {
  std::vector<choice> all;
  while (!rest.empty()) {
    const auto space = rest.find(' ');
    all.push_back(parse_choice(rest.substr(0, space), line));
    rest = space == std::string_view::npos ? std::string_view{} : rest.substr(space + 1);
  }
  return all;
}

}  // namespace

std::string to_text(const run_case& what) {
  std::ostringstream out;
  auto v = what.what;
  out << "troupe-case/1\n";
  if (!what.expect.empty()) out << "expect " << what.expect << '\n';
  const auto put = [&](const char* name, std::int64_t x, const auto&) {
    out << ' ' << name << '=' << x;
  };
  out << "job";
  job_fields(v.job, put);
  out << "\nplan";
  plan_fields(v.plan, put);
  out << "\nfaults " << v.plan.faults.may.text() << "\nseed " << what.seed << '\n';
  if (what.taken) {
    out << "choices";
    for (const auto& c : *what.taken) out << ' ' << c;
    out << '\n';
  }
  return out.str();
}

run_case parse_case(std::string_view text) {
  run_case c;
  bool headed = false;
  bool seeded = false;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (line.empty() || line.front() == '#') continue;
    const auto space = line.find(' ');
    const auto word = line.substr(0, space);
    const auto rest = space == std::string_view::npos ? std::string_view{} : line.substr(space + 1);
    if (word == "troupe-case/1")
      headed = true;
    else if (!headed)
      refuse(line, "it begins with troupe-case/1");
    else if (word == "expect")
      c.expect = rest;
    else if (word == "job")
      read_fields(rest, line, [&](auto f) { job_fields(c.what.job, f); });
    else if (word == "plan")
      read_fields(rest, line, [&](auto f) { plan_fields(c.what.plan, f); });
    else if (word == "faults")
      c.what.plan.faults.may = fault_set::parse(rest);
    else if (word == "seed")
      c.seed = static_cast<std::uint64_t>(number(rest, line)), seeded = true;
    else if (word == "choices")
      c.taken = parse_choices(rest, line);
    else
      refuse(line, "unknown line");
  }
  if (!headed || !seeded) refuse("", "it has a head and a seed");
  return c;
}

run_report replay(const run_case& what, field_reference& reference) {
  auto from = what.taken ? choices::of_list(what.seed, *what.taken) : choices::of_seed(what.seed);
  return run_field(what.what.job, what.what.plan, std::move(from), reference);
}

}  // namespace troupe::testing
